"""Products of floats by three bf16 each: right when run on the host, as exact as products of floats are."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import wgmma_on_host as wgmma
from gemm_on_host import HOPPER, OPERATORS, TARGET, TEMPLATES, build_for_host, compile_for_hopper, render

from aot_tune.render import Rendered, Renderer, candidate_for
from aot_tune.spec import Config, Kernel, all_of, problem

pytestmark = pytest.mark.slow

GEMM = OPERATORS["gemm"]
KERNELS = [k for k in GEMM.kernels if k.template == "gemm/cuda/wgmma/bf16x6.cu.j2"]
Shape = tuple[int, int, int]


def rendered(name: str, values: tuple[int, ...]) -> Rendered:
    """A config by its GROUPS, WIDTH, SPLIT, EARLY and BLOCKS."""
    wanted: Config = dict(zip(("GROUPS", "WIDTH", "SPLIT", "EARLY", "BLOCKS"), values, strict=True))
    return render(GEMM, GEMM.kernel(name), HOPPER, wanted, "f32")


def for_host(text: str, faults: tuple[tuple[str, str], ...] = ()) -> str:
    """A source for the host, as those of cuda_wgmma."""
    return wgmma.for_host(text, faults).replace('#include "wgmma.h"', '#include "bf16x6.h"', 1)


WIDE, NARROW, SHARED = (2, 128, 1, 1, 1), (2, 112, 1, 1, 1), (2, 128, 2, 1, 1)
TWO, FOUR = (1, 64, 2, 1, 2), (1, 64, 4, 1, 2)
CASES: tuple[tuple[str, tuple[int, ...], tuple[Shape, ...]], ...] = (
    ("cuda_bf16x6", WIDE, ((130, 132, 324), (9, 260, 8))),
    ("cuda_bf16x6", SHARED, ((130, 132, 580), (200, 64, 64))),
    ("cuda_bf16x6", NARROW, ((140, 116, 1000), (70, 40, 4))),
    ("cuda_bf16x6_thin", TWO, ((33, 72, 1160), (64, 8, 136))),
    ("cuda_bf16x6_thin", FOUR, ((17, 36, 1160), (70, 132, 4))),
)


def test_there_are_kernels_of_the_template() -> None:
    assert KERNELS


@pytest.fixture(scope="module")
def program_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The program of a case, compiled once."""

    @functools.cache
    def build(case: int) -> Path:
        return build_for_host(tmp_path_factory.mktemp("case"), rendered(*CASES[case][:2]), for_host)

    return build


@pytest.mark.parametrize("case", range(len(CASES)))
def test_products_are_right(case: int, program_of: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    name, values, shapes = CASES[case]
    stages = wgmma.stages_of(rendered(name, values))
    assert max(k for _, _, k in shapes) > 64 * values[2] * stages, "no ring wraps"
    for shape in shapes:
        assert wgmma.run_check(program_of(case), shape) == "", shape
    monkeypatch.setenv("FINE", "ieee")
    assert wgmma.run_check(program_of(case), shapes[-1], epilogue=False) == ""


# -- as exact as floats ------------------------------------------------------------------------------------------------


def run_floats(program: Path, shape: Shape) -> str:
    """What was wrong with products of floats of all sizes, and of what is no number."""
    done = subprocess.run([str(program), *map(str, shape)], capture_output=True, text=True, check=False, timeout=120)
    return done.stdout + done.stderr + ("" if done.returncode == 0 else f"exit {done.returncode}")


INEXACT = (
    ("rows.low[0], high", "rows.low[1], high"),
    ("multiply_rows(sums, rows.low[k], high + 2 * k);", ";"),
    ("multiply_rows(sums, rows.high[k], low + 2 * k);", ";"),
    ("multiply_rows(sums, rows.middle[k], middle + 2 * k);", ";"),
    ("x_rest - rounded.x", "x_rest"),
    ("fabsf(sums[i]) < INFINITY ? sums[i] : 0.0f", "sums[i]"),
    ("total[i] += sums[i]", "total[i] = sums[i]"),
)


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exact")
    return build_for_host(
        folder, rendered("cuda_bf16x6_thin", TWO), lambda text: for_host(text, INEXACT), "check_floats.cpp"
    )


@pytest.mark.parametrize("fault", range(len(INEXACT) + 1))
def test_floats_are_exact(fault: int, exact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", str(fault))
    found = run_floats(exact, (40, 68, 200))
    assert (found != "") == (fault > 0), found


# -- phases, and others' memory ----------------------------------------------------------------------------------------

FAULTS = (
    ("wait_at(shared.split(set), (s / PLANES) & 1);", "wait_at(shared.split(set), (s / PLANES + 1) & 1);"),
    ("    if (s >= PLANES) wait_at(shared.multiplied(set), (s / PLANES - 1) & 1);\n", ""),
    ("    if (s >= STAGES) wait_at(shared.emptied(slot), (s / STAGES - 1) & 1);\n", ""),
    ("init_barrier(shared.emptied(slot), 4 * GROUPS + 4)", "init_barrier(shared.emptied(slot), 4 * GROUPS)"),
    ("init_barrier(shared.split(set), 4)", "init_barrier(shared.split(set), 3)"),
    ("2 * (COLUMNS_BYTES + maps.rows * 128);", "2 * (COLUMNS_BYTES + ROWS * 128);"),
    ("half * ROWS_BYTES, &maps.a", "0, &maps.a"),
    ("piece % 4 * 2, piece >= 4, swizzle", "piece % 4 * 2, false, 0"),
    ("far ? other : one", "one"),
    ("(piece ^ g) * 16", "piece * 16"),
    ("k / 2 * ROWS_BYTES", "0 * ROWS_BYTES"),
    ("  announce_to_cluster();  // others may send\n", ""),
    ("  wait_for_cluster();  // the rings of all blocks are empty\n", ""),
    ("ring + SUMS_BYTES;", "ring;"),
    ("  wait_for_earlier_kernels();\n", "  if (copies) wait_for_earlier_kernels();\n"),
)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # More stages of floats than split ones: those who split could run ahead.
    wanted: Config = {"GROUPS": 1, "WIDTH": 64, "SPLIT": 2, "EARLY": 1, "BLOCKS": 1}
    candidate = candidate_for(GEMM, GEMM.kernel("cuda_bf16x6_thin"), wanted, HOPPER, None, {"T": "f32"})
    source = Renderer([TEMPLATES]).render(GEMM, candidate, HOPPER)
    return build_for_host(tmp_path_factory.mktemp("faulty"), source, lambda text: for_host(text, FAULTS))


@pytest.mark.parametrize("fault", range(len(FAULTS) + 1))
def test_the_host_notices_faults(fault: int, faulty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", str(fault))
    found = wgmma.run_check(faulty, (48, 72, 2000)) or wgmma.run_check(faulty, (61, 40, 72), epilogue=False)
    assert (found != "") == (fault > 0)


# -- where it can ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_it_is_taken_for_ieee_alone(kernel: Kernel) -> None:
    for math, taken in (("ieee", True), ("tf32", False)):
        call = problem(M=64, N=512, K=512, dtypes={"T": "f32"}, order={"b": (1, 0)}, attributes={"math": math})
        assert all_of(kernel.requires, GEMM.facts(call)) == taken


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_every_config_fits(kernel: Kernel, tmp_path: Path) -> None:
    """Into shared memory and registers, that many blocks at a time; elsewhere there is none."""
    configs = list(kernel.configs(HOPPER.facts))
    assert len(configs) == len(kernel.order)
    assert not any(list(kernel.configs(t.facts)) for name, t in TARGET.items() if name != HOPPER.name)
    for config in configs:
        width, rows = int(config["WIDTH"]), 64 * int(config["GROUPS"])
        source = render(GEMM, kernel, HOPPER, config, "f32")
        stages = wgmma.stages_of(source)
        shared = stages * (rows + width) * 256 + 6 * width * 128 + (2 * stages + 5) * 8
        assert (shared + 1024) * int(config["BLOCKS"]) <= HOPPER.facts["shared_bytes"] + 1024, config
        assert 2 <= stages <= 16, config
        compile_for_hopper(tmp_path, source)  # with its assertions on registers and sums
