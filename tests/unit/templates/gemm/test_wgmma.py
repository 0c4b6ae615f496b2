"""Products on Hopper's matrix units: taken only where TMA can, and they fit. Whether they are right a GPU says."""

from __future__ import annotations

from typing import Any

import pytest
from gemm_on_host import HOPPER, OPERATORS, TARGET, render, stages_of

from aot_tune.spec import Kernel, all_of, problem

pytestmark = pytest.mark.slow

GEMM = OPERATORS["gemm"]
KERNELS = [k for k in GEMM.kernels if k.template == "gemm/cuda/wgmma/wgmma_few_rows.cu.j2"]
SHORT = [k.name for k in KERNELS if "f32" not in k.dtypes["T"]]
FLOATS = [k.name for k in KERNELS if k.name not in SHORT]


def is_taken(name: str, m: int = 64, n: int = 512, k: int = 512, **given_facts: Any) -> bool:
    given_facts.setdefault("order", {"b": (1, 0)})
    floats = name in FLOATS
    given_facts.setdefault("attributes", {"math": "tf32"} if floats else {})
    call = problem(M=m, N=n, K=k, dtypes={"T": "f32" if floats else "bf16"}, **given_facts)
    return all_of(GEMM.kernel(name).requires, GEMM.facts(call))


BOTH = ("bias", "residual")


def facts_of(piece: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Calls that TMA can read and others, where 16 bytes are `piece` elements."""
    off, behind = 512 - piece // 2, (512, 1)
    read: list[dict[str, Any]] = [
        {},
        {"m": 1},
        {"n": piece},
        {"k": piece},
        {"m": 2**20 - 1},
        {"n": 2**27 - piece},
        {"strides": {"a": (512 + piece, 1), "b": (1, 512 + 2 * piece), "out": (1024 + piece, 1)}},
        {"present": BOTH},
        {"present": BOTH, "strides": {"residual": (516, 1)}, "alignment": dict.fromkeys(BOTH, 32 // piece * 2)},
        {"present": BOTH, "strides": {"residual": (0, 1)}},
    ]
    other: list[dict[str, Any]] = [
        {"n": off, "strides": {"b": (1, 512), "out": behind}},
        {"k": off, "strides": {"a": behind, "b": (1, 512)}},
        {"k": 0},
        {"m": 2**20},
        {"n": 2**27},
        {"k": 2**31},
        {"order": {}},
        {"order": {"a": (1, 0), "b": (1, 0)}},
        *({"strides": {t: s}} for t in ("a", "out") for s in ((512 + piece // 2, 1), (0, 1), (-512, 1), (1024, 2))),
        *({"strides": {"b": s}} for s in ((1, 512 + piece // 2), (1, 0), (1, -512), (1, 2**39), (2, 1024), behind)),
        *({"alignment": {t: 8}} for t in ("a", "b", "out")),
        *({"present": (t,), "alignment": {t: 4}} for t in BOTH),
        {"present": ("bias",), "strides": {"bias": (2,)}},
        *({"present": ("residual",), "strides": {"residual": s}} for s in ((514, 1), (1, 64), (1024, 2))),
    ]
    return read, other


@pytest.mark.parametrize(("names", "piece"), [(SHORT, 8), (FLOATS, 4)], ids=["16 bits", "floats"])
def test_what_tma_can_read_is_taken_and_nothing_else(names: list[str], piece: int) -> None:
    assert names
    read, other = facts_of(piece)
    for name in names:
        assert [one for one in read if not is_taken(name, **one)] == []
        assert [one for one in other if is_taken(name, **one)] == []
    assert not any(is_taken(name, attributes={}) for name in FLOATS)


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


BF16X6 = [k for k in GEMM.kernels if k.template == "gemm/cuda/wgmma/bf16x6.cu.j2"]


@pytest.mark.parametrize("kernel", BF16X6, ids=lambda k: k.name)
def test_products_of_floats_by_three_bf16_are_for_ieee_alone_and_fit(kernel: Kernel) -> None:
    """Into shared memory, that many blocks at a time; elsewhere there is none."""
    for math, taken in (("ieee", True), ("tf32", False)):
        call = problem(M=64, N=512, K=512, dtypes={"T": "f32"}, order={"b": (1, 0)}, attributes={"math": math})
        assert all_of(kernel.requires, GEMM.facts(call)) == taken
    configs = list(kernel.configs(HOPPER.facts))
    assert len(configs) == len(kernel.order)
    assert not any(list(kernel.configs(t.facts)) for name, t in TARGET.items() if name != HOPPER.name)
    for config in configs:
        width, rows = int(config["WIDTH"]), 64 * int(config["GROUPS"])
        stages = stages_of(render(GEMM, kernel, HOPPER, config, "f32"))
        shared = stages * (rows + width) * 256 + 6 * width * 128 + (2 * stages + 5) * 8
        assert (shared + 1024) * int(config["BLOCKS"]) <= HOPPER.facts["shared_bytes"] + 1024, config
        assert 2 <= stages <= 16, config
