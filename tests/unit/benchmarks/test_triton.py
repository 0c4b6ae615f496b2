"""The benchmark of Triton kernels, as far as it runs without a GPU: its candidates, its loops, its report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import triton_launch as tl
from places import BENCHMARKS
from triton_installed import EACH_TRITON

sys.path.insert(0, str(BENCHMARKS))

import triton_kernels

_CALLS = """
import ctypes, json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from triton_build import EXAMPLE, Prober, build, read_operator
from aot_tune.spec import problem

operator, given = read_operator(EXAMPLE, "rms_norm", "cuda-sm_90a"), problem(R=6, D=96)
built = build(EXAMPLE, operator, "rows", given, "cuda-sm_90a", Path(sys.argv[2], "built"))
tensors = {"x": torch.ones(6, 96), "weight": torch.ones(96), "out": torch.ones(6, 96)}
arguments = built.arguments(tensors)
prober = Prober(built.operator, given, tensors, Path(sys.argv[2]))
sizes = [8 if kind.startswith("*") else 4 for kind in built.recipe.signature.values() if kind != "constexpr"]
Path(sys.argv[2], f"{built.symbol}.bin").write_text(" ".join([built.kernel_name, *map(str, [*sizes, 8, 8])]))
stub = ctypes.CDLL("libcuda.so.1")
stub.stub_log.restype = ctypes.c_char_p
library = ctypes.CDLL(str(built.library))
launch = getattr(library, f"{built.symbol}_launch")
spent = prober.launcher(launch, 0, 1)
log = stub.stub_log().decode().splitlines()
stub.stub_clear()
prober.launcher(launch, 0, 3, None, 4, 2)
moved = stub.stub_log().decode().splitlines()
size = prober.workspace(getattr(library, f"{built.symbol}_workspace"))
print(json.dumps({"log": log, "moved": moved, "slots": built.slots(arguments), "grid": built.grid(arguments),
                  "constants": built.constants, "spent": spent, "workspace": size, "name": built.kernel_name}))
"""


@pytest.mark.slow
@EACH_TRITON
def test_a_bare_launch_passes_what_the_launcher_passes(search: list[str], tmp_path: Path) -> None:
    """Else the difference between the two would be of something else."""
    driver = tl.stand_in(tmp_path / "driver", "libcuda_triton.cpp", "libcuda.so.1")
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(search), "LD_LIBRARY_PATH": str(driver)}
    given["AOT_TUNE_KERNEL_DIR"] = str(tmp_path)
    argv = [sys.executable, "-c", _CALLS, str(BENCHMARKS), str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, env=given, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    passed = [line.removeprefix("parameter ") for line in told["log"] if line.startswith("parameter ")]
    assert [int.from_bytes(bytes.fromhex(p), "little") for p in passed] == told["slots"]
    (launched,) = (line for line in told["log"] if line.startswith("launch "))
    grid, threads = ",".join(map(str, told["grid"])), told["constants"]["warps"] * told["constants"]["warp_size"]
    assert f"launch {told['name']} grid={grid} block={threads},1,1 shared={told['constants']['shared']}" in launched
    assert told["spent"] > 0
    assert told["workspace"] == 0
    pointers = [line for line in told["moved"] if line.startswith("parameter ")][1 :: len(passed)]
    found = [int.from_bytes(bytes.fromhex(p.removeprefix("parameter ")), "little") for p in pointers]
    first = told["slots"][1]
    assert [p - first for p in found] == [4, 0, 4]  # the first tensor, of two in turn


FOUND: dict[str, Any] = {
    "sections": [
        {
            "operator": "a",
            "kernel": "k",
            "config": {},
            "problem": "R=1",
            "same": True,
            "lined": False,
            "varies": True,
            "sections": [],
            "bytes": 9,
        },
        {"operator": "b", "kernel": "k", "config": None, "problem": "R=1", "error": "SystemExit: it | fails"},
    ],
    "calls": {
        "rms_norm": {
            "explained": {},
            "ns": {
                "bare cuLaunchKernel": [2000.0, 2100.0, 9000.0],
                "launcher from C": [2100.0, 2200.0, 9100.0],
                "library from C": [2200.0, 2300.0, 9200.0],
                "library from Python": [2900.0, 3000.0, 9900.0],
                "JIT from Python": [16000.0, 16000.0, 16000.0],
            },
        },
        "swiglu": {
            "explained": {"missing": "triton_package is not installed"},
            "ns": {"bare cuLaunchKernel": [2000.0], "launcher from C": [2010.0], "JIT from Python": [16000.0]},
        },
    },
    "maps": {"config": {}, "ns": {"the same tensors": [2000.0], "one new tensor": [2250.0]}},
    "start": {
        name: [{"ready": 2.0, "first": 2.0 + more}]
        for name, more in (("cuda", 0.0), ("aot_tune", 0.05), ("jit, warm cache", 0.9), ("jit, cold cache", 3.0))
    },
    "attention": [
        {
            "width": 128,
            "tokens": 4096,
            "causal": True,
            "explained": {"kernel": "triton"},
            "us": {"aot_tune": [10.0, 20.0], "flash": [11.0, 22.0], "cudnn": [7.0, 14.0]},
        }
    ],
    "products": [
        {"problem": "A", "kernel": "t1", "ns": 50e3, "cublas_ns": {"torch.matmul": 50e3}, "paired": [1.0, 0.01]},
        {"problem": "B", "kernel": "t2", "ns": 80e3, "cublas_ns": {"torch.matmul": 70e3}, "paired": [0.875, 0.01]},
    ],
    "throughput": [
        {
            "operator": "softmax",
            "count": 9,
            "workers": 2,
            "ratio": 0.95,
            "cpu_ratio": 0.85,
            "seconds": {"aot_tune": [1.0], "triton.compile": [0.95]},
            "cpu_seconds": {"aot_tune": [2.0], "triton.compile": [1.7]},
        }
    ],
}


def test_requirements() -> None:
    told = {v.what: (v.measured, v.met) for v in triton_kernels.verdicts(FOUND)}
    assert told == {
        "kernels whose code sections are those of the JIT without line numbers": ("1 of 2", False),
        "rms_norm: launcher from C, beyond a bare cuLaunchKernel": ("100 ns", True),
        "rms_norm: library from C, beyond a bare cuLaunchKernel": ("200 ns", False),
        "rms_norm: library from Python, beyond a bare cuLaunchKernel": ("900 ns", True),
        "swiglu: launcher from C, beyond a bare cuLaunchKernel": ("10 ns", True),
        "swiglu: library from C": ("triton_package is not installed", False),
        "swiglu: library from Python": ("triton_package is not installed", False),
        "a tensor map that is new, beyond one that is known": ("250 ns", True),
        "first result of a process, beyond CUDA's own start (jit, warm cache 900 ms, jit, cold cache 3000 ms)": (
            "50 ms",
            True,
        ),
        "attention of 4096 tokens, width 128, causal, against torch's flash": ("1.100 x", True),
        "attention of 4096 tokens, width 128, causal, against torch's best (cudnn)": ("0.700 x", False),
        "persistent product of 1024 rows and more, against cuBLAS, geometric mean": ("0.935 x", True),
        "persistent product of 1024 rows and more, against cuBLAS, the slowest": ("0.875 x (B); 1 of 2 below", False),
        "softmax: 9 configs in 2 processes, against plain triton.compile": ("0.950 x", True),
        "softmax: 9 configs in 2 processes, against plain triton.compile, by CPU seconds": ("0.850 x", False),
    }


def test_the_report_has_a_table_for_each_part_and_no_line_breaks_in_cells() -> None:
    text = triton_kernels.report(FOUND, {"date": "today"})
    titles = (
        "Requirements",
        "Code sections",
        "Host time",
        "start of a process",
        "Attention",
        "Persistent products",
        "Compiling",
    )
    assert all(title in text for title in titles)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in rows)
    assert "it / fails" in text
    assert "same, 9 bytes; not with line numbers; the JIT makes others too" in text


@pytest.mark.parametrize("part", ["calls", "maps", "start", "attention", "sections", "products", "throughput"])
def test_a_part_that_fails_is_a_requirement_that_is_missed(part: str) -> None:
    found = {**FOUND, part: {"error": "no GPU"}}
    missed = [v for v in triton_kernels.verdicts(found) if v.what == f"part {part}"]
    assert [(v.measured, v.met) for v in missed] == [("no GPU", False)]
    assert f"part {part}" in triton_kernels.report(found, {})


@pytest.mark.slow
def test_without_a_gpu_each_part_of_it_says_so(tmp_path: Path) -> None:
    """And the run ends, with what was measured in a file."""
    script, out = BENCHMARKS / "triton_kernels.py", tmp_path / "found.json"
    argv = [sys.executable, str(script), "--parts", "calls", "--json", str(out)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "error" in json.loads(out.read_text())["parts"]["calls"]
    assert "MISSED part calls" in done.stdout


def test_a_process_that_hangs_costs_no_other_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(way: str, cache: str) -> dict[str, float]:
        raise subprocess.TimeoutExpired([way, cache], 300)

    monkeypatch.setattr(triton_kernels, "time_start", hangs)
    monkeypatch.setattr(triton_kernels, "on_gpu", lambda _part, **_given: {})
    given = Namespace(parts=["start", "maps"], no_bundled=False, rounds=1, races=1, starts=1)
    found = [dict(told) for told, _ in triton_kernels.measure_all(given)][-1]
    assert "timed out" in found["start"]["error"]
    assert found["maps"] == {}
