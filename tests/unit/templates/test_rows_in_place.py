"""Row kernels whose output lies in an input's memory: the result is the one that memory of its own gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cpu_kernels import TARGETS, CpuKernel, bf16_bits
from rows_on_host import OPERATORS, TEMPLATES, pairs

from aot_tune.spec import Config, Operator, Target

pytestmark = pytest.mark.slow

NAMES = ["softmax", "rms_norm", "layer_norm", "silu_mul"]


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


@pytest.mark.parametrize(
    ("name", "dtype", "kernel"),
    [
        ("rms_norm", "f32", "generic"),
        *((name, "bf16", "rows") for name in NAMES),
        ("softmax", "f32", "streaming"),
        ("rms_norm", "f32", "streaming"),
    ],
)
def test_results_on_cpus_have_the_same_bits(name: str, kernel: str, dtype: str, tmp_path: Path) -> None:
    op, target = OPERATORS[name], TARGETS[0 if kernel == "generic" else -1]
    rng = np.random.default_rng(5)
    for config in [{}] if kernel == "generic" else cpu_configs(name, kernel, target):
        call = CpuKernel(tmp_path, (TEMPLATES,), op, kernel, target, config, {"T": dtype})
        for rows, width, gap in ((5, 1, 0), (3, 37, 2), (2, 5003, 5), (40, 512, 0)):
            for aliases in pairs(name):
                for past in (0, 3):
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
