"""CUDA row kernels: they render for every target, compile without spills, and are right when run on the host."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from places import GOLDEN as ALL_GOLDEN
from rows_on_host import ABSENT, HOPPER, KERNELS, OPERATORS, TARGET, build_for_host, check, config_like, render

from aot_tune.compile.cuda.gpu_targets import TARGETS, code_flags
from aot_tune.spec import Config, Kernel, Operator

pytestmark = pytest.mark.slow


GOLDEN = ALL_GOLDEN / "cuda" / "softmax_generic.cu"
IDS = [f"{op.name}-{kernel.name}" for op, kernel in KERNELS]
HOPPER_ON = ("cuda_flat", "cuda_rows_few")


@pytest.mark.parametrize(("op", "kernel"), KERNELS, ids=IDS)
def test_every_config_renders_for_every_target(op: Operator, kernel: Kernel) -> None:
    for target in (TARGET["cuda-sm_80"], HOPPER, TARGET["cuda-sm_120"]):
        configs = list(kernel.configs(target.facts))
        assert len(configs) <= 24
        assert bool(configs) == (kernel.name not in HOPPER_ON or target.level >= 90)
        for config in configs:
            for dtype in ("f32", "bf16", "f16"):
                assert 'extern "C"' in render(op, kernel, target, config, dtype).source
    for wanted in kernel.order:
        config_like(kernel, HOPPER, wanted)


@pytest.mark.parametrize(("op", "kernel"), KERNELS, ids=IDS)
def test_nothing_leaves_l2_first_on_hopper(op: Operator, kernel: Kernel) -> None:
    """What such loads and stores take depends on what ran before, so that no measurement tells it."""
    for config in kernel.configs(HOPPER.facts):
        source = render(op, kernel, HOPPER, config, "bf16").source
        assert not re.findall(r"(?<!=)= Cache::first|<Cache::first>|bytes\.L2::cache_hint", source)


@pytest.mark.parametrize("op", OPERATORS.values(), ids=OPERATORS)
def test_the_workload_is_small_enough_and_every_kernel_is_for_some_of_it(op: Operator) -> None:
    problems = op.workload_for("cuda")
    assert 20 <= len(problems) <= 60
    for problem in problems:
        assert op.compulsory_bytes(problem) <= 4 * 1.2e9
    for kernel in (k for k in op.kernels if k.backend == "nvcc" and not k.generic):
        meant = [p for p in problems if all(e.evaluate(op.facts(p)) for e in (*kernel.requires, *kernel.worthwhile))]
        assert meant, kernel.name


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize(("op", "kernel"), KERNELS, ids=IDS)
def test_kernels_compile_without_spills(op: Operator, kernel: Kernel, tmp_path: Path) -> None:
    target = HOPPER if kernel.name in HOPPER_ON else TARGET["cuda-sm_80"]
    source = render(op, kernel, target, kernel.order[0] if kernel.order else {}, "bf16").source
    (tmp_path / "candidate.cu").write_text(source)
    command = ["nvcc", "-std=c++17", "-O3", *code_flags(target), "-Xptxas", "-v", "-diag-suppress", "177"]
    done = subprocess.run(
        [*command, "-c", "candidate.cu", "-o", "candidate.o"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    assert done.stderr.count("spill stores") == done.stderr.count(" 0 bytes spill stores") > 0, done.stderr


def test_the_generic_softmax_in_full() -> None:
    rendered = render(OPERATORS["softmax"], OPERATORS["softmax"].kernel("cuda_generic"), TARGETS[0], {}, "bf16")
    source = rendered.source.replace(rendered.symbol, "SYMBOL")
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(source)
    assert source == GOLDEN.read_text()


# -- on the host -----------------------------------------------------------------------------------------------------


ROWS: tuple[tuple[str, Config], ...] = (
    ("bf16", {"VECTORS": 4, "RESIDENT": 0, "STREAM": True}),
    ("f32", {"VECTORS": 1, "RESIDENT": 0, "STREAM": False}),
    ("f16", {"VECTORS": 2, "RESIDENT": 1024}),
)


@pytest.mark.parametrize(("dtype", "config"), ROWS)
@pytest.mark.parametrize("name", ["softmax", "rms_norm", "layer_norm"])
def test_rows_in_registers_on_the_host(name: str, dtype: str, config: Config, tmp_path: Path) -> None:
    op = OPERATORS[name]
    call = build_for_host(tmp_path, render(op, op.kernel("cuda_rows"), HOPPER, config, dtype))
    for rows, width in ((1, 8), (70, 72), (37, 2056)):
        check(op, call, dtype, {"R": rows, "D": width})
    check(op, call, dtype, {"R": 13, "D": 1000}, strides={"x": (1024, 1), "out": (1008, 1)})
    check(op, call, dtype, {"R": 13, "D": 40}, special=True)
    check(op, call, dtype, {"R": 2, "D": 40008})  # more than the registers hold
    check(op, call, dtype, {"R": 4, "D": 40008}, special=True)  # the last row is finite
    check(op, call, dtype, {"R": 3, "D": 40008}, strides={"x": (40016, 1), "out": (40024, 1)})
    for absent in ABSENT[name]:
        for rows, width in ((5, 1032), (2, 40008)):
            check(op, call, dtype, {"R": rows, "D": width}, absent=absent)


@pytest.mark.parametrize(("dtype", "vectors"), [("bf16", 1), ("f32", 2), ("f16", 2)])
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_few_rows_on_the_host(name: str, dtype: str, vectors: int, tmp_path: Path) -> None:
    op = OPERATORS[name]
    call = build_for_host(tmp_path, render(op, op.kernel("cuda_rows_few"), HOPPER, {"VECTORS": vectors}, dtype))
    for rows, width in ((1, 8), (70, 72), (37, 2056), (2, 40008)):
        check(op, call, dtype, {"R": rows, "D": width})
    check(op, call, dtype, {"R": 13, "D": 40}, special=True)
    for absent in ABSENT[name]:
        check(op, call, dtype, {"R": 5, "D": 1032}, absent=absent)


@pytest.mark.parametrize("dtype", ["bf16", "f32", "f16"])
@pytest.mark.parametrize("op", OPERATORS.values(), ids=OPERATORS)
def test_generic_kernels_take_any_strides_on_the_host(op: Operator, dtype: str, tmp_path: Path) -> None:
    call = build_for_host(tmp_path, render(op, op.kernel("cuda_generic"), HOPPER, {}, dtype))
    first = op.tensors[0].name
    for rows, width in ((1, 1), (3, 1), (13, 37), (2, 5001)):
        check(op, call, dtype, {"R": rows, "D": width})
    for layout in ((1, 13), (-37, 1), (0, 1), (80, -2)):
        check(op, call, dtype, {"R": 13, "D": 37}, strides={first: layout, "out": (90, 2)})
    check(op, call, dtype, {"R": 13, "D": 37}, special=True)
    for absent in ABSENT.get(op.name, ()):
        check(op, call, dtype, {"R": 3, "D": 37}, absent=absent)


@pytest.mark.parametrize(
    ("name", "dtype", "config"),
    [
        ("cuda_split", "bf16", {"SPLIT": 16, "VECTORS": 4}),
        ("cuda_split", "f32", {"SPLIT": 4, "VECTORS": 2}),
    ],
)
def test_long_rows_on_the_host(name: str, dtype: str, config: Config, tmp_path: Path) -> None:
    op = OPERATORS["softmax"]
    call = build_for_host(tmp_path, render(op, op.kernel(name), HOPPER, config, dtype))
    for rows, width in ((2, 8), (3, 1032), (2, 40008)):
        check(op, call, dtype, {"R": rows, "D": width})
    check(op, call, dtype, {"R": 13, "D": 40}, special=True)


@pytest.mark.parametrize(
    ("dtype", "config"),
    [
        ("bf16", {"VECTORS": 4, "BLOCK": 128, "STREAM": True}),
        ("f32", {"VECTORS": 1, "BLOCK": 128, "STREAM": False}),
        ("f16", {"VECTORS": 2, "BLOCK": 256, "RESIDENT": 1536}),
    ],
)
def test_silu_mul_on_the_host(dtype: str, config: Config, tmp_path: Path) -> None:
    op = OPERATORS["silu_mul"]
    call = build_for_host(tmp_path, render(op, op.kernel("cuda_rows"), HOPPER, config, dtype))
    for rows, width in ((1, 8), (64, 2048), (5, 1032)):
        check(op, call, dtype, {"R": rows, "D": width})
    check(op, call, dtype, {"R": 3, "D": 7168}, strides={"gate": (14336, 1), "up": (14336, 1)})  # halves of one tensor
    check(op, call, dtype, {"R": 70, "D": 1432}, strides={"gate": (1440, 1)})
    check(op, call, dtype, {"R": 13, "D": 40}, special=True)


@pytest.mark.parametrize(
    ("kernel", "config", "old", "new"),
    [
        ("cuda_rows", {"VECTORS": 2}, "  __syncthreads();\n", ""),
        ("cuda_rows", {"VECTORS": 2}, "thread / 32 * (32 * V)", "thread / 32 * 32"),
        ("cuda_flat", {"CLUSTER": 2}, "rank * V * threads", "rank * threads"),
        ("cuda_flat", {"CLUSTER": 2}, "__byte_perm(words[i], 0, 0x3244)", "__byte_perm(words[i], 0, 0x1044)"),
        ("cuda_flat", {"CLUSTER": 2}, "rank * warps +", "warps +"),
    ],
)
def test_the_host_notices_faults(kernel: str, config: Config, old: str, new: str, tmp_path: Path) -> None:
    op = OPERATORS["softmax"]
    rendered = render(op, op.kernel(kernel), HOPPER, config, "bf16")
    assert rendered.source.count(old) == 1
    call = build_for_host(tmp_path, msgspec.structs.replace(rendered, source=rendered.source.replace(old, new)))
    with pytest.raises(AssertionError, match="out"):
        check(op, call, "bf16", {"R": 3, "D": 8200})
