"""What is read and written is as it was in front of each call, and outputs are right in the memory of inputs, too."""

import ctypes
import gc
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import in_place
import numpy as np
import pytest
from in_place import Bed
from small_operators import make_operator

from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.reference_results import EXACT, read_limits, read_truth, write_truth
from aot_tune.spec import IntegerSums, Operator, Problem, Tensor, dims, problem
from aot_tune.support.processes import resident_bytes

SMALL = problem(R=13, D=37)
PADDED = problem(R=13, D=37, strides={"state": (40, 1), "x": (41, 1), "out": (41, 1)})


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return partial(in_place.build, tmp_path_factory.mktemp("candidates"))


@pytest.fixture(params=["cpu cold", "cuda few"])
def bed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bed]:
    family, _, kind = request.param.partition(" ")
    if family == "cuda":
        pytest.importorskip("torch")
    made = Bed(tmp_path, family, cold=kind == "cold", copies=3 if kind == "few" else 64)
    yield made
    made.close()


@pytest.mark.parametrize("bed", ["cpu", "cpu cold", "cuda few"], indirect=True)
def test_a_good_candidate_is_right_and_timed_on_what_it_was_verified_on(bed: Bed, build: Any) -> None:
    """It would fail after a dozen calls on what the ones before left."""
    bed.load(build("GOOD"))
    for one in (SMALL, PADDED, problem(R=13, D=37, order={"state": (1, 0)})):
        key = bed.name(one)
        bed.ask(messages.Prepare(key=key))
        checked = bed.verify(key, renewed=True)
        assert checked.status == "ok", checked.reason
        assert checked.bitwise is True
        timed = bed.ask(messages.Screen(handle="one", key=key))
        assert (timed.status, timed.reason) == ("ok", "")
        assert len(timed.samples) >= 2
        assert all(s > 0 for s in timed.samples)
        for fresh in (False, True):
            turn = bed.ask(messages.Turn(handle="one", key=key, calls=40, warm=3, fresh=fresh, poison=True))
            assert (turn.status, turn.reason) == ("ok", "")
        for threads in (0, 1):
            repeated = bed.verify(key, repeat=True, threads=threads)
            assert (repeated.status, repeated.bitwise) == ("ok", True), repeated.reason
    for special in ("x", "state"):  # NaN and infinities go through what is written in place
        checked = bed.verify(bed.name(SMALL, special=special))
        assert checked.status == "ok", checked.reason


WRONG: tuple[tuple[str, Problem, str], ...] = (
    ("IDLE", SMALL, r"^state\[\d+, \d+\]: got .* elements are wrong \(problem 'R=13 D=37'\)$"),
    ("TWICE", SMALL, r"^state\[\d+, \d+\]: got"),
    ("LATE", SMALL, r"^total\[\d+\]: got .* \(problem 'R=13 D=37', 'out' in the memory of 'x'\)$"),
    ("LATE", PADDED, r"'out' in the memory of 'x'\)$"),
    ("GAP", PADDED, r"^oob: 4 bytes between the rows of 'state' were written, first 148 \(problem"),
    ("PAST_END", SMALL, r"^oob: guard zone of 'total': 4 bytes written 0 bytes past its end"),
    ("PAST_WORKSPACE", SMALL, r"^oob: guard zone of 'workspace': 1 bytes written 0 bytes past its end"),
    ("MUTATES", SMALL, r"^input 'x' was changed, first at byte \d+ \(problem 'R=13 D=37'\)$"),
    ("HIDES", SMALL, r"^out\[\d+, \d+\]: got 0.0, want .*NaN and infinities in 'x'"),
)


def test_a_wrong_candidate_is_refused_and_leaves_nothing_behind(bed: Bed, build: Any) -> None:
    bed.load(build("GOOD"), "good")
    for number, (body, one, told) in enumerate(WRONG):
        key = bed.name(one, special="x" if body == "HIDES" else "")
        bed.load(build(body), f"wrong-{number}")
        checked = bed.verify(key, f"wrong-{number}")
        assert checked.status == "wrong-result"
        assert re.search(told, checked.reason), checked.reason
        assert bed.verify(key, "good").status == "ok"


def test_outputs_are_not_in_memory_that_is_laid_out_otherwise(bed: Bed, build: Any) -> None:
    key = bed.name(problem(R=13, D=37, strides={"x": (41, 1)}))
    bed.load(build("LATE"))
    assert bed.verify(key).status == "ok"


def test_repeated_runs_are_compared_from_the_same_state(bed: Bed, build: Any) -> None:
    key = bed.name(SMALL)
    bed.load(build("UNSTEADY"))
    checked = bed.verify(key)
    assert checked.status == "ok", checked.reason
    assert checked.bitwise is False
    assert bed.verify(key, quick=True, repeat=True).bitwise is False


def test_what_goes_wrong_after_some_calls_is_seen_after_the_timed_ones(bed: Bed, build: Any) -> None:
    key = bed.name(SMALL)
    bed.load(build("LATER"))
    assert bed.verify(key).status == "ok"
    timed = bed.ask(messages.Screen(handle="one", key=key))
    assert timed.status == "wrong-result"
    assert "state[0, 0]: got" in timed.reason
    assert "timed calls)" in timed.reason
    bed.load(build("GOOD"), "good")
    assert bed.verify(key, "good").status == "ok"
    assert bed.ask(messages.Screen(handle="good", key=key)).status == "ok"


def test_a_candidate_that_does_less_in_a_call_like_the_last_one_is_seen(bed: Bed, build: Any) -> None:
    key = bed.name(SMALL)
    bed.load(build("MEMO"))
    assert bed.verify(key).status == "ok"
    for _ in range(3):  # what else runs can make a repeated call as long as a fresh one, for once
        timed = bed.ask(messages.Screen(handle="one", key=key))
        if timed.status != "ok":
            break
        bed.verify(key)
    assert timed.status == "suspicious", timed.reason
    assert "it does less in a call that is repeated" in timed.reason


def test_surveyed_candidates_are_compared_after_one_call(bed: Bed, build: Any) -> None:
    key = bed.name(SMALL)
    for handle, body, status in (("one", "GOOD", "ok"), ("two", "GOOD", "ok"), ("bad", "TWICE", "wrong-result")):
        bed.load(build(body), handle)
        reply = bed.ask(messages.SurveyOne(handle=handle, key=key, first=handle == "one"))
        assert (reply.status, handle) == (status, handle), reply.reason
    assert reply.reason.startswith("'state' is off by")


@pytest.mark.parametrize(("family", "cold"), [("cpu", False), ("cuda", True)])
def test_baselines_work_in_place_and_are_timed_so(tmp_path: Path, family: str, cold: bool) -> None:
    pytest.importorskip("torch")
    bed = Bed(tmp_path, family, "framework", cold=cold)
    key = bed.name(SMALL)
    checked = bed.ask(messages.PrepareBaseline(handle="base", key=key, name="in_place"))
    assert (checked.status, checked.reason) == ("ok", "")
    assert checked.error <= 1
    for _ in range(8):
        timed = bed.ask(messages.Turn(handle="base", key=key, calls=40, warm=2))
        assert timed.samples[0] > 0
    wrong = bed.ask(messages.PrepareBaseline(handle="two", key=key, name="twice"))
    assert (wrong.status, "got" in wrong.reason) == ("wrong-result", True)


def test_what_a_baseline_was_handed_is_released_for_the_next_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("aot_tune.bench.worker.cpu_engine.kept_memory", lambda: 0)
    bed, held = Bed(tmp_path, "cpu", "framework"), list[int]()
    for rows in range(2048, 2053):
        key = bed.name(problem(R=rows, D=512))
        assert bed.ask(messages.PrepareBaseline(handle=key, key=key, name="in_place")).status == "ok"
        bed.ask(messages.Unload(handle=key))
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what earlier tests freed decides where the C library keeps freed tensors
        held.append(resident_bytes(os.getpid()))
    each = rows * 512 * 4  # bytes of a tensor; a problem takes ten
    assert held[-1] - held[1] < 3 * 2 * each


M, N, K = dims("M N K")


def accumulating(reference: Any, dtype: str) -> Operator:
    """c += a @ b."""
    tensors = Tensor("a", (M, K), dtype), Tensor("b", (K, N), dtype), Tensor("c", (M, N), dtype, inout=True)
    exact = IntegerSums(K, thinned="b")
    return make_operator(name="accumulate", extents="M N K", tensors=tensors, reference=reference, exact=exact)


def out_of_place(xp: Any, call: Any) -> Any:
    return {"c": call.c + xp.matmul(call.a, call.b)}


def by_changing_it(xp: Any, call: Any) -> Any:
    call.c += xp.matmul(call.a, call.b)
    return {"c": call.c}


@pytest.mark.parametrize(("dtype", "integers"), [("f32", False), ("f64", False), ("bf16", True)])
def test_a_reference_may_change_what_it_is_given(tmp_path: Path, dtype: str, integers: bool) -> None:
    torch = pytest.importorskip("torch")
    from aot_tune.bench.worker import cuda_truth as on_gpu

    check = Check(problem=problem(M=7, N=9, K=300), integers=integers)
    found = []
    for reference in (out_of_place, by_changing_it):
        op, folder = accumulating(reference, dtype), tmp_path / reference.__name__
        write_truth(op, check, folder / "cpu", 1)
        (told, values) = read_truth(folder / "cpu")["c"]
        storages = on_gpu.draw_inputs(op, check, 1, torch.device("cpu"))
        on_gpu.write_limits(op, check, folder / "cuda", 1, torch.device("cpu"))
        limits = read_limits(folder / "cuda")["c"].bounds
        exact = [on_gpu.exact_values(op, check, storages, torch.device("cpu"))["c"].numpy() for _ in range(2)]
        assert np.array_equal(*exact)
        found.append((told.bounds, limits, values.tolist(), exact[0].tolist()))
        if integers:
            assert told.bounds == limits == EXACT
            assert np.array_equal(values, np.rint(values))
    assert found[0] == found[1]
