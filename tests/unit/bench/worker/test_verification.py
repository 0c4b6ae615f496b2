"""Runs that verify a candidate: which are made, what is told of them, and whether it does less where it is repeated."""

import ctypes
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_operators import make_operator

from aot_tune.bench.protocol.measurement_records import Check, Policy
from aot_tune.bench.worker.comparison import agree
from aot_tune.bench.worker.cpu_engine import CpuEngine
from aot_tune.bench.worker.loaded_objects import LaunchError
from aot_tune.bench.worker.problem_state import ProblemState
from aot_tune.bench.worker.verification import GARBAGE, FreshCalls, Trial, TrialResult, does_less, verify
from aot_tune.spec import off_by, problem

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


CALL, LEAST = 10_000.0, 300.0
COPY = make_operator(name="copy", extents="N", workload=(problem(N=4096),))


def played(repeated: float, fresh: float, disturbances: Callable[[], float]) -> Callable[[bool], float]:
    return lambda is_fresh: (fresh if is_fresh else repeated) + disturbances()


@settings(max_examples=20)
@given(st.integers(0, 10), st.randoms(use_true_random=False))
def test_disturbances_of_most_calls_do_not_make_an_honest_one_suspicious(busy: int, random: object) -> None:
    """Half of all calls and more take longer by up to three times; one pair that is not disturbed is enough."""
    left = [*[3 * CALL] * busy, 0.0]
    random.shuffle(left)  # type: ignore[attr-defined]
    turns = itertools.chain(left, itertools.repeat(0.0))
    assert does_less(played(CALL, 1.1 * CALL, lambda: next(turns)), CALL, LEAST) == ""


@pytest.mark.parametrize("looks", [1, 3])
def test_a_core_that_gets_slower_during_a_look_does_not_make_an_honest_call_suspicious(looks: int) -> None:
    """The first repeated play of a look is at full speed, all that follow in it are not: as where a core is shared."""
    plays, slow = 0, 0

    def play(fresh: bool) -> float:
        nonlocal plays
        plays += 1
        return CALL if plays == 1 or slow > looks else 1.5 * CALL

    def pause(seconds: float) -> None:
        nonlocal plays, slow
        assert seconds < 0.5
        plays, slow = 0, slow + 1

    assert does_less(play, CALL, LEAST, pause) == ""
    assert slow == looks + 1


def test_one_that_does_a_third_of_the_work_when_repeated_is_suspicious_and_what_no_clock_can_tell_is_not() -> None:
    disturbances = itertools.cycle((0.0, 0.2 * CALL, 0.4 * CALL))
    said = does_less(played(CALL, 3 * CALL, lambda: next(disturbances)), CALL, LEAST)
    assert said.startswith("takes 3.0 times as long when its outputs are missing")
    assert does_less(played(100.0, 390.0, lambda: 0.0), 100.0, LEAST) == ""
    for fresh, call in ((1.12, 20 * CALL), (1.26, CALL / 3), (1.2, CALL)):
        slower = played(call, fresh * call, lambda call=call: next(disturbances) * call / CALL)
        assert does_less(slower, call, LEAST) != "", fresh
        assert does_less(played(call, call + (fresh - 1) * call / 2, lambda: 0.0), call, LEAST) == "", fresh


def test_no_place_of_what_a_fresh_call_copies_makes_an_honest_one_suspicious(tmp_path: Path) -> None:
    """Copying from 16 bytes below the target's place in a page takes ten times as long. All such places come up."""
    engine = CpuEngine(Policy(), 1 << 20)
    calls = ProblemState(engine, COPY, Check(problem=COPY.workload[0]), tmp_path).at()
    x, y = (calls.pieces[name] for name in ("x", "out"))

    def honest() -> int:
        ctypes.memmove(y.address, x.address, x.size)
        return 0

    honest()
    held: list[object] = []
    for number in range(512):  # with what is held, each begins 32 bytes further in a page than the one before, or 48
        fresh = FreshCalls(engine, honest, calls, 500.0)
        held += [fresh, x.storage.copy()] if number % 2 else [fresh]
        assert does_less(fresh.play, 500.0, 300.0, lambda _seconds: None) == ""


def test_surveyed_integers_may_be_twice_as_far_apart_as_each_from_the_truth() -> None:
    one, step = np.array([-127, 0, 5, 9], np.int8), off_by(1, share=0.25)
    assert not agree("q", one, one, None)
    for other, fine in (([-127, 2, 5, 9], True), ([-127, 3, 5, 9], False), ([127, 0, 5, 9], False)):
        assert (agree("q", np.array(other, np.int8), one, None, step) == "") == fine
        assert agree("q", np.array(other, np.int8), one, None)
    assert agree("q", one + np.array([1, 1, 1, 0], np.int8), one, None, step)
