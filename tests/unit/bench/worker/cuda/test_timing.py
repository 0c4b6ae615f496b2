"""Times of calls in graphs, on a device that the tests make up; and guarded memory, and comparisons."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot_tune.bench.devices.family import policy_for
from aot_tune.bench.protocol.measurement_records import GpuTiming, Policy

torch = pytest.importorskip("torch")

from aot_tune.bench.worker.comparison import compare  # noqa: E402
from aot_tune.bench.worker.cuda.compare import Expected  # noqa: E402
from aot_tune.bench.worker.cuda.engine import CaptureError, Recorded  # noqa: E402
from aot_tune.bench.worker.cuda.host_engine import HostEngine  # noqa: E402
from aot_tune.bench.worker.cuda.memory import Arena, Want  # noqa: E402
from aot_tune.bench.worker.cuda.restoring import put_back  # noqa: E402
from aot_tune.bench.worker.cuda.timing import Sampler, graph_size  # noqa: E402
from aot_tune.bench.worker.cuda.truth import Limits  # noqa: E402
from aot_tune.bench.worker.reference_results import EXACT, Bounds  # noqa: E402
from aot_tune.spec import Tensor  # noqa: E402

CPU = torch.device("cpu")


class Device(HostEngine):
    """Calls take what `costs` says, in turn by what they return; a play of a graph takes 1000 ns beside."""

    def __init__(self, costs: list[float], captures: bool = True) -> None:
        super().__init__()
        self.costs, self.captures = costs, captures
        self.now, self.graphs, self.made, self.plays, self.closed = 0.0, [], [], 0, 0
        self.last_busy = math.inf  # never cold
        self.clocks = iter(())

    def clock(self) -> float:
        """The next of `clocks`; 0 after the last."""
        return next(self.clocks, 0.0)

    def calls(self) -> list[Any]:
        return [lambda i=i: self.call(i) for i in range(len(self.costs))]

    def call(self, index: int) -> int:
        self.now += self.costs[index]
        self.made.append(index)
        return 0

    def record(self, calls: Any, framework: bool = False) -> Recorded:
        if not self.captures:
            raise CaptureError("operation not permitted when stream is capturing (900)")
        self.graphs.append(len(calls))

        def play() -> None:
            self.plays += 1
            self.now += 1000.0
            for call in calls:
                call()

        def close() -> None:
            self.closed += 1

        return Recorded(play, len(calls), close)

    def time(self, play: Any, count: int, warm: bool = True, before: Any = None) -> list[float]:
        if warm:
            play()
        found = []
        for _ in range(count):
            if before is not None:
                before()
            begin = self.now
            play()
            found.append(self.now - begin)
        return found


POLICY = policy_for("cuda", Policy())


def test_short_calls_are_repeated_and_copies_are_called_equally_often() -> None:
    device = Device([2000.0] * 7)
    sampler = Sampler(device, device.calls(), POLICY, device.clock)
    assert device.graphs == [35]
    assert sampler.sample() == pytest.approx(2000 + 1000 / 35)
    counts = [device.made[1:].count(i) for i in range(7)]
    assert len(set(counts)) == 1
    assert sampler.made == len(device.made)
    sampler.close()
    assert device.closed == 1


@settings(max_examples=30)
@given(st.floats(100, 1e9), st.integers(1, 512))
def test_graphs_hold_a_whole_number_of_rotations(call: float, copies: int) -> None:
    size = graph_size(call, copies, 200_000, GpuTiming())
    assert size % copies == 0
    assert size >= (32 if call < 50_000 and copies < 32 else 1)
    assert size <= max(4096, copies)
    assert size == copies or size * call < 200_000 * 2 + 32 * 50_000 + copies * call


def test_a_slow_candidate_is_stopped_after_two_samples() -> None:
    device = Device([600_000.0])
    assert len(Sampler(device, device.calls(), POLICY, device.clock).screen(POLICY, best_ns=300_000.0)) == 2
    samples = Sampler(device, device.calls(), POLICY, device.clock).screen(POLICY, best_ns=500_000.0)
    assert 2 < len(samples) <= POLICY.screen_samples
    assert samples == [601_000.0] * len(samples)


def test_what_cannot_be_captured_is_timed_on_the_stream_and_noted() -> None:
    device = Device([5000.0], captures=False)
    sampler = Sampler(device, device.calls(), POLICY, device.clock)
    assert "cannot be captured in a CUDA graph: operation not permitted" in sampler.note
    assert sampler.sample() == 5000.0


alignments = st.sampled_from([0, 1, 2, 4, 16, 64, 1024])


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 50), alignments), min_size=1, max_size=5), st.data())
def test_pieces_are_aligned_as_asked_and_a_write_outside_is_found(rows: Any, data: st.DataObject) -> None:
    wants = [Want(f"t{i}", size, origin * max(a, 1), a) for i, (size, origin, a) in enumerate(rows)]
    arena = Arena(CPU, wants)
    for want in wants:
        piece = arena.pieces[want.name]
        address = piece.address + want.origin
        assert piece.size == want.size == piece.storage.numel()
        assert want.size == 0 or piece.address == piece.storage.data_ptr()
        assert address % (2 * want.alignment or 512) == want.alignment
        piece.storage.fill_(0x5A)
    assert not arena.damaged()
    number = data.draw(st.integers(0, len(wants) - 1))
    distance = data.draw(st.integers(0, 1000))
    after = data.draw(st.booleans())
    piece = arena.pieces[f"t{number}"]
    at = piece.address - arena._base + (piece.size + distance if after else -1 - distance)
    arena._memory[at] = 0
    assert arena.damaged()
    place = f"{distance} bytes past its end" if after else f"{distance} bytes before its start"
    assert arena.damage() == (f"t{number}", f"1 bytes written {place}")
    arena.heal()
    assert not arena.damaged()
    assert arena.damage() == ("", "")


def test_large_pieces_lie_where_torch_would_put_them_and_have_both_their_guards() -> None:
    arena = Arena(CPU, [Want("x", 11 << 20), Want("w", 100), Want("y", 10 << 20, 64), Want("z", 5 << 20)])
    for name, origin, step in (("x", 0, 2 << 20), ("w", 0, 512), ("y", 64, 2 << 20), ("z", 0, 512)):
        assert (arena.pieces[name].address + origin) % step == 0
    for name in arena.pieces:
        for at, place in ((-1, "0 bytes before its start"), (arena.pieces[name].size, "0 bytes past its end")):
            arena._memory[arena.pieces[name].address - arena._base + at] = 0
            assert arena.damaged()
            assert arena.damage() == (name, f"1 bytes written {place}")
            arena.heal()
    assert len(arena._all) < 10 * 4096  # a gap of a segment is not looked at byte by byte


BOUNDS = Bounds(absolute=0.1, relative=0.01)


def test_of_the_bytes_that_are_true_only_one_is_right() -> None:
    """What a candidate never wrote, and was poisoned, is not taken for true."""
    expected = Expected(
        Tensor("y", (2,), "bool", output=True), torch.ones(2, dtype=torch.float64), Limits(bounds=EXACT)
    )
    for byte, right in ((1, True), (255, False)):
        got = torch.tensor([1, byte], dtype=torch.uint8).view(torch.bool)
        assert right or not float(expected.worst(got)) <= 1
        assert (expected.judge(got)[0] == "") == right


INF, NAN = math.inf, math.nan


RIGHT = ((NAN, NAN), (INF, INF), (INF, 1e39))
WRONG = ((-INF, INF), (NAN, 1.0), (1.0, NAN), (INF, 1.0), (-INF, 1e39), (INF, NAN), (1e30, INF), (NAN, INF))


def test_nan_and_infinities_must_be_where_the_truth_has_them() -> None:
    """An overflow counts as infinity."""
    for got, want in (*RIGHT, *WRONG):
        of_torch = torch.tensor([got]), torch.tensor([want], dtype=torch.float64)
        of_numpy = np.array([got], np.float32), np.array([want])
        for xp, pair in ((torch, of_torch), (np, of_numpy)):
            with np.errstate(all="ignore"):
                fault, _ = compare(xp, "y", *pair, BOUNDS, 3.4e38)
            assert (fault == "") == ((got, want) in RIGHT), (got, want)


def test_calls_that_are_undone_have_a_copy_each_and_are_undone_outside_of_their_times() -> None:
    device, undone = Device([2000.0] * 40), list[int]()

    def undo(index: int) -> None:
        undone.append(index)
        device.now += 500_000.0
        device.made.clear()

    sampler = Sampler(device, device.calls(), POLICY, device.clock, undo=[partial(undo, i) for i in range(40)])
    assert (device.graphs, undone) == ([32], [0])
    undone.clear()
    assert sampler.sample() == pytest.approx(2000 + 1000 / 32)
    assert device.made == list(range(32))  # each once since it was undone
    assert set(undone) == set(range(32))
    screened = sampler.screen(POLICY, None)
    assert screened == [pytest.approx(2000 + 1000 / 32)] * len(screened)


def test_what_a_call_changed_is_put_back() -> None:
    """Of blocks that it did not change nothing is written: what is there stays there."""
    for offset, few in ((0, True), (8, False), (3, True)):
        for size in (0, 100, 4096 * 40, 4096 * 40 + 77, 4096 * 700 + 5):
            memory, source = torch.zeros(size + offset, dtype=torch.uint8), torch.arange(size, dtype=torch.uint8)
            storage = memory[offset:]
            storage.copy_(source)
            step = max(size // 3, 1) if few else 1024
            storage[::step] += 1
            undo = put_back(storage, source)
            storage[::step] += 77
            undo()
            assert torch.equal(storage, source)
            if few and size > 4096 * 30:
                storage[4096 * 10] += 1
                undo()
                assert not torch.equal(storage, source)
            assert not memory[:offset].any()
