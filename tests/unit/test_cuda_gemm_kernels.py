"""CUDA kernels of gemm and batched_gemm: they compile without spills, and are right when run on the host."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from aot_tune.compile.cuda_targets import TARGETS, code_flags
from aot_tune.library import bundled_templates, load_operator
from aot_tune.render import Rendered, Renderer, candidate_for
from aot_tune.spec import Config, Kernel, Operator, Target

HOST = Path(__file__).parent / "cuda_on_host"
ELEMENTS = {"f32": "float", "bf16": "__nv_bfloat16", "f16": "__half"}
TEMPLATES = bundled_templates()
OPERATORS = {name: load_operator(TEMPLATES / name) for name in ("gemm", "batched_gemm")}
TARGET = {t.name: t for t in TARGETS}
HOPPER = TARGET["cuda-sm_90a"]
OURS = [
    (op, kernel)
    for op in OPERATORS.values()
    for kernel in op.kernels
    if kernel.template.split("/")[-1].startswith("cuda_")
]
IDS = [f"{op.name}-{kernel.name}" for op, kernel in OURS]


def config_like(kernel: Kernel, target: Target, wanted: Config) -> dict[str, int | bool | str]:
    """The first config of a kernel that has the wanted values."""
    return next(c for c in kernel.configs(target.facts) if all(c[n] == v for n, v in wanted.items()))


def render(op: Operator, kernel: Kernel, target: Target, wanted: Config, dtype: str = "") -> Rendered:
    config = config_like(kernel, target, wanted)
    dtypes = {"T": dtype} if dtype else None
    return Renderer([TEMPLATES]).render(op, candidate_for(op, kernel, config, target, None, dtypes), target)


@pytest.mark.parametrize(("op", "kernel"), OURS, ids=IDS)
@pytest.mark.parametrize("target", ["cuda-sm_80", "cuda-sm_90a", "cuda-sm_120"])
def test_configs_to_try_first_exist_and_render(op: Operator, kernel: Kernel, target: str) -> None:
    facts = TARGET[target].facts
    configs = list(kernel.configs(facts))
    assert 1 <= len(configs) <= 24
    if target == HOPPER.name:
        for wanted in kernel.order:
            assert any(all(c[n] == v for n, v in wanted.items()) for c in configs), wanted
    for dtypes in op.dtype_choices(kernel):
        source = render(op, kernel, TARGET[target], configs[0], dtypes["T"]).source
        assert 'extern "C"' in source


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize(("op", "kernel"), OURS, ids=IDS)
def test_kernels_compile_for_hopper_without_spills(op: Operator, kernel: Kernel, tmp_path: Path) -> None:
    first = kernel.order[0] if kernel.order else {}
    (tmp_path / "candidate.cu").write_text(render(op, kernel, HOPPER, first, op.dtype_choices(kernel)[-1]["T"]).source)
    command = ["nvcc", "-std=c++17", "-O3", *code_flags(HOPPER), "-Xptxas", "-v", "-diag-suppress", "177"]
    done = subprocess.run(
        [*command, "-c", "candidate.cu", "-o", "candidate.o"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    assert done.stderr.count("spill stores") == done.stderr.count(" 0 bytes spill stores") > 0, done.stderr


# -- on the host -----------------------------------------------------------------------------------------------------


def build_for_host(folder: Path, rendered: Rendered, change: Callable[[str], str] = lambda s: s) -> Path:
    """Compile a rendered kernel and its check with the host's compiler; `change` alters the source first."""
    source = change(rendered.source).replace(
        "extern __shared__ __align__(128) unsigned char shared[];",
        "unsigned char* const shared = host::shared_memory();",
    )
    (folder / "check.cpp").write_text(source + (HOST / "check_gemm.cpp").read_text())
    names = {"LAUNCH": f"{rendered.symbol}_launch", "WORKSPACE": f"{rendered.symbol}_workspace"}
    names |= {"ELEMENT": ELEMENTS[rendered.candidate.dtypes["T"]]}
    names |= {"BATCHED": str(int(rendered.candidate.operator == "batched_gemm"))}
    defines = [f"-D{k}={v}" for k, v in names.items()]
    command = ["g++", "-std=c++17", "-O1", "-w", "-I", str(HOST), "-include", str(HOST / "matrix.h"), *defines]
    done = subprocess.run(
        [*command, "check.cpp", "-o", "check"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder / "check"


def run_check(program: Path, batch: int, shape: tuple[int, int, int], strides: tuple[int, ...], epilogue: bool) -> str:
    """What the check printed; strides are of a, b and out. Empty when every element was right."""
    numbers = [batch, *shape, *strides, *([int(epilogue)] * 3)]
    done = subprocess.run([str(program), *map(str, numbers)], capture_output=True, text=True, check=False, timeout=120)
    return "" if done.returncode == 0 else done.stdout + done.stderr + f"exit {done.returncode}"


def by_columns(m: int, n: int, k: int) -> tuple[int, ...]:
    """Strides with K contiguous in both factors, and padded."""
    del m
    row = -(-k // 8) * 8 + 8
    return (row, 1, 1, row, n + 1, 1)


def by_rows(m: int, n: int, k: int) -> tuple[int, ...]:
    """Strides with a and b stored by rows, out by columns."""
    return (-(-k // 8) * 8, 1, -(-n // 8) * 8, 1, 1, m)


EDGES = ((70, 90, 333), (5, 7, 16))
CASES: tuple[tuple[str, str, str, Config, tuple[tuple[int, int, int], ...]], ...] = (
    ("gemm", "cuda_gemv", "bf16", {"WN": 2, "STAGES": 4}, ((1, 200, 520), (3, 65, 777))),
    ("gemm", "cuda_gemv", "f32", {"WN": 4, "SPLIT": 2}, ((1, 200, 520),)),
    ("gemm", "cuda_skinny", "bf16", {"MROWS": 16, "NT": 2, "SPLIT": 2}, ((16, 200, 520), (11, 65, 777), (20, 64, 256))),
    ("gemm", "cuda_skinny", "f16", {"MROWS": 8, "NT": 1}, ((8, 100, 264), (3, 65, 777))),
    ("gemm", "cuda_skinny", "f32", {"MROWS": 16, "NT": 2, "SPLIT": 4}, ((16, 200, 520), (3, 8, 16))),
    ("gemm", "cuda_mma", "bf16", {"BM": 64, "BN": 64, "SPLIT": 2, "REDUCE": "cluster"}, (*EDGES, (600, 40, 64))),
    ("gemm", "cuda_mma", "f16", {"BM": 64, "BN": 128, "SPLIT": 2, "REDUCE": "workspace"}, EDGES),
    ("gemm", "cuda_mma_kn", "bf16", {"BM": 64, "BN": 64, "SPLIT": 1}, EDGES),
    ("gemm", "cuda_tf32", "f32", {"BM": 64, "BN": 64, "SPLIT": 4, "REDUCE": "cluster"}, EDGES),
    ("gemm", "cuda_simt", "f32", {"BM": 128, "BN": 128, "SPLIT": 1}, EDGES),
    ("gemm", "cuda_simt", "f32", {"BM": 32, "BN": 64, "SPLIT": 4}, EDGES),
    ("gemm", "cuda_simt_kn", "f32", {"BM": 64, "BN": 128, "SPLIT": 2}, EDGES),
    ("batched_gemm", "cuda_mma", "bf16", {"BM": 64, "BN": 64}, EDGES),
    ("batched_gemm", "cuda_mma_kn", "f16", {"BM": 128, "BN": 64}, EDGES),
    ("batched_gemm", "cuda_simt_kn", "f32", {"BM": 64, "BN": 64}, EDGES),
)


@pytest.mark.parametrize(("operator", "name", "dtype", "wanted", "shapes"), CASES)
def test_kernels_are_right_on_the_host(
    operator: str, name: str, dtype: str, wanted: Config, shapes: tuple[tuple[int, int, int], ...], tmp_path: Path
) -> None:
    op = OPERATORS[operator]
    program = build_for_host(tmp_path, render(op, op.kernel(name), HOPPER, wanted, dtype))
    batch = 2 if operator == "batched_gemm" else 1
    for shape in shapes:
        strides = by_rows(*shape) if name.endswith("_kn") else by_columns(*shape)
        assert run_check(program, batch, shape, strides, epilogue=batch == 1) == ""


@pytest.mark.parametrize("operator", ["gemm", "batched_gemm"])
def test_generic_kernels_take_any_strides_on_the_host(operator: str, tmp_path: Path) -> None:
    op = OPERATORS[operator]
    batch = 2 if operator == "batched_gemm" else 1
    program = build_for_host(tmp_path, render(op, op.kernel("cuda_generic"), HOPPER, {}, "bf16"))
    for shape, strides in (
        ((3, 70, 33), (33, 1, 1, 33, 70, 1)),
        ((65, 130, 40), (1, 65, 130, 1, 1, 65)),
        ((5, 6, 9), (0, 2, -6, -1, -6, -1)),  # broadcast and reversed
        ((5, 6, 0), (1, 1, 6, 1, 6, 1)),
    ):
        assert run_check(program, batch, shape, strides, epilogue=batch == 1) == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    wait_copies<STAGES - 2>();\n    __syncthreads();", "    wait_copies<STAGES - 2>();"),
        ("wait_copies<STAGES - 2>();", "wait_copies<STAGES - 1>();"),
        ("lane / 8 % 2), b[j]", "lane / 16), b[j]"),
        ("row + 8, column", "row + 4, column"),
        ("  arrive_at_cluster();\n  wait_for_cluster();\n  const float", "  const float"),
    ],
)
def test_the_host_notices_faults(old: str, new: str, tmp_path: Path) -> None:
    def change(source: str) -> str:
        assert source.count(old) == 1
        return source.replace(old, new)

    op = OPERATORS["gemm"]
    wanted: Config = {"BM": 64, "BN": 64, "SPLIT": 2, "REDUCE": "cluster"}
    program = build_for_host(tmp_path, render(op, op.kernel("cuda_mma"), HOPPER, wanted, "bf16"), change)
    assert run_check(program, 1, (70, 90, 777), by_columns(70, 90, 777), epilogue=True) != ""
