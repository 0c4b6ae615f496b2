"""Scenarios of `scenarios.py` for products of matrices that lie in any way, and one of their own."""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import scenarios
from problems import Case
from world import World

FILLS_IN = "cublaslt_any"
SIZES = ((300, 520, 1032), (700, 600, 517), (33, 41, 25), (1, 1024, 1024))
"""M, N and K: large enough to be copied for the sake of speed, and too small for that."""
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
PRESENT = ((), ("bias",), ("residual",), ("bias", "residual"))


class StridedWorld(World):
    """A library with the variant that takes products of any strides, which is called for nothing else here."""

    def usual(self, seed: int = 0) -> list[Case]:
        """Every operand as a slice, with steps and by columns, with and without an epilogue."""
        calls = [("gemm", one) for one in _of_gemm("bf16", (256, 1024, 1024))]
        calls += [("batched_gemm", one) for one in _of_batches("bf16", (64, 128, 72))]
        return [self.case(name, seed, **given) for name, given in calls]


def _layouts(rows: int, columns: int, *, output: bool) -> Iterator[tuple[int, int]]:
    """Strides of a matrix that no other variant takes, or that only few take."""
    yield 2 * columns, 2
    yield 3, 3 * rows + 1
    yield 1, rows + 3
    yield columns + 5, 1
    if not output:
        yield 0, 1
        yield 1, 0


def _calls(dtype: str, size: tuple[int, int, int], batch: int) -> Iterator[dict[str, Any]]:
    """One operand after the other lies in another way, at an aligned address and at that of any element."""
    m, n, k = size
    least = 4 if dtype == "f32" else 2
    shapes = {"a": (m, k), "b": (k, n), "out": (m, n)}
    dims = {"M": m, "N": n, "K": k} | ({"B": batch} if batch else {})
    given = {**dims, "dtypes": {"T": dtype}}
    for odd in (("a",), ("b",), ("out",), tuple(shapes)):
        yield given | {"alignment": dict.fromkeys(odd, least)}
    for tensor, shape in shapes.items():
        for row, column in _layouts(*shape, output=tensor == "out"):
            last = (shape[0] - 1) * row + (shape[1] - 1) * column + 1
            strides = {tensor: (*((last,) if batch else ()), row, column)}
            yield given | {"strides": strides, "alignment": {tensor: least}}
    if batch:
        yield given | {"strides": {"b": (0, 1, k + 1)}, "alignment": {"a": least}}


def _of_gemm(dtype: str, size: tuple[int, int, int]) -> Iterator[dict[str, Any]]:
    """The same with one epilogue after the other, floats in both modes."""
    epilogues = itertools.cycle(itertools.product(ACTIVATIONS, PRESENT))
    for number, one in enumerate(_calls(dtype, size, 0)):
        activation, present = next(epilogues)
        math = {"math": "tf32"} if dtype == "f32" and number % 2 else {}
        yield one | {"present": present, "attributes": {"activation": activation} | math}
        yield one | {"attributes": math}


def _of_batches(dtype: str, size: tuple[int, int, int]) -> Iterator[dict[str, Any]]:
    for number, one in enumerate(_calls(dtype, size, 3)):
        yield one | {"attributes": {"math": "tf32"} if dtype == "f32" and number % 2 else {}}


def strided(world: World, dtype: str) -> None:
    """Every call is right, and served by the variant that fills in; tells how the products were made."""
    faults, notes = list[str](), Counter[str]()
    calls = [("gemm", one) for size in SIZES for one in _of_gemm(dtype, size)]
    calls += [("batched_gemm", one) for size in SIZES for one in _of_batches(dtype, size)]
    for number, (name, given) in enumerate(calls):
        case = world.case(name, number, **given)
        told = world.ops.explain(name, **case.tensors, **case.problem.attributes)
        if not told["variant"].startswith(FILLS_IN):
            faults.append(f"{case.text}: served by {told['variant']}")
        notes[str(told.get("note", "")).partition(": ")[2]] += 1
        case.call(world.ops)
        if fault := case.fault():
            faults.append(fault)
    assert not faults, f"{len(faults)} of {len(calls)}:\n" + "\n".join(faults[:20])
    print("RESULT " + json.dumps(notes))


SCENARIOS = scenarios.SCENARIOS | scenarios.found_in(globals())


def main(name: str, module: str, templates: str, *arguments: Any) -> None:
    """Run one of them."""
    SCENARIOS[name](StridedWorld(module, templates), *arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
