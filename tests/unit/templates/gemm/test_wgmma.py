"""Matrix products of some rows on Hopper's matrix units: right when run on the host, and taken only where TMA can."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gemm_on_host import HOPPER, OPERATORS, TARGET, build_for_host, render
from gemm_on_host import run_check as run_on_host
from hypothesis import given, settings
from hypothesis import strategies as st
from wgmma_on_host import Shape, for_host, run_check, stages_of

from aot_tune.render import Rendered
from aot_tune.spec import Config, Kernel, all_of, problem

pytestmark = pytest.mark.slow

GEMM = OPERATORS["gemm"]
KERNELS = [k for k in GEMM.kernels if k.template == "gemm/cuda/wgmma/wgmma_few_rows.cu.j2"]
SHORT = [k.name for k in KERNELS if "f32" not in k.dtypes["T"]]
FLOATS = [k.name for k in KERNELS if k.name not in SHORT]


def rendered(name: str, dtype: str, values: tuple[int, ...]) -> Rendered:
    """A config by its WIDTH, SPLIT, EARLY, BLOCKS and LATE."""
    wanted: Config = dict(zip(("WIDTH", "SPLIT", "EARLY", "BLOCKS", "LATE"), values, strict=True))
    return render(GEMM, GEMM.kernel(name), HOPPER, wanted, dtype)


def test_there_are_kernels_of_the_template() -> None:
    assert SHORT
    assert FLOATS


# -- right on the host -----------------------------------------------------------------------------------------------

ONE, TWO, FOUR = (72, 1, 1, 2, False), (48, 2, 1, 2, False), (40, 4, 4, 1, False)
NARROW, EIGHT = (32, 2, 1, 2, False), (88, 8, 1, 2, True)
CASES: tuple[tuple[str, str, tuple[int, ...], tuple[Shape, ...]], ...] = (
    ("cuda_wgmma", "bf16", ONE, ((9, 80, 1000), (65, 8, 24), (100, 144, 72))),
    ("cuda_wgmma", "f16", TWO, ((64, 56, 1000), (16, 40, 8), (65, 48, 136))),
    ("cuda_wgmma", "bf16", FOUR, ((17, 48, 4616), (9, 120, 136), (200, 8, 320))),
    ("cuda_wgmma", "bf16", NARROW, ((64, 40, 1416), (9, 8, 72))),
    ("cuda_wgmma", "f16", EIGHT, ((16, 96, 3000), (64, 8, 136), (65, 184, 8))),
    ("cuda_wgmma_128", "bf16", (32, 2, 1, 1, False), ((100, 40, 1416), (200, 64, 64), (9, 8, 8))),
    ("cuda_wgmma_128", "f16", (88, 4, 1, 1, False), ((65, 96, 2000), (200, 88, 200))),
    ("cuda_wgmma_tf32", "f32", (32, 2, 1, 2, False), ((16, 68, 580), (2, 8, 4), (65, 28, 100))),
    ("cuda_wgmma_tf32", "f32", (64, 4, 1, 2, False), ((64, 132, 1100), (9, 4, 36))),
    ("cuda_wgmma_tf32_128", "f32", (120, 2, 1, 1, False), ((200, 124, 412), (100, 12, 64), (300, 8, 500))),
    ("cuda_wgmma_tf32_128", "f32", (144, 2, 1, 1, True), ((256, 148, 420), (65, 4, 36))),
)
TF32 = 7  # the first case of floats


@pytest.fixture(scope="module")
def program_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The program of a case, compiled once."""

    @functools.cache
    def build(case: int) -> Path:
        return build_for_host(tmp_path_factory.mktemp("case"), rendered(*CASES[case][:3]), for_host)

    return build


@pytest.mark.parametrize("case", range(len(CASES)))
def test_products_are_right(case: int, program_of: Callable[[int], Path]) -> None:
    name, dtype, values, shapes = CASES[case]
    stage = 32 if dtype == "f32" else 64
    assert max(k for _, _, k in shapes) > stage * values[1] * stages_of(rendered(name, dtype, values)), "no ring wraps"
    for shape in shapes:
        assert run_check(program_of(case), shape) == "", shape
    assert run_check(program_of(case), shapes[-1], epilogue=False) == ""


@settings(max_examples=12, deadline=None)
@given(
    case=st.sampled_from([1, 4, 6]),
    m=st.integers(1, 140),
    n=st.integers(1, 19),
    k=st.integers(1, 180),
    epilogue=st.booleans(),
)
def test_any_product_is_right(
    program_of: Callable[[int], Path], case: int, m: int, n: int, k: int, epilogue: bool
) -> None:
    assert run_check(program_of(case), (m, 8 * n, 8 * k), epilogue) == ""


@settings(max_examples=8, deadline=None)
@given(m=st.integers(1, 80), n=st.integers(1, 19), k=st.integers(1, 180), epilogue=st.booleans())
def test_any_product_of_floats_is_right(
    program_of: Callable[[int], Path], m: int, n: int, k: int, epilogue: bool
) -> None:
    assert run_check(program_of(TF32), (m, 4 * n, 4 * k), epilogue) == ""


def test_copies_round_floats(
    program_of: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The products would drop what is finer than TF32."""
    monkeypatch.setenv("FINE", "tf32")
    assert run_check(program_of(TF32), (16, 68, 100)) == ""

    def keep(text: str) -> str:
        assert text.count("TYPE_TFLOAT32") == 1
        return for_host(text).replace("TYPE_TFLOAT32", "TYPE_FLOAT32")

    assert run_check(build_for_host(tmp_path, rendered(*CASES[TF32][:3]), keep), (16, 68, 100)) != ""


FAULTS = (
    # phases
    ("(s / STAGES) & 1);", "(s / STAGES + 1) & 1);"),
    ("(s / STAGES - 1) & 1);", "(s / STAGES) & 1);"),
    ("init_barrier(shared.emptied(slot), 4 * GROUPS)", "init_barrier(shared.emptied(slot), 4 * GROUPS - 1)"),
    ("COLUMNS_BYTES + maps.rows * 128;", "COLUMNS_BYTES + ROWS * 128;"),
    ("(SPLIT - 1) * (SUMS_BYTES / SPLIT)", "SPLIT * (SUMS_BYTES / SPLIT)"),
    ("    publish_barriers();\n", ""),
    ("  __syncthreads();\n", ""),
    # products
    (
        "    if (s > 0 && threadIdx.x % 32 == 0) arrive_at(shared.emptied((s - 1) % STAGES));\n",
        "    if (threadIdx.x % 32 == 0) arrive_at(shared.emptied(slot));\n",
    ),
    ("    begin_products(sums);\n", ""),
    ("    wait_for_products<1>(sums);\n", ""),
    ("wait_for_products<1>(sums);", "wait_for_products<2>(sums);"),
    ("  wait_for_products<0>(sums);\n", ""),
    ("columns + 2 * k", "columns + 2 * (k ^ 1)"),
    ("uint64_t{1024 / 16} << 32", "uint64_t{1152 / 16} << 32"),
    ("k = (at.begin + s) * CHUNK;", "k = s * CHUNK;"),
    # sums
    ("  wait_for_group(THREADS);  // the ring is empty\n", ""),
    ("  publish_stores();\n", ""),
    ("  publish_stores();\n  wait_for_group(THREADS);\n", "  publish_stores();\n"),
    ("  wait_for_cluster();  // all blocks run\n", ""),
    ("to + 8 * PITCH + 8 * i", "to + 8 * WIDTH + 8 * i"),
    ("mine + row * PITCH", "mine + row * WIDTH"),
    ("base + to * part", "base + at.rank * part"),
    ("shared.parts() + at.rank * part", "shared.parts() + (SPLIT - 1 - at.rank) * part"),
    ("mine + (at.rank * OWN + row) * PITCH", "mine + row * PITCH"),
    ("sent + p * OWN * PITCH", "sent + (SPLIT - 1 - p) * OWN * PITCH"),
    ("  wait_for_sent(shared.told(), 0);\n", ""),
    (
        "  wait_for_sent(shared.told(), 0);\n  __syncwarp();\n  announce_to_cluster();",
        "  announce_to_cluster();\n  wait_for_sent(shared.told(), 0);",
    ),
    # others' memory and kernels
    ("exists[u] = row < OWN && i < args.dim_M", "exists[u] = row < OWN && i <= args.dim_M"),
    ("&& j < args.dim_N;", "&& j <= args.dim_N;"),
    ("if (n < args.dim_N) prefetch_bytes", "prefetch_bytes"),
    ("  wait_for_earlier_kernels();\n", ""),
    ("  wait_for_earlier_kernels();\n", "  if (copies) wait_for_earlier_kernels();\n"),
)


FAULTS_OF_PAIRS = (
    ("init_barrier(shared.emptied(slot), 8 * GROUPS)", "init_barrier(shared.emptied(slot), 4 * GROUPS)"),
    ("      arrive_at_other(shared.emptied((s - 1) % STAGES), at.other());\n", ""),
    ("s > 0 && s - 1 + STAGES < at.count && ", "s > 0 && "),
    ("s > 0 && s - 1 + STAGES < at.count && ", "s > 0 && s + STAGES < at.count && "),
    ("return (1 - half) * SPLIT + rank;", "return half * SPLIT + rank;"),
    ("return (1 - half) * SPLIT + rank;", "return (1 - half) * SPLIT + 1 - rank;"),
    ("if (s % 2 == at.half) {", "{"),
    ("if (s % 2 == at.half) {", "if (s % 2 == 0) {"),
    ("(1u << SPLIT | 1u) << at.rank", "1u << at.rank"),
    ("(1u << SPLIT | 1u) << at.rank", "3u << at.rank"),
    ("(static_cast<int>(blockIdx.y) * 2 + half) * ROWS", "static_cast<int>(blockIdx.y) * 2 * ROWS"),
    ("half = block / SPLIT % 2;", "half = block % 2;"),
    ("at.half * SPLIT + to);", "to);"),
    ("  wait_for_cluster();\n  wait_for_earlier_kernels();\n", "  wait_for_earlier_kernels();\n"),
)

FAULTS_OF_LATE_SUMS = (
    ("  wait_for_cluster();  // the rings of all blocks are empty\n", ""),
    ("shared.parts() + (at.rank - (at.rank > to)) * part", "shared.parts() + at.rank * part"),
    ("sent + (p - (p > at.rank)) * OWN", "sent + p * OWN"),
    ("PARTS_AT = SUMS_BYTES;", "PARTS_AT = SUMS_BYTES / 2;"),
    ("PARTS_AT = SUMS_BYTES;", "PARTS_AT = RING_BYTES;"),
)


SETS = {  # a config and its faults; stages that fill the ring twice over, and fewer than blocks share them
    "any": ("cuda_wgmma", "bf16", TWO, FAULTS, ((48, 56, 2000), (61, 40, 64))),
    "pairs": ("cuda_wgmma_tf32_128", "f32", (120, 2, 1, 1, False), FAULTS_OF_PAIRS, ((200, 124, 800), (70, 20, 36))),
    "late sums": ("cuda_wgmma", "bf16", (48, 4, 1, 1, True), FAULTS_OF_LATE_SUMS, ((48, 56, 4504), (61, 40, 64))),
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The program of a set of faults, compiled once."""

    @functools.cache
    def build(name: str) -> Path:
        kernel, dtype, values, faults, _ = SETS[name]
        folder = tmp_path_factory.mktemp("faulty")
        return build_for_host(folder, rendered(kernel, dtype, values), lambda text: for_host(text, faults))

    return build


@pytest.mark.parametrize(("name", "fault"), [(name, i) for name, s in SETS.items() for i in range(len(s[3]) + 1)])
def test_the_host_notices_faults(
    name: str, fault: int, faulty: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", str(fault))
    large, small = SETS[name][4]
    found = run_check(faulty(name), large) or run_check(faulty(name), small, epilogue=False)
    assert (found != "") == (fault > 0)


# -- where TMA can ---------------------------------------------------------------------------------------------------


def is_taken(name: str, m: int = 64, n: int = 512, k: int = 512, **given_facts: Any) -> bool:
    given_facts.setdefault("order", {"b": (1, 0)})
    floats = name in FLOATS
    given_facts.setdefault("attributes", {"math": "tf32"} if floats else {})
    call = problem(M=m, N=n, K=k, dtypes={"T": "f32" if floats else "bf16"}, **given_facts)
    return all_of(GEMM.kernel(name).requires, GEMM.facts(call))


BOTH = ("bias", "residual")


@pytest.mark.parametrize(
    "given_facts",
    [
        {},
        {"m": 1},
        {"n": 8},
        {"k": 8},
        {"m": 2**20 - 1},
        {"n": 2**27 - 8},
        {"strides": {"a": (520, 1), "b": (1, 528), "out": (1024, 1)}},
        {"present": BOTH},
        {"present": BOTH, "strides": {"residual": (516, 1)}, "alignment": {"bias": 8, "residual": 8}},
        {"present": BOTH, "strides": {"residual": (0, 1)}},
    ],
    ids=str,
)
def test_what_tma_can_read_is_taken(given_facts: dict[str, Any]) -> None:
    assert all(is_taken(name, **given_facts) for name in SHORT)


@pytest.mark.parametrize(
    "given_facts",
    [
        {},
        {"m": 1},
        {"n": 4},
        {"k": 4},
        {"m": 2**20 - 1},
        {"n": 2**27 - 4},
        {"n": 508, "k": 500},
        {"strides": {"a": (516, 1), "b": (1, 524), "out": (1028, 1)}},
        {"present": BOTH, "strides": {"residual": (516, 1)}, "alignment": {"bias": 16, "residual": 16}},
        {"present": BOTH, "strides": {"residual": (0, 1)}},
    ],
    ids=str,
)
def test_floats_that_tma_can_read_are_taken(given_facts: dict[str, Any]) -> None:
    assert all(is_taken(name, **given_facts) for name in FLOATS)


@pytest.mark.parametrize(
    "given_facts",
    [
        {"n": 508, "strides": {"b": (1, 512), "out": (512, 1)}},
        {"k": 508, "strides": {"a": (512, 1), "b": (1, 512)}},
        {"k": 0},
        {"m": 2**20},
        {"n": 2**27},
        {"k": 2**31},
        {"order": {}},
        {"order": {"a": (1, 0), "b": (1, 0)}},
        *({"strides": {t: s}} for t in ("a", "out") for s in ((516, 1), (0, 1), (-512, 1), (1024, 2))),
        *({"strides": {"b": s}} for s in ((1, 516), (1, 0), (1, -512), (2, 1024), (512, 1))),
        *({"alignment": {t: 8}} for t in ("a", "b", "out")),
        *({"present": (t,), "alignment": {t: 4}} for t in ("bias", "residual")),
        {"present": ("bias",), "strides": {"bias": (2,)}},
        *({"present": ("residual",), "strides": {"residual": s}} for s in ((514, 1), (1, 64), (1024, 2))),
    ],
    ids=str,
)
def test_what_tma_cannot_read_is_not_taken(given_facts: dict[str, Any]) -> None:
    assert not any(is_taken(name, **given_facts) for name in SHORT)


@pytest.mark.parametrize(
    "given_facts",
    [
        {"attributes": {}},
        {"n": 510, "strides": {"b": (1, 512), "out": (512, 1)}},
        {"k": 510, "strides": {"a": (512, 1), "b": (1, 512)}},
        {"k": 0},
        {"m": 2**20},
        {"n": 2**27},
        {"k": 2**31},
        {"order": {}},
        *({"strides": {t: s}} for t in ("a", "out") for s in ((514, 1), (0, 1), (-512, 1), (1024, 2))),
        *({"strides": {"b": s}} for s in ((1, 514), (1, 0), (1, 2**38), (2, 1024), (512, 1))),
        *({"alignment": {t: 8}} for t in ("a", "b", "out")),
        *({"present": (t,), "alignment": {t: 8}} for t in ("bias", "residual")),
        {"present": ("bias",), "strides": {"bias": (2,)}},
        *({"present": ("residual",), "strides": {"residual": s}} for s in ((514, 1), (1, 64), (1024, 2))),
    ],
    ids=str,
)
def test_floats_that_tma_cannot_read_are_not_taken(given_facts: dict[str, Any]) -> None:
    assert not any(is_taken(name, **given_facts) for name in FLOATS)


def test_a_matrix_that_the_driver_refuses_is_an_error(program_of: Callable[[int], Path]) -> None:
    m, n, k = 9, 8, 24
    for a, b in ((k + 4, k), (k, k + 4), (2**39, k)):
        assert run_on_host(program_of(0), 1, (1 if a > 2**30 else m, n, k), (a, 1, 1, b, n, 1), True) == "exit 2", (
            a,
            b,
        )
    for a, b in ((k + 2, k), (k, k + 2), (2**38, k)):
        assert run_on_host(program_of(TF32), 1, (1 if a > 2**30 else m, n, k), (a, 1, 1, b, n, 1), True) == "exit 2"


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_every_config_fits(kernel: Kernel) -> None:
    """Into shared memory, that many blocks at a time; and the largest products that are taken into a grid."""
    configs = list(kernel.configs(HOPPER.facts))
    assert len(configs) == len(kernel.order)
    assert not any(list(kernel.configs(t.facts)) for name, t in TARGET.items() if name != HOPPER.name)
    for config in configs:
        width, split, rows = int(config["WIDTH"]), int(config["SPLIT"]), 64 * int(config["GROUPS"])
        stages = stages_of(render(GEMM, kernel, HOPPER, config, kernel.dtypes["T"][0]))
        pitch = width + 8 * (width % 16 == 0)
        ring, sums, late = stages * (rows + width) * 128, rows * pitch * 4, bool(config["LATE"])
        shared = ring + (split > 1 and not late) * sums
        shared += (2 * stages + 1) * 8
        assert (shared + 1024) * int(config["BLOCKS"]) <= HOPPER.facts["shared_bytes"] + 1024, config
        assert 2 <= stages <= 16, config
        assert sums + late * (sums - sums // split) <= ring, config
        cluster = split * (1 + bool(config["PAIR"]))
        assert cluster <= 8, config
        assert (2**27 // width + 1) * cluster < 2**31, config
        assert 2**20 // rows < 2**16, config
