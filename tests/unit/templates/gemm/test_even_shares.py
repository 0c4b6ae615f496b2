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
    compile_for_hopper,
    render,
)
from gemm_on_host import run_check as run_on_host
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ptx import faults, ptx_of

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

NARROW, MIDDLE, WIDE, WIDEST = (5, 1, 4, 8, 1), (5, 2, 2, 8, 1), (5, 4, 1, 8, 1), (4, 8, 1, 8, 1)
EIGHT = (1, 1, 8, 1, 1)


def layouts(folder: Path, values: tuple[int, ...], products: list[tuple[int, int, int, int]]) -> list[tuple[int, ...]]:
    """Columns, blocks that share K, stages, blocks, bytes of shared memory and their limit, of each (M, N, K, SMs)."""
    program = build_for_host(folder, rendered("cuda_thin", "bf16", values), check="check_layout.cpp")
    given_numbers = [str(x) for product in products for x in product]
    done = subprocess.run([str(program), *given_numbers], capture_output=True, text=True, check=True)
    return [tuple(map(int, line.split())) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (NARROW, {1024: (32, 4), 1280: (40, 4), 3072: (24, 1), 4096: (32, 1), 4608: (40, 1)}),
        (MIDDLE, {1024: (64, 8), 3072: (48, 2), 3584: (56, 2), 4096: (64, 2), 6144: (48, 1), 8192: (64, 1)}),
        (WIDE, {3584: (112, 4), 4096: (128, 4), 4608: (144, 4), 14336: (112, 1), 18944: (144, 1), 28672: (112, 1)}),
        (WIDEST, {4096: (256, 8), 14336: (224, 2), 28672: (224, 1)}),
        (EIGHT, {1024: (8, 1)}),
    ],
)
def test_columns_are_shared_evenly(
    values: tuple[int, ...], expected: dict[int, tuple[int, int]], tmp_path: Path
) -> None:
    """On an H200: nearly all of its 132 multiprocessors have a block of the same width, or two."""
    found = layouts(tmp_path, values, [(16, n, 4096, 132) for n in expected])
    assert {n: f[:2] for n, f in zip(expected, found, strict=True)} == expected
    for n, (width, _, ring, blocks, _, _) in zip(expected, found, strict=True):
        assert blocks / (132 * -(-blocks // 132)) > 0.87, (n, blocks)
        assert ring * width * 128 * values[2] >= (32 if width == 8 else 48) * 1024, (n, ring)


@pytest.mark.parametrize("values", [NARROW, WIDE, WIDEST, EIGHT, (2, 1, 8, 1, 1), (3, 1, 8, 1, 1), (3, 2, 4, 8, 1)])
def test_any_product_has_a_layout(values: tuple[int, ...], tmp_path: Path) -> None:
    nt, wn, wk, split, _ = values
    products = [
        (m, n, k, sms)
        for m in (1, 7, 16, 17, 64)
        for n in (1, 8, 9, 1000, 18944, 300_000)
        for k in (0, 1, 64, 4096, 70_000)
        for sms in (1, 7, 20, 132, 148)
    ]
    for product, found in zip(products, layouts(tmp_path, values, products), strict=True):
        m, n, k, sms = product
        width, parts, ring, blocks, shared, limit = found
        assert width in range(8, 8 * nt * wn + 1, 8), product
        assert parts == 1 or parts <= min(split, -(-k // (64 * wk))), product
        assert blocks == -(-n // width) * parts, product
        assert parts == 1 or blocks * -(-m // 16) <= sms, product
        assert 1 <= ring <= 8, product
        assert shared <= limit <= 113 * 1024, product


# -- right on the host -----------------------------------------------------------------------------------------------

CASES: tuple[tuple[str, str, tuple[int, ...], tuple[tuple[Shape, int], ...]], ...] = (
    ("cuda_thin_gemv", "bf16", (2, 1, 8, 1, 2), (((1, 200, 1520), 5), ((3, 65, 777), 132))),
    ("cuda_thin_gemv", "f16", (5, 1, 4, 1, 0), (((1, 201, 2520), 5), ((1, 1, 1), 132), ((2, 9, 0), 132))),
    ("cuda_thin", "bf16", MIDDLE, (((16, 200, 3000), 20), ((11, 65, 777), 16), ((20, 200, 256), 3))),
    ("cuda_thin", "f16", WIDE, (((16, 260, 2700), 16), ((9, 161, 1111), 1), ((33, 130, 200), 32))),
    ("cuda_thin", "bf16", (3, 2, 4, 8, 1), (((8, 90, 3000), 8), ((16, 47, 513), 4))),
    ("cuda_thin", "bf16", (3, 1, 8, 1, 1), (((16, 77, 1500), 3), ((9, 190, 2100), 8))),
    ("cuda_thin", "bf16", EIGHT, (((16, 77, 3001), 12), ((9, 30, 1500), 3), ((16, 1, 0), 132))),
    ("cuda_thin", "f16", (2, 1, 8, 1, 2), (((16, 77, 1500), 3), ((13, 33, 700), 4))),
    ("cuda_thin", "bf16", WIDEST, (((16, 500, 700), 16), ((5, 7, 16), 132))),
    ("cuda_thin_kn", "bf16", MIDDLE, (((16, 200, 3000), 20), ((1, 65, 777), 16), ((20, 203, 256), 3))),
    ("cuda_thin_kn", "f16", WIDE, (((16, 301, 2700), 16), ((9, 161, 1111), 1), ((2, 3, 0), 132))),
    ("cuda_thin_kn", "bf16", (5, 1, 4, 1, 1), (((13, 77, 1500), 7),)),
    ("cuda_thin_kn", "f16", EIGHT, (((16, 61, 3001), 12), ((3, 21, 700), 7))),
)


@pytest.mark.parametrize(("name", "dtype", "values", "calls"), CASES)
def test_products_are_right(
    name: str, dtype: str, values: tuple[int, ...], calls: tuple[tuple[Shape, int], ...], tmp_path: Path
) -> None:
    program = build_for_host(tmp_path, rendered(name, dtype, values))
    for shape, multiprocessors in calls:
        assert run_check(program, name, shape, multiprocessors) == "", shape


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: build_for_host(tmp_path_factory.mktemp(name), rendered(name, "bf16", NARROW))
        for name in ("cuda_thin", "cuda_thin_kn")
    }


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["cuda_thin", "cuda_thin_kn"]),
    shape=st.tuples(st.integers(1, 18), st.integers(1, 150), st.integers(0, 2000)),
    multiprocessors=st.integers(1, 40),
)
def test_any_product_is_right(programs: dict[str, Path], name: str, shape: Shape, multiprocessors: int) -> None:
    assert run_check(programs[name], name, shape, multiprocessors) == ""


FAULTS = (
    ("cuda_thin", "    wait_for_stage(layout.ring);\n", "    wait_for_stage(layout.ring + 1);\n"),
    (
        "cuda_thin",
        "    wait_for_stage(layout.ring);\n    wait_for_slice();",
        "    wait_for_stage(layout.ring);",
    ),
    ("cuda_thin", "      wait_for_slice();  // all have read it\n", ""),
    ("cuda_thin", "  wait_for_earlier_kernels();\n", ""),
    ("cuda_thin", "(end - from) / 8 * 16", "(end - from + 8) / 8 * 16"),
    ("cuda_thin", "    arrive_at_cluster();\n    wait_for_cluster();\n", ""),
    ("cuda_thin", "part = at.rank * WK + at.warp_k", "part = at.rank * WK"),
    ("cuda_thin", "(((lane / 8) ^ (lane % 8)) << 4)", "((lane / 8) << 4)"),
    ("cuda_thin", "(to ^ 64) + 4 * 128", "to + 4 * 128"),
    ("cuda_thin", "first ^ 32", "first + 32"),
    ("cuda_thin", "k + CHUNK <= depth", "true"),
    ("cuda_thin", "whole && has_all != 0", "whole"),
    ("cuda_thin", "column -= wraps ? columns : 0", "column -= 0"),
    ("cuda_thin", "finish_next(added[u])", "finish_next(added[0])"),
    ("cuda_thin_kn", "k + row + i * B_ROWS < depth ? valid : 0", "valid"),
    ("cuda_thin_kn", " && valid >= 16", ""),
    ("cuda_thin_kn", "static_cast<uint32_t>(32 * layout.pitch())", "static_cast<uint32_t>(16 * layout.pitch())"),
    ("cuda_thin_kn", "(beside < layout.width ? beside : layout.width) / 8", "layout.width / 8"),
)


# Of blocks with 8 columns, whose ring has the usual depth.
FAULTS_OF_EIGHT = (
    ("cuda_thin", "wait_copies<USUAL_STAGES - 1>()", "wait_copies<USUAL_STAGES>()"),
    ("cuda_thin", "sums[0][i][e] + sums[CHAINS - 1][i][e]", "sums[0][i][e]"),
    ("cuda_thin", "== end ? ring", "== end + stage_bytes ? ring"),
    ("cuda_thin_kn", "wait_copies<USUAL_STAGES - 1>()", "wait_copies<USUAL_STAGES>()"),
)


@pytest.mark.parametrize(
    ("values", "name", "old", "new"),
    [*((MIDDLE, *fault) for fault in FAULTS), *((EIGHT, *fault) for fault in FAULTS_OF_EIGHT)],
    ids=[str(i) for i in range(len(FAULTS) + len(FAULTS_OF_EIGHT))],
)
def test_the_host_notices_faults(values: tuple[int, ...], name: str, old: str, new: str, tmp_path: Path) -> None:
    def change(source: str) -> str:
        assert source.count(old) == 1, source.count(old)
        return source.replace(old, new)

    program = build_for_host(tmp_path, rendered(name, "bf16", values), change)
    columns = 203 if values == MIDDLE else 61
    # A part of a stage; whole stages, up to the end of B's memory; more stages than the ring has.
    assert any(run_check(program, name, (16, columns, k), 20) != "" for k in (1519, 1536, 3001))


# -- compiled --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize(("name", "values"), [("cuda_thin_gemv", (5, 1, 4, 1, 2)), ("cuda_thin_kn", WIDEST)])
def test_sums_stay_in_registers(name: str, values: tuple[int, ...], tmp_path: Path) -> None:
    """An array whose elements are not all known at compile time lies in memory, without counting as a spill."""
    said = compile_for_hopper(tmp_path, rendered(name, "bf16", values))
    assert said.count("0 bytes stack frame") == said.count("stack frame") > 0, said


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_what_is_added_is_read_after_earlier_kernels_have_ended(tmp_path: Path) -> None:
    """Plain loads, which the host cannot tell from others; early, and not as of what nobody writes."""
    source = rendered("cuda_thin", "bf16", EIGHT).source
    assert faults(ptx_of(source, tmp_path)) == []
    load = "    if (loaded.row < loaded.rows && at.n0 + loaded.column"
    wait = "  wait_knowing(copies.a, copies.b);\n"
    begin = source.index("  const int64_t i0 = at.m0")
    assert source.count(wait) == 1
    assert begin < source.index(load) < source.index("  float sums[CHAINS]")
    loads = source[begin : source.index("  float sums[CHAINS]")]
    assert faults(ptx_of(source.replace(loads, "").replace(wait, loads + wait), tmp_path)) != []
