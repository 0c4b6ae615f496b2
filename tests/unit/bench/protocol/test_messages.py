"""Requests to a worker: which of them end a candidate's turn."""

from __future__ import annotations

from aot_tune.bench.protocol.messages import Request, Screen, Unload, Verify, ends_a_turn

QUICK = Verify(handle="a", keys=("p",), quick=True)
WHOLE = Verify(handle="a", keys=("p",))


def last_of(requests: list[Request], *, unloads: bool) -> list[bool]:
    """Whether each of some requests ends a turn."""
    return [ends_a_turn(request, unloads=unloads) for request in requests]


def test_what_ends_a_turn_depends_on_who_is_unloaded() -> None:
    turns: list[Request] = [WHOLE, Screen(handle="a", key="p"), Unload(handle="a")]
    assert last_of(turns, unloads=True) == [False, False, True]
    assert last_of(turns, unloads=False) == [True, True, True]


def test_a_quick_look_is_a_turn_of_its_own() -> None:
    assert last_of([QUICK], unloads=True) == last_of([QUICK], unloads=False) == [True]
