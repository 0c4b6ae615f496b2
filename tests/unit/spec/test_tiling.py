"""Tiles: what a kernel says of its blocks, for each config."""

from __future__ import annotations

import pytest

from aot_tune.spec import Kernel, Parameter, Tiling, parameter
from aot_tune.support.errors import SpecError


def kernel(**declared: object) -> Kernel:
    parameters = (Parameter("BM", (64, 0)), Parameter("CM", (2, 1)), Parameter("WHO", ("first", "second")))
    return Kernel("k", "gemm/k.cu.j2", backend="nvcc", parameters=parameters, **declared)  # type: ignore[arg-type]


def test_a_tile_follows_from_the_config() -> None:
    one = kernel(
        tile={"M": 2 * parameter("BM"), "N": 32},
        split=parameter("WHO") + 1,
        cluster={"M": parameter("CM"), "N": 1},
        occupancy=2,
    )
    found = one.tiling({"BM": 64, "CM": 2, "WHO": "second"})
    assert found == Tiling({"M": 128, "N": 32}, split=2, cluster={"M": 2}, occupancy=2)
    assert one.tiling({"BM": 64, "CM": 1, "WHO": "first"}) == Tiling({"M": 128, "N": 32}, occupancy=2)


def test_a_kernel_need_not_say_and_a_tile_may_be_a_function() -> None:
    assert kernel().tiling({"BM": 64, "CM": 2, "WHO": "first"}) is None
    one = kernel(tile=lambda config: {"M": 7} if config["WHO"] == "first" else None)
    assert one.tiling({"BM": 64, "CM": 2, "WHO": "first"}) == Tiling({"M": 7})
    assert one.tiling({"BM": 64, "CM": 2, "WHO": "second"}) is None


def test_nothing_of_it_is_below_1_and_expressions_are_over_parameters() -> None:
    for declared, what in (
        ({"tile": {"M": parameter("BM")}}, "M = 0"),
        ({"tile": {"M": 1}, "split": parameter("BM")}, "split = 0"),
        ({"tile": {"M": 1}, "cluster": {"M": parameter("BM")}}, "a cluster along M = 0"),
        ({"tile": {"M": 1}, "occupancy": parameter("BM")}, "occupancy = 0"),
    ):
        with pytest.raises(SpecError, match=what):
            kernel(**declared).tiling({"BM": 0, "CM": 1, "WHO": "first"})
    for where in ("tile", "cluster"):
        with pytest.raises(SpecError, match=r"uses 'parameter\.BN'") as told:
            kernel(**{"tile": {"M": 1}, where: {"M": parameter("BN")}})
        assert "BM" in str(told.value)
