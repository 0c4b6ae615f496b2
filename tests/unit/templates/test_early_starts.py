"""CUDA row kernels that start early: they touch no memory before they have waited, and only they are launched so."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from ptx import faults, ptx_of
from rows_on_host import HOPPER, KERNELS, OPERATORS, TARGET, render

from aot_tune.spec import Kernel, Operator

EARLY = [
    (op, k) for op, k in KERNELS if k.name in ("cuda_rows", "cuda_rows_few", "cuda_flat", "cuda_wave", "cuda_peeled")
]
IDS = [f"{op.name}-{kernel.name}" for op, kernel in EARLY]


def launches_early(source: str) -> bool:
    return "return launch_early(" in source


@pytest.mark.parametrize(("op", "kernel"), KERNELS, ids=[f"{op.name}-{kernel.name}" for op, kernel in KERNELS])
def test_only_kernels_that_wait_are_launched_early(op: Operator, kernel: Kernel) -> None:
    """And only where there is such a launch; not with loads past the caches, which take it that nobody writes."""
    for target in (TARGET["cuda-ptx_80"], TARGET["cuda-sm_80"], HOPPER, TARGET["cuda-sm_100"], TARGET["cuda-sm_120"]):
        for config in kernel.configs(target.facts):
            wanted = (op, kernel) in EARLY and target.facts["capability"] >= 90 and not config.get("STREAM", False)
            assert launches_early(render(op, kernel, target, config, "bf16").source) == wanted


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize(("op", "kernel"), EARLY, ids=IDS)
def test_nothing_is_read_or_written_before_earlier_kernels_have_ended(
    op: Operator, kernel: Kernel, tmp_path: Path
) -> None:
    config = next(c for c in kernel.configs(HOPPER.facts) if not c.get("STREAM", False))
    assert not faults(ptx_of(render(op, kernel, HOPPER, config, "bf16").source, tmp_path), "AHEAD" in config)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_weights_come_to_l2_before_earlier_kernels_have_ended(name: str, tmp_path: Path) -> None:
    op = OPERATORS[name]
    source = render(op, op.kernel("cuda_rows_few"), HOPPER, {"VECTORS": 1}, "bf16").source
    weights = [t.name for t in op.inputs if t.name in ("weight", "bias")]
    assert re.findall(r"prefetch_tile<V>\(args\.(\w+), ", source) == weights
    entries = [e for e in ptx_of(source, tmp_path).split(".entry ")[1:] if "_any" not in e.partition("(")[0]]
    assert entries
    for entry in entries:
        ahead = entry.partition("griddepcontrol.wait")[0]
        assert ahead.count("prefetch.global.L2") == len(weights)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("cuda_rows", "  wait_for_earlier_kernels();\n  load(r);\n", "  load(r);\n"),
        (
            "cuda_rows",
            "  wait_for_earlier_kernels();\n  let_later_kernels_start();\n",
            "  let_later_kernels_start();\n",
        ),
        ("cuda_rows", "ld.global.v4.u32", "ld.global.nc.v4.u32"),
        ("cuda_rows_few", "  wait_for_earlier_kernels();\n", ""),
        ("cuda_rows_few", "  wait_for_earlier_kernels();\n  load(r);\n", "  load(r);\n  wait_for_earlier_kernels();\n"),
        ("cuda_rows_few", "  let_later_kernels_start();\n", ""),
    ],
    ids=[
        "no wait",
        "no wait of wide rows",
        "loads of what nobody writes",
        "no wait of few",
        "loads before the wait",
        "no start",
    ],
)
def test_faults_are_noticed(name: str, old: str, new: str, tmp_path: Path) -> None:
    op = OPERATORS["rms_norm"]
    source = render(op, op.kernel(name), HOPPER, {"STREAM": False}, "bf16").source
    assert source.count(old) == 1
    assert faults(ptx_of(source.replace(old, new), tmp_path), ahead=name == "cuda_rows_few")
