"""Variants that fill in: they get the calls that nothing that was measured takes, in front of the generic one."""

from __future__ import annotations

from types import ModuleType

import pytest
from odd_operators import TUNED


def picked(odd_ops: ModuleType, name: str, m: int, n: int, k: int) -> str:
    return str(odd_ops.explain(name, M=m, N=n, K=k)["variant"])


def test_what_only_the_generic_variant_would_take_gets_it(odd_ops: ModuleType) -> None:
    """By the nearest problem. Of those with few rows, the generic variant was the fastest."""
    wanted = {
        (64, 8, 8): "packed",
        (64, 8, 6): "small",
        (64, 101, 6): "plain",  # it does not take this one
        (8, 8, 8): "plain",  # preferred to another
        (8, 9, 6): "small",
        tuple(TUNED.dims.values()): "plain",  # was measured
    }
    assert {dims: picked(odd_ops, "by_nearest", *dims) for dims in wanted} == wanted
    told = odd_ops.explain("by_nearest", M=64, N=8, K=6)
    assert told["why"] == "first of the variants ranked for such calls whose guards hold"


@pytest.mark.parametrize(("generic", "preferred"), [(9, "plain"), (11, "packed")])
def test_a_generic_variant_that_is_expected_to_be_faster_than_others_stays(
    odd_ops: ModuleType, generic: int, preferred: str
) -> None:
    wanted = {
        (64, 8, 8): preferred,
        (64, 8, 6): "small",
        (64, 101, 6): "plain",
        (16, 8, 8): "small",  # the other one takes it, and is not meant for it
        tuple(TUNED.dims.values()): "plain",
    }
    assert {dims: picked(odd_ops, f"by_times_{generic}", *dims) for dims in wanted} == wanted
