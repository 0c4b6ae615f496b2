"""A session of the CUDA family on the host's tensors: candidates that go wrong, one after the other, in one process."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aot_tune.bench.protocol import messages
from aot_tune.spec import problem

torch = pytest.importorskip("torch")

import cuda_session  # noqa: E402
from cuda_session import GOOD, LATER, MUTATES, NAN, PAST_END, PAST_WORKSPACE, REFUSES, UNSTEADY, WRONG, Bed  # noqa: E402

from aot_tune.bench.worker.cuda.engine import Recorded  # noqa: E402
from aot_tune.bench.worker.cuda.state import ProblemState  # noqa: E402


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    return partial(cuda_session.build, tmp_path_factory.mktemp("candidates"))


SMALL = problem(R=13, D=37)


def test_a_good_candidate_is_right_and_has_times(bed: Bed, build: Any) -> None:
    key = bed.name(SMALL)
    assert bed.ask(messages.Prepare(key=key)) == messages.Done()
    assert bed.load(build(GOOD)) == messages.Done()
    checked = bed.ask(messages.Verify(handle="one", keys=(key,)))
    assert checked.status == "ok", checked.reason
    assert 0 <= checked.error <= 1
    assert checked.bitwise is True
    assert len(checked.runs) == 2
    timed = bed.ask(messages.Screen(handle="one", key=key))
    assert timed.status == "ok", timed.reason
    assert 2 <= len(timed.samples) <= 10
    assert all(s > 0 for s in timed.samples)
    assert timed.overhead > 0
    slow = bed.ask(messages.Screen(handle="one", key=key, best_ns=0.001))
    assert len(slow.samples) == 2
    assert bed.ask(messages.Unload(handle="one")) == messages.Done()


LAYOUTS: tuple[dict[str, Any], ...] = (
    {},
    {"present": ["bias"]},
    {"alignment": {"x": 2, "w": 2, "y": 2}},
    {"strides": {"x": (-37, 1), "w": (0,)}},
    {"strides": {"y": (80, 2)}},
    {"order": {"x": (1, 0), "y": (1, 0)}},
)


def test_layouts_and_bf16(bed: Bed, build: Any) -> None:
    bed.load(build(GOOD, bits=16))
    bed.load(build(WRONG, bits=16), "two")
    for layout in LAYOUTS:
        key = bed.name(problem(R=13, D=37, dtypes={"T": "bf16"}, **layout))
        checked = bed.ask(messages.Verify(handle="one", keys=(key,)))
        assert checked.status == "ok", checked.reason
        assert bed.ask(messages.Verify(handle="two", keys=(key,))).status == "wrong-result"


FAULTS = (
    (PAST_END, "0", "oob: guard zone of 'y': 4 bytes written 0 bytes past its end"),
    (MUTATES, "0", "input 'x' was changed, first at byte"),
    (WRONG, "0", "y[12, 36]: got 1000.0, want"),
    (NAN, "0", "y[0, 0]: got nan, want"),
    (PAST_WORKSPACE, "1000", "oob: guard zone of 'workspace': 1 bytes written 0 bytes past its end"),
)


def test_a_wrong_candidate_is_found_and_the_next_is_unaffected(bed: Bed, build: Any) -> None:
    key = bed.name(SMALL)
    for number, (body, workspace, told) in enumerate(FAULTS):
        for name, wanted in ((body, "wrong-result"), (GOOD, "ok")):
            handle = f"{number} {wanted}"
            bed.load(build(name, workspace=workspace), handle)
            checked = bed.ask(messages.Verify(handle=handle, keys=(key,)))
            assert checked.status == wanted, checked.reason
            assert wanted == "ok" or told in checked.reason


def test_a_write_between_rows_is_found(bed: Bed, build: Any) -> None:
    key = bed.name(problem(R=13, D=37, strides={"y": (40, 1)}))
    bed.load(build("at(y, 0, columns) = 1;"))
    checked = bed.ask(messages.Verify(handle="one", keys=(key,)))
    assert "oob: 4 bytes between the rows of 'y' were written, first 148" in checked.reason


def test_a_candidate_that_goes_wrong_later_is_found_after_timing(bed: Bed, build: Any) -> None:
    key = bed.name(SMALL)
    bed.load(build(LATER))
    assert bed.ask(messages.Verify(handle="one", keys=(key,))).status == "ok"
    timed = bed.ask(messages.Screen(handle="one", key=key))
    assert timed.status == "wrong-result"
    assert "y[0, 0]: got 77.0" in timed.reason
    assert "timed calls" in timed.reason


def test_times_of_calls_that_leave_nothing_in_the_graph_are_none(bed: Bed, build: Any) -> None:
    """Work on a stream of its own is right in the end; an empty graph may take longer than a small call's floor."""
    key = bed.name(SMALL)
    bed.load(build(GOOD))
    assert bed.ask(messages.Verify(handle="one", keys=(key,))).status == "ok"
    record = bed.engine.record

    def empty(calls: Any, framework: bool = False) -> Recorded:
        played = record(calls, framework)
        return Recorded(played.play, 0, played.close)

    bed.engine.record = empty
    raced = bed.ask(messages.Turn(handle="one", key=key, calls=1, warm=1, fresh=True))
    timed = bed.ask(messages.Screen(handle="one", key=key))
    for reply in (raced, timed):
        assert (reply.status, reply.reason) == ("suspicious", "launches nothing on the stream that it is given")


def test_errors_of_functions_are_failures_and_the_worker_lives_on(bed: Bed, build: Any) -> None:
    key = bed.name(SMALL)
    bed.load(build(REFUSES))
    checked = bed.ask(messages.Verify(handle="one", keys=(key,)))
    assert (checked.status, checked.reason.partition(" (")[0]) == ("failed", "candidate_launch returned 9")
    refused = bed.load(build(GOOD, preload=3), "two")
    assert isinstance(refused, messages.Failure)
    assert refused.reason == "candidate_preload returned 3"
    huge = bed.load(build(GOOD, workspace="(1ul << 40)"), "three")
    assert huge == messages.Done()
    checked = bed.ask(messages.Verify(handle="three", keys=(key,)))
    assert checked.status == "skipped"
    assert "asks for 1099511627776 bytes of workspace" in checked.reason


def test_different_bits_are_wrong_where_they_must_be_the_same(bed: Bed, build: Any) -> None:
    path = bed.folder / "operator.py"
    path.write_text(path.read_text().replace('name="axpb",', 'name="axpb",\n    deterministic=True,'))
    key = bed.name(SMALL)
    bed.load(build(UNSTEADY))
    checked = bed.ask(messages.Verify(handle="one", keys=(key,)))
    assert (checked.status, checked.bitwise) == ("wrong-result", False)
    assert checked.reason.startswith("not deterministic: outputs differ between two runs (problem 'R=13 D=37')")
    bed.load(build(GOOD), "two")
    assert bed.ask(messages.Verify(handle="two", keys=(key,))).status == "ok"


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_small_integers_must_be_right_to_the_last_bit(bed: Bed, build: Any, dtype: str) -> None:
    path, bits = bed.folder / "operator.py", 32 if dtype == "f32" else 16
    text = path.read_text().replace('name="axpb",', 'name="axpb",\n    exact=IntegerSums(1, thinned="x"),')
    path.write_text(text.replace("import Attribute, ", "import Attribute, IntegerSums, "))
    one = problem(R=13, D=37, dtypes={"T": dtype}, present=("bias",))
    bed.load(build(GOOD, bits))
    bed.load(build("at(y, 3, 5) = make(load(at(y, 3, 5)) * (1 + 1.0f / (BITS == 32 ? 1 << 22 : 128)));", bits), "off")
    for integers in (False, True):
        key = bed.name(one, integers=integers)
        right = bed.ask(messages.Verify(handle="one", keys=(key,)))
        assert right.status == "ok", right.reason
        assert (right.error == 0) == integers
        wrong = bed.ask(messages.Verify(handle="off", keys=(key,)))
        assert wrong.status == ("wrong-result" if integers else "ok"), wrong
    assert "1 of 481 elements are wrong" in wrong.reason
    assert wrong.reason.endswith("small integers)")


def test_special_values_and_many_problems_at_once(bed: Bed, build: Any) -> None:
    keys = (bed.name(SMALL), bed.name(SMALL, special="x"), bed.name(problem(R=1, D=1)), bed.name(problem(R=0, D=5)))
    bed.load(build(GOOD))
    checked = bed.ask(messages.Verify(handle="one", keys=keys))
    assert checked.status == "ok", checked.reason
    bed.load(
        build(
            "for (int64_t j = 0; j < columns; ++j) if (load(at(x, 0, j)) != load(at(x, 0, j))) "
            "for (int64_t i = 0; i < rows; ++i) at(y, i, j) = 0;"
            "for (int64_t i = 0; i < rows; ++i) for (int64_t j = 0; j < columns; ++j)"
            "{ const float v = load(at(y, i, j)); if (v != v) at(y, i, j) = 0; }"
        ),
        "two",
    )
    checked = bed.ask(messages.Verify(handle="two", keys=keys))
    assert checked.status == "wrong-result"
    assert "want nan" in checked.reason
    assert "NaN and infinities in 'x'" in checked.reason


def test_races_and_baselines(tmp_path: Path, build: Any) -> None:
    bed = Bed(tmp_path)
    key = bed.name(SMALL)
    prepared = bed.ask(messages.PrepareBaseline(handle="torch", key=key, name="torch"))
    assert isinstance(prepared, messages.Checked), prepared
    assert prepared.error > 1
    assert "elements are wrong" in prepared.reason
    absent = bed.ask(messages.PrepareBaseline(handle="absent", key=key, name="absent"))
    assert isinstance(absent, messages.Empty)
    bed.load(build(GOOD), "race-0")
    assert bed.ask(messages.Verify(handle="race-0", keys=(key,), quick=True)).status == "ok"
    for handle in ("torch", "race-0"):
        for number in range(3):
            turn = bed.ask(messages.Turn(handle=handle, key=key, calls=5, warm=1, fresh=number == 2))
            assert turn.status == "ok", turn.reason
            assert len(turn.samples) == 1
            assert turn.samples[0] > 0
    for handle in ("torch", "race-0"):
        assert bed.ask(messages.Unload(handle=handle)) == messages.Done()


def test_cold_tensors_rotate_until_the_cache_is_full_and_share_the_rest(bed: Bed) -> None:
    key = bed.name(problem(R=1, D=4096))
    state = bed.session._state(key)
    sets = state.rotation()
    assert len(sets) == min(bed.policy.copies, 4 * (1 << 16) // (4 * 4096))
    assert len({s.storages["w"].data_ptr() for s in sets}) == len(sets)
    assert len({s.storages["x"].data_ptr() for s in sets}) == 1
    assert all(s.storages["w"].data_ptr() % 512 == 0 for s in sets)
    assert len(state.cold()) == len(sets)
    assert state.exact().storages["w"].data_ptr() % 128 == 64


@pytest.mark.parametrize("failures", [1, 2])
def test_nothing_of_an_attempt_that_lacked_memory_is_held_when_it_is_cleaned_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """What frames of the error hold would be missing in the next attempt, and then in the other worker."""
    bed = Bed(tmp_path)
    key = bed.name(problem(R=16, D=256))
    got: list[Any] = []
    held: list[bool] = []
    rotation, clean = ProblemState.rotation, bed.session.clean

    def lacking(state: ProblemState) -> Any:
        if len(got) == failures:
            return rotation(state)
        part = rotation(state)[0].arena
        got.append(weakref.ref(part))
        raise torch.OutOfMemoryError("Tried to allocate 64.00 GiB.\nmore")

    def cleaned() -> None:
        clean()
        held.append(got[-1]() is not None)

    monkeypatch.setattr(ProblemState, "rotation", lacking)
    monkeypatch.setattr(bed.session, "clean", cleaned)
    reply = bed.ask(messages.Prepare(key=key))
    assert held == [False] * failures
    if failures == 1:
        assert isinstance(reply, messages.Done)
    else:
        assert isinstance(reply, messages.Failure)
        assert (reply.status, reply.reason) == ("oom", "Tried to allocate 64.00 GiB.")
