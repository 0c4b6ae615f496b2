"""Row kernels whose output lies in an input's memory: the result is the one that memory of its own gets."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from cpu_kernels import TARGETS, CpuKernel, bf16_bits
from flat_rows import build, rendered_for_hopper
from rows_on_host import OPERATORS, TEMPLATES, check

from aot_tune.spec import Config, Operator, Target, problem
from aot_tune.spec.aliases import aliases_on

pytestmark = pytest.mark.slow

NAMES = ["softmax", "rms_norm", "layer_norm", "silu_mul"]


def pairs(name: str) -> list[dict[str, str]]:
    """In whose memory outputs may lie, all at once and, of the norm with a residual, one at a time."""
    op = OPERATORS[name]
    optional = tuple(t.name for t in op.tensors if t.optional)
    found = list(aliases_on(op, problem(R=4, D=8, present=optional)))
    return [*found, *({o: i} for f in found if len(f) > 1 for o, i in f.items())]


def test_all_of_them_may_work_in_place() -> None:
    assert pairs("softmax") == pairs("layer_norm") == [{"out": "x"}]
    assert pairs("silu_mul") == [{"out": "gate"}, {"out": "up"}]
    assert pairs("rms_norm") == [
        {"out": "x", "residual_out": "residual"},
        {"out": "x"},
        {"residual_out": "residual"},
    ]


# -- on CPUs ---------------------------------------------------------------------------------------------------------


def cpu_configs(name: str, kernel: str, target: Target) -> Iterator[Config]:
    """A config of each way to go: of each method, one row at a time and several, with and without prefetches."""
    seen = set()
    for config in OPERATORS[name].kernel(kernel).configs(target.facts):
        way = tuple(config.get(p) for p in ("W", "METHOD", "ROWS", "PREFETCH"))
        if way not in seen:
            seen.add(way)
            yield config


@pytest.mark.parametrize(("dtype", "kernel"), [("f32", "generic"), ("bf16", "rows"), ("f32", "streaming")])
@pytest.mark.parametrize("name", NAMES)
def test_results_on_cpus_have_the_same_bits(name: str, kernel: str, dtype: str, tmp_path: Path) -> None:
    op, target = OPERATORS[name], TARGETS[0 if kernel == "generic" else -1]
    rng = np.random.default_rng(5)
    for config in [{}] if kernel == "generic" else cpu_configs(name, kernel, target):
        call = CpuKernel(tmp_path, (TEMPLATES,), op, kernel, target, config, {"T": dtype})
        for rows, width, gap in ((5, 1, 0), (3, 19, 2), (4, 37, 0), (3, 101, 3), (2, 5003, 5), (40, 512, 0)):
            for aliases in pairs(name):
                for past in (0, 1, 3):
                    given = drawn(rng, name, rows, width, gap, past, dtype)
                    same_bits(call, op, given, aliases)


def drawn(
    rng: np.random.Generator, name: str, rows: int, width: int, gap: int, past: int, dtype: str
) -> dict[str, Any]:
    """Inputs, `gap` elements between their rows, which begin `past` elements behind what is aligned."""
    found = {}
    for tensor in OPERATORS[name].inputs:
        values = rng.standard_normal(64 + rows * (width + gap) if tensor.rank == 2 else width).astype(np.float32)
        values = bf16_bits(values) if dtype == "bf16" else values
        if tensor.rank == 2:
            aligned = -(values.ctypes.data // values.itemsize) % 16
            values = values[aligned + past :][: rows * (width + gap)].reshape(rows, width + gap)[:, :width]
        found[tensor.name] = values
    return found


def same_bits(call: CpuKernel, op: Operator, given: Mapping[str, Any], aliases: Mapping[str, str]) -> None:
    first = next(iter(given.values()))
    outputs = {t.name: np.zeros_like(first) for t in op.outputs}
    assert call(**given, **outputs) == 0
    before = {n: a.copy() for n, a in given.items()}
    apart = {n: np.zeros_like(first) for n in outputs if n not in aliases}
    assert call(**given, **apart, **{o: given[i] for o, i in aliases.items()}) == 0
    for output, name in aliases.items():
        np.testing.assert_array_equal(given[name], outputs[output], f"{output} in {name}, {first.shape}")
    for output, array in apart.items():
        np.testing.assert_array_equal(array, outputs[output], f"{output} beside {dict(aliases)}, {first.shape}")
    for name in set(given).difference(aliases.values()):
        np.testing.assert_array_equal(given[name], before[name])


# -- on GPUs, run by the host ----------------------------------------------------------------------------------------

CASES: tuple[tuple[str, str, Config], ...] = (
    *((n, "cuda_generic", {}) for n in NAMES),
    *((n, "cuda_rows", {"VECTORS": 2}) for n in NAMES),
    *((n, "cuda_rows", {"VECTORS": 2, "RESIDENT": 1024}) for n in NAMES[:3]),
    *((n, "cuda_rows_few", {"VECTORS": 2}) for n in ("rms_norm", "layer_norm")),
    *((n, "cuda_peeled", {"VECTORS": 2}) for n in NAMES),
    *((n, "cuda_peeled", {"CLUSTER": 2}) for n in NAMES[:3]),
    ("softmax", "cuda_flat", {"CLUSTER": 1}),
    ("softmax", "cuda_flat", {"CLUSTER": 8, "VECTORS": 5}),
    ("softmax", "cuda_split", {"SPLIT": 16}),
    ("silu_mul", "cuda_wave", {"VECTORS": 2}),
)


@pytest.mark.parametrize(
    ("name", "kernel", "config", "dtype"),
    [(*case, dtype) for case, dtype in zip(CASES, itertools.cycle(("f32", "bf16", "bf16")))],
)
def test_kernels_of_gpus_are_right_on_the_host(
    name: str, kernel: str, config: Config, dtype: str, tmp_path: Path
) -> None:
    op = OPERATORS[name]
    call = build(tmp_path, rendered_for_hopper(name, kernel, config, dtype))
    whole = kernel not in ("cuda_generic", "cuda_peeled")  # pieces of 16 bytes
    for rows, width in ((9, 1032), (3, 40008)) if whole else ((9, 5), (9, 37), (7, 777), (3, 40009)):
        for aliases in pairs(name):
            for gap in (0, 8):
                layout = (width + gap, 1)
                strides = {n: layout for both in aliases.items() for n in both}
                check(op, call, dtype, {"R": rows, "D": width}, strides=strides, aliases=aliases)
            if not whole:  # and from elements on that are not aligned
                behind = {n: 1 + 2 * place for place, both in enumerate(aliases.items()) for n in both}
                check(op, call, dtype, {"R": rows, "D": width}, skipped=behind, aliases=aliases)


def test_the_host_notices_sums_that_are_written_too_early(tmp_path: Path) -> None:
    rendered = rendered_for_hopper("rms_norm", "cuda_generic", {}, "f32")
    (written,) = re.findall(r"if \(\(args\.residual_out != nullptr\)\).*;\n", rendered.source)
    early = rendered.source.replace(written, "").replace("squares += s * s;\n", "squares += s * s;\n" + written)
    call = build(tmp_path, msgspec.structs.replace(rendered, source=early))
    check(OPERATORS["rms_norm"], call, "f32", {"R": 3, "D": 37})
    with pytest.raises(AssertionError, match="out"):
        check(OPERATORS["rms_norm"], call, "f32", {"R": 3, "D": 37}, aliases={"residual_out": "residual"})
