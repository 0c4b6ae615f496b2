"""Matrix products of few rows on GPUs: right when run on the host, and laid evenly on multiprocessors."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from gemm_on_host import (
    BLACKWELL,
    HOPPER,
    OPERATORS,
    TARGET,
    build_for_host,
    by_columns,
    by_rows,
    render,
)
from gemm_on_host import run_check as run_on_host
from ptx import compiled

from aot_tune.render import Rendered
from aot_tune.spec import Config

pytestmark = pytest.mark.slow

GEMM = OPERATORS["gemm"]
THIN = [k for k in GEMM.kernels if k.template == "gemm/cuda/few_rows/even_shares.cu.j2"]
Shape = tuple[int, int, int]


def rendered(name: str, dtype: str, values: tuple[int, ...]) -> Rendered:
    """A config by its NT, WN, WK, SPLIT and AHEAD."""
    wanted: Config = dict(zip(("NT", "WN", "WK", "SPLIT", "AHEAD"), values, strict=True))
    return render(GEMM, GEMM.kernel(name), HOPPER, wanted, dtype)


def run_check(program: Path, name: str, shape: Shape, multiprocessors: int) -> str:
    """What was wrong with a product of that shape, with an epilogue and padded strides, copies being late or early."""
    strides = by_rows(*shape) if name.endswith("_kn") else by_columns(*shape)
    late, early = (run_on_host(program, 1, shape, strides, True, multiprocessors, haste) for haste in (False, True))
    return late + early


def test_every_config_exists_and_few_are_tried() -> None:
    assert [k.name for k in THIN] == ["cuda_thin_gemv", "cuda_thin", "cuda_thin_kn"]
    for kernel in THIN:
        configs = list(kernel.configs(BLACKWELL.facts))
        few = list(kernel.configs(HOPPER.facts))
        assert len(kernel.order) <= 10
        most = {"cuda_thin_gemv": 0, "cuda_thin": 3, "cuda_thin_kn": 4}[kernel.name]
        assert most == len(few) == sum(any(all(c[n] == v for n, v in w.items()) for c in few) for w in kernel.order[:5])
        for wanted in kernel.order:
            assert sum(all(c[n] == v for n, v in wanted.items()) for c in configs) == 1, wanted
        for name, target in TARGET.items():
            if name.startswith("cuda-sm"):
                small = target.facts["shared_bytes"] < HOPPER.facts["shared_bytes"] // 2
                rings = {c["RING"] for c in kernel.configs(target.facts)}
                assert rings == ({80 if small else 96} if most or name != HOPPER.name else set())


# -- laid on blocks --------------------------------------------------------------------------------------------------

MIDDLE, WIDE, WIDEST = (5, 2, 2, 8, 1), (5, 4, 1, 8, 1), (4, 8, 1, 8, 1)


def test_columns_are_shared_evenly(tmp_path: Path) -> None:
    """On an H200: nearly all of its 132 multiprocessors have a block of the same width, or two."""
    wanted = {1024: (64, 8), 3072: (48, 2), 3584: (56, 2), 4096: (64, 2), 6144: (48, 1), 8192: (64, 1)}
    program = build_for_host(tmp_path, rendered("cuda_thin", "bf16", MIDDLE), check="check_layout.cpp")
    numbers = [str(x) for n in wanted for x in (16, n, 4096, 132)]
    done = subprocess.run([str(program), *numbers], capture_output=True, text=True, check=True)
    for n, line in zip(wanted, done.stdout.splitlines(), strict=True):
        width, share, ring, blocks, _, _ = map(int, line.split())
        assert (width, share) == wanted[n]
        assert blocks / (132 * -(-blocks // 132)) > 0.87, (n, blocks)
        assert ring * width * 128 * MIDDLE[2] >= (32 if width == 8 else 48) * 1024, (n, ring)


# -- right on the host -----------------------------------------------------------------------------------------------

CASES: tuple[tuple[str, str, tuple[int, ...], tuple[tuple[Shape, int], ...]], ...] = (
    ("cuda_thin", "f16", MIDDLE, (((16, 200, 3000), 20), ((11, 65, 777), 16), ((20, 200, 256), 3))),
    ("cuda_thin_kn", "bf16", WIDE, (((16, 301, 2700), 16), ((9, 161, 1111), 1), ((2, 3, 0), 132))),
)


@pytest.mark.parametrize(("name", "dtype", "values", "calls"), CASES)
def test_products_are_right(
    name: str, dtype: str, values: tuple[int, ...], calls: tuple[tuple[Shape, int], ...], tmp_path: Path
) -> None:
    program = build_for_host(tmp_path, rendered(name, dtype, values))
    for shape, multiprocessors in calls:
        assert run_check(program, name, shape, multiprocessors) == "", shape


# -- compiled --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_sums_stay_in_registers(tmp_path: Path) -> None:
    """An array whose elements are not all known at compile time lies in memory, without counting as a spill."""
    _, said = compiled(rendered("cuda_thin_kn", "bf16", WIDEST).source, tmp_path)
    assert said.count("0 bytes stack frame") == said.count("stack frame") > 0, said
