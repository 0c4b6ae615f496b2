"""A plan of runs that verify a candidate: which are made, on what, and what is told of them."""

from __future__ import annotations

from typing import Any

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.loaded_objects import LaunchError
from aot_tune.bench.worker.verification import GARBAGE, Trial, TrialResult, verify
from aot_tune.spec import problem

CHECK = Check(problem=problem(N=4))
FIRST, ALIASED = Trial(), Trial(aliases={"y": "x"})
AGAIN = Trial(again=True, most_ns=100.0)


class Attempt:
    """Notes the runs that are made. Each takes `ns`; what it gets wrong is by number."""

    def __init__(self, ns: float = 10.0, faults: dict[int, str] | None = None, same: bool = True) -> None:
        self.ns, self.faults, self.same = ns, faults or {}, same
        self.made: list[tuple[Trial, int, bool, bool]] = []
        self.restored: list[Trial] = []

    def make(self, trial: Trial, garbage: int, bits: Any, *, renewed: bool) -> TrialResult:
        number = len(self.made)
        self.made.append((trial, garbage, bool(bits), renewed))
        fault = self.faults.get(number, "")
        if fault == "launch":
            raise LaunchError("launch returned 9")
        return TrialResult(self.ns + number, fault, number / 10, self.same)

    def bits(self, trial: Trial) -> dict[str, Any]:
        return {"y": trial}

    def restore(self, trial: Trial) -> None:
        self.restored.append(trial)


def told_of(attempt: Attempt, *plan: Trial) -> tuple[Any, dict[str, Any], list[str]]:
    places: list[str] = []
    checked, bits = verify(attempt, CHECK, plan, places.append, renewed=True)
    return checked, bits, places


def test_a_second_run_has_other_garbage_and_the_bits_of_the_first() -> None:
    attempt = Attempt(same=False)
    checked, bits, places = told_of(attempt, FIRST, ALIASED, AGAIN, Trial("end"))
    assert [m[1:] for m in attempt.made] == [
        (GARBAGE[0], False, True),
        (GARBAGE[0], False, False),
        (GARBAGE[1], True, False),
        (GARBAGE[0], True, False),
    ]
    assert (checked.status, checked.error, checked.bitwise) == ("ok", 0.3, False)
    assert checked.runs == (10.0, 12.0, 13.0)
    assert bits == {"y": FIRST}
    assert places[1].endswith("problem 'N=4', 'y' in the memory of 'x'")
    assert places[3].endswith(", whose tensors end where memory that may be read ends")


def test_a_long_run_is_not_repeated_and_the_next_has_the_other_garbage() -> None:
    attempt = Attempt(ns=1000.0)
    checked, _, _ = told_of(attempt, FIRST, AGAIN, Trial("end"))
    assert [m[:2] for m in attempt.made] == [(FIRST, GARBAGE[0]), (Trial("end"), GARBAGE[1])]
    assert checked.bitwise is None


def test_the_first_fault_ends_it_and_puts_its_tensors_back() -> None:
    for fault, status, reason in (
        ("oob", "wrong-result", "oob (problem 'N=4', 'y' in the memory of 'x')"),
        ("launch", "failed", "launch returned 9 (problem 'N=4', 'y' in the memory of 'x')"),
    ):
        attempt = Attempt(faults={1: fault})
        checked, bits, _ = told_of(attempt, FIRST, ALIASED, AGAIN)
        assert (checked.status, checked.reason, bits) == (status, reason, {})
        assert checked.runs == (10.0,)
        assert attempt.restored == [ALIASED]
