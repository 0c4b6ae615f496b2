"""CUDA kernels that start early and hold rows as they came: they compile without spills and are right on the host."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flat_rows import build, cluster_of_two, rendered_for_hopper
from places import SHARED
from rows_on_host import HOPPER, OPERATORS, check

from aot_tune.compile.cuda.gpu_targets import code_flags
from aot_tune.spec import Config

Case = tuple[str, str, Config, str]

SOFTMAX: tuple[tuple[str, Config, str], ...] = (
    ("cuda_flat", {"CLUSTER": 1}, "bf16"),
    ("cuda_flat", {"CLUSTER": 2}, "f32"),
    ("cuda_flat", {"CLUSTER": 4}, "f16"),
    ("cuda_flat", {"CLUSTER": 8, "VECTORS": 5}, "f32"),
    ("cuda_flat", {"CLUSTER": 8, "THREADS": 320}, "bf16"),
    ("cuda_flat", {"CLUSTER": 8, "PAUSE": 3000}, "bf16"),
)
SILU_MUL: tuple[tuple[str, Config, str], ...] = (
    ("cuda_wave", {"VECTORS": 3, "RESIDENT": 1536}, "bf16"),
    ("cuda_wave", {"VECTORS": 2, "RESIDENT": 2048}, "f32"),
)
OTHER_CONFIGS: tuple[Case, ...] = (
    ("softmax", "cuda_flat", {"CLUSTER": 8, "VECTORS": 5}, "f16"),
    ("softmax", "cuda_flat", {"CLUSTER": 8, "VECTORS": 5}, "bf16"),
    ("softmax", "cuda_flat", {"CLUSTER": 8, "VECTORS": 10}, "f16"),
    ("softmax", "cuda_flat", {"CLUSTER": 8, "VECTORS": 10}, "f32"),
    ("softmax", "cuda_flat", {"CLUSTER": 2}, "f32"),
)


@pytest.mark.parametrize(("kernel", "config", "dtype"), SOFTMAX)
def test_softmax_on_the_host(kernel: str, config: Config, dtype: str, tmp_path: Path) -> None:
    op = OPERATORS["softmax"]
    call = build(tmp_path, rendered_for_hopper("softmax", kernel, config, dtype))
    for rows, width in ((1, 8), (5, 72), (7, 9224), (9, 40008)):
        check(op, call, dtype, {"R": rows, "D": width})
    check(op, call, dtype, {"R": 9, "D": 9224}, strides={"x": (9232, 1), "out": (9240, 1)})
    check(op, call, dtype, {"R": 9, "D": 2056}, strides={"x": (0, 1)})
    check(op, call, dtype, {"R": 9, "D": 2056}, strides={"x": (-2064, 1)})
    check(op, call, dtype, {"R": 13, "D": 2056}, special=True)
    if config["CLUSTER"] == 1:
        check(op, call, dtype, {"R": 2, "D": 2**17 + 8})  # more than registers hold


def test_softmax_of_masked_rows_on_the_host(tmp_path: Path) -> None:
    """Rows that are -inf here and there, wholly, or all the lowest number: even a warp's whole part."""
    op = OPERATORS["softmax"]
    call = build(tmp_path, cluster_of_two())
    width = 4104
    values = np.random.default_rng(3).standard_normal((6, width)) * 3
    values[0, 100:] = -np.inf
    values[1, :] = -np.inf
    values[2, :] = -3.38953139e38
    values[3, :-1] = -np.inf
    values[4, 7] = 3.0e38
    values[5, :] += 30000.0
    check(op, call, "bf16", {"R": 6, "D": width}, given={"x": values})


@pytest.mark.parametrize(("kernel", "config", "dtype"), SILU_MUL)
def test_silu_mul_on_the_host(kernel: str, config: Config, dtype: str, tmp_path: Path) -> None:
    op = OPERATORS["silu_mul"]
    call = build(tmp_path, rendered_for_hopper("silu_mul", kernel, config, dtype))
    for rows, width in ((1, 8), (64, 2048), (5, 1032), (129, 4104)):
        check(op, call, dtype, {"R": rows, "D": width})
    check(op, call, dtype, {"R": 3, "D": 7168}, strides={"gate": (14336, 1), "up": (14336, 1)})  # halves of one tensor
    check(op, call, dtype, {"R": 70, "D": 1432}, strides={"gate": (-1440, 1), "up": (0, 1), "out": (1448, 1)})
    check(op, call, dtype, {"R": 13, "D": 40}, special=True)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize(("name", "kernel", "config", "dtype"), OTHER_CONFIGS)
def test_other_configs_compile_without_spills(
    name: str, kernel: str, config: Config, dtype: str, tmp_path: Path
) -> None:
    (tmp_path / "candidate.cu").write_text(rendered_for_hopper(name, kernel, config, dtype).source)
    command = ["nvcc", "-std=c++17", "-O3", *code_flags(HOPPER), "-Xptxas", "-v", "-diag-suppress", "177"]
    done = subprocess.run(
        [*command, "-c", "candidate.cu", "-o", "candidate.o"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    assert done.stderr.count("spill stores") == done.stderr.count(" 0 bytes spill stores") > 0, done.stderr


# A kernel's fault may abort the host: it runs in a process of its own.
FAULTS: tuple[tuple[str, str], ...] = (
    ("    barrier_expect(&told.all, static_cast<unsigned>(warps * blocks_of_row * sizeof(float2)));\n", ""),
    ("cluster_send(told.found + mine,", "cluster_send(told.found,"),
    ("if (lane < blocks_of_row)", "if (lane < 1)"),
    ("  barrier_wait<(blocks_of_row > 1)>(&told.all, 0);\n", ""),
)
CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import flat_rows
flat_rows.run(Path(sys.argv[2]))
"""


@pytest.mark.parametrize(("old", "new"), [("", ""), *FAULTS])
def test_the_host_notices_faults(old: str, new: str, tmp_path: Path) -> None:
    """And without a fault it has nothing to say."""
    source = cluster_of_two().source
    assert not old or source.count(old) == 1
    (tmp_path / "source.cpp").write_text(source.replace(old, new) if old else source)
    command = [sys.executable, "-c", CHILD, str(SHARED), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    noticed = "AssertionError" in done.stderr or "cuda_rows_on_host:" in done.stderr
    assert (done.returncode != 0 and noticed) == bool(old), done.stderr
