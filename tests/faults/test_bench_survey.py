"""Surveys: times on shapes without reference results, and candidates that go wrong there."""

from __future__ import annotations

from compiled import Bed


def test_candidates_are_timed_and_agree(bed: Bed) -> None:
    good, again = bed.survey("good", "uses_openmp", R=33, D=129)
    assert (good.status, again.status) == ("ok", "ok"), (good.reason, again.reason)
    assert good.ns is not None
    assert again.ns is not None
    assert min(good.ns, again.ns) > 0
    assert good.problem.dims == {"R": 33, "D": 129}


def test_what_goes_wrong_costs_itself_alone(bed: Bed) -> None:
    names = ("good", "half", "segfault", "refuses", "good")
    found = bed.survey(*names, R=40, D=40)
    assert [m.status for m in found] == ["ok", "wrong-result", "crashed", "failed", "ok"], [m.reason for m in found]
    assert "is off by nan" in found[1].reason
    assert [m.status for m in bed.survey("good", R=41, D=40)] == ["ok"]


def test_what_is_far_behind_is_timed_again_and_has_its_least_time(bed: Bed) -> None:
    """As when another program had the cores: one such time would be learned from."""
    good, disturbed = bed.survey("good", "disturbed_at_first", R=35, D=129)
    assert good.ns is not None
    assert disturbed.ns is not None
    assert disturbed.ns < 8 * good.ns, (disturbed.screen, good.screen)
