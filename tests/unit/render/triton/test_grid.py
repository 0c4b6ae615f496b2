"""Grids: Python functions traced to expressions and printed as C++, equal to Python's on any shape."""

from __future__ import annotations

import math
import random
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import triton_launch as tl

from aot_tune.expr.integer_expressions import FUNCTIONS
from aot_tune.render.triton.grid import print_expr
from aot_tune.spec import (
    Buffer,
    Declarations,
    Expr,
    Parameter,
    Scalar,
    Tensor,
    TritonFunction,
    ceildiv,
    device,
    dims,
    next_power_of_2,
)
from aot_tune.support.errors import RenderError, SpecError

B, S, H, D = dims("B S H D")
SYMBOLIC = SimpleNamespace(cdiv=ceildiv, power=next_power_of_2, processors=device("multiprocessors"))
PLAIN = SimpleNamespace(
    cdiv=lambda a, b: math.ceil(a / b), power=lambda n: 1 if n <= 1 else 2 ** math.ceil(math.log2(n)), processors=132
)
CONFIG = {"BLOCK_M": 64, "BLOCK_N": 48, "SPLIT": 3, "num_warps": 4, "CAUSAL": True}

Meta = Mapping[str, Any]


# Each is called twice: with expressions in place of sizes and functions, and with integers.
def _persistent(meta: Meta, f: Any) -> tuple[Any, ...]:
    tiles = f.cdiv(meta["seq"], meta["BLOCK_M"]) * meta["B"]
    return (min(f.processors * (2 if meta["CAUSAL"] else 1), tiles), 1, meta["SPLIT"])


def _conditions(meta: Meta, f: Any) -> tuple[Any, ...]:
    rows = meta["B"] * meta["seq"]
    if rows > 4096 and meta["D"] % 64 == 0:
        block = 4
    elif meta["H"] < 8 or not rows % 2:
        block = 2
    else:
        block = 1
    return (f.cdiv(rows, block), max(1, meta["H"] // 7))


def _powers(meta: Meta, f: Any) -> tuple[Any, ...]:
    block = min(f.power(meta["D"]), 1024)
    return (f.cdiv(meta["B"] * meta["seq"] * meta["D"], block), f.power(meta["H"] - 9))


def _negative(meta: Meta, f: Any) -> tuple[Any, ...]:
    """Python's division rounds down, that of C++ towards 0."""
    return (abs_of((meta["D"] - 300) // 7), (meta["H"] - 20) % 9 + (meta["B"] - 50) // meta["BLOCK_N"] + 60)


def _strided(meta: Meta, f: Any) -> tuple[Any, ...]:
    x = meta["x"]
    return (x.numel() // x.stride(0), x.shape[-1], f.cdiv(x.size(1), x.element_size()))


def abs_of(value: Any) -> Any:
    return value if value > 0 else 0 - value


GRIDS = [_persistent, _conditions, _powers, _negative, _strided]


def operator(grid: Any, arguments: Mapping[str, Any] | None = None, text: str = "x out seq B H D") -> Any:
    return tl.operator(
        TritonFunction("flash.py:forward", {"seq": S, **(arguments or {})}, grid=grid),
        Declarations(parameters=tl.parameters(f"{text} BLOCK_M! BLOCK_N! SPLIT! CAUSAL!")),
        dims=("B", "S", "H", "D"),
        tensors=(Tensor("x", (B, S, H, D), "bf16"), Tensor("out", (B, S, H, D), "bf16", output=True)),
        scalars=(Scalar("scale"),) if "scale" in text else (),
        flops=B * S,
        workload=(tl.problem(B=1, S=2, H=3, D=4),),
        kernel={"parameters": tuple(Parameter(n, (v,)) for n, v in CONFIG.items())},
    )


class PlainTensor:
    """What torch gives for a contiguous tensor."""

    def __init__(self, shape: list[int]) -> None:
        self.shape = shape

    def stride(self, axis: int) -> int:
        return math.prod(max(n, 1) for n in self.shape[axis + 1 :])

    def size(self, axis: int) -> int:
        return self.shape[axis]

    def numel(self) -> int:
        return math.prod(self.shape)

    def element_size(self) -> int:
        return 2


def expected(grid: Callable[[Meta, Any], tuple[Any, ...]], shape: list[int]) -> list[int]:
    meta = {**CONFIG, **dict(zip(("B", "seq", "H", "D"), shape, strict=True)), "x": PlainTensor(shape)}
    found = [*grid(meta, PLAIN), 1, 1][:3]
    if any(n < 0 for n in found) or found[0] >= 2**31 or max(found[1:]) > 65535:
        return [1]
    return [0, 0, 0] if 0 in found else found


@pytest.mark.slow
@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: g.__name__)
def test_grids_are_those_of_python_on_random_shapes(
    tmp_path: Path, cuda: Path, grid: Callable[[Meta, Any], tuple[Any, ...]]
) -> None:
    rng = random.Random(grid.__name__)
    extents = [0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 4096, 65535, 65536]
    shapes = [[rng.choice((rng.choice(extents), rng.randint(0, 700))) for _ in range(4)] for _ in range(2_000)]
    op = operator(lambda meta: grid(meta, SYMBOLIC))
    source = tl.rendered(op, config=CONFIG)
    library = tl.compiled(tmp_path, source, (8, 8, 4, 4, 4, 4, 8, 8))
    calls = [{"grids": [[shape, shape] for shape in shapes]}]
    (answer,) = tl.call(library, source.symbol, calls, cuda)
    wanted = [expected(grid, shape) for shape in shapes]
    wrong = [(s, g, w) for s, g, w in zip(shapes, answer["grids"], wanted, strict=True) if g != w]
    assert not wrong, (len(wrong), wrong[:5])
    assert sum(w not in ([1], [0, 0, 0]) for w in wanted) > 400


@pytest.mark.slow
def test_expressions_are_those_of_python_for_negative_numbers_too(tmp_path: Path) -> None:
    """100 random expressions on 50 rows of numbers each, and where Python raises, C++ says that it is undefined."""
    rng = random.Random(20)
    names = ["a", "b", "c"]

    def tree(depth: int) -> Expr:
        if depth == 0 or rng.random() < 0.1:
            if rng.random() < 0.6:
                return Expr("fact", value=rng.choice(names))
            return Expr("const", value=rng.choice([-7, -1, 0, 1, 2, 3, 16, 100]))
        kind = rng.choice([*sorted(FUNCTIONS.keys() - {"/"}), "where"])
        if kind in ("and", "or"):  # C++ leaves out a right side that has no say, and what may raise in it
            kind = rng.choice(["<", ">=", "+"])
        count = {"where": 3, "next_power_of_2": 1}.get(kind, 2)
        return Expr(kind, tuple(tree(depth - 1) for _ in range(count)))

    trees = [tree(rng.randint(1, 4)) for _ in range(100)]
    rows = [[rng.choice((rng.randint(-40, 40), rng.randint(-3, 3))) for _ in names] for _ in range(50)]
    body = "\n".join(
        f"  {{ bool aot_undefined = false; const int64_t v = {print_expr(t, lambda name: name)};"
        ' std::printf(aot_undefined ? "undefined\\n" : "%lld\\n", static_cast<long long>(v)); }'
        for t in trees
    )
    table = ",\n".join("{" + ", ".join(map(str, row)) + "}" for row in rows)
    (tmp_path / "print.cpp").write_text(
        '#include <cstdio>\n#include "launch.h"\n'
        f"static void all(int64_t a, int64_t b, int64_t c) {{\n  (void)a, (void)b, (void)c;\n{body}\n}}\n"
        f"int main() {{\n  const int64_t rows[][3] = {{{table}}};\n"
        "  for (const auto& row : rows) all(row[0], row[1], row[2]);\n}\n"
    )
    run = ["g++", "-std=c++17", "-fsanitize=undefined", "-fno-sanitize-recover", "-I.", f"-I{tl.LAUNCHER}"]
    subprocess.run([*run, "print.cpp", "-o", "print"], cwd=tmp_path, check=True)
    got = subprocess.run([tmp_path / "print"], capture_output=True, text=True, check=True).stdout.split()

    def value(expr: Expr, facts: Mapping[str, int]) -> str:
        try:
            return str(expr.evaluate(facts))
        except SpecError:
            return "undefined"

    wanted = [value(t, dict(zip(names, row, strict=True))) for row in rows for t in trees]
    assert got == wanted
    assert 100 < wanted.count("undefined") < len(wanted) / 2


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (lambda meta: (meta["x"][0],), r"kernel 'triton': the grid reads an element of the tensor argument 'x'"),
        (lambda meta: (meta["scale"],), r"the grid uses the scalar argument 'scale'(.|\n)*fix: use a dim"),
        (lambda meta: (meta["locks"],), r"the grid uses the buffer argument 'locks'"),
        (lambda meta: (meta["seqq"],), r"the grid uses 'seqq', which is no argument or parameter(.|\n)*'seq'"),
        (lambda meta: (meta["seq"] ** 1.5,), r"the grid raised TypeError: unsupported operand(.|\n)*math\.ceil"),
        (lambda meta: (meta["seq"] / 4,), r"an extent of the grid cannot be \(S / 4\)(.|\n)*quotients rounded"),
        (lambda meta: meta["seq"], r"the grid is 'S'(.|\n)*one to three extents"),
        (lambda meta: (), r"one to three extents"),
        (lambda meta: (sum(1 if meta["seq"] % i else 0 for i in range(2, 9)),), r"more than 64 paths"),
        (lambda meta: (meta["x"].shape[7],), r"the grid raised IndexError"),
        (lambda meta: ((meta["seq"] + 63) & ~63,), r"the grid has .* where \(S \+ 63\) is a number"),
        (lambda meta: (4 if meta["seq"] in {1, 2} else 8,), r"the grid: the expression S was looked up in a set"),
        ((device("clusters"),), r"the grid uses 'device\.clusters'(.|\n)*'device\.multiprocessors'"),
        ((Expr("fact", value="stride.x.4"),), r"uses 'stride\.x\.4'"),
        ((Expr("const", value=4) // 0,), r"division by zero"),
    ],
)
def test_grids_that_cannot_be_had_say_what_and_why(grid: Any, message: str) -> None:
    text = "x out seq B H D scale locks"
    op = operator(grid, {"scale": "scale", "locks": Buffer("i32", 4)}, text)
    with pytest.raises(RenderError, match=message) as error:
        tl.rendered(op, config=CONFIG)
    assert error.value.what.startswith("operator 'scale': kernel 'triton'")
    assert error.value.fix or "64 paths" in error.value.what or "zero" in error.value.what
