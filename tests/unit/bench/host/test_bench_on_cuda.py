"""The whole bench of the CUDA family, with worker processes, on the host's tensors."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from compiled import Bed

from aot_tune.bench.host.verify_in_library import verify_linked
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import DeviceState
from aot_tune.support.errors import AotTuneError

pytest.importorskip("torch")

from cuda_bench import CONTRACT, make_bed

pytestmark = pytest.mark.slow  # each worker imports torch

LIBRARY = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include "good.cpp"
struct Execution { void *stream, *workspace; size_t size; };
#define CALL const DLTensor *x, const DLTensor *bias, const DLTensor *y
EXPORT int32_t my_axpb(CALL, const Execution* how) {
  const char* const variant = std::strchr(std::getenv("AOT_TUNE_FORCE"), ':') + 1;
  if (std::strcmp(variant, "idle") == 0) return 0;
  if (std::strcmp(variant, "refusing") == 0) return 1;
  return candidate_launch(x, bias, y, how->workspace, how->size, how->stream);
}
EXPORT int32_t my_axpb_workspace(CALL, size_t* size) { return candidate_workspace(x, bias, y, size); }
EXPORT int32_t my_axpb_explain(CALL, const Execution*, char* text, size_t size) {
  static const char* const forced = std::getenv("AOT_TUNE_FORCE");
  std::snprintf(text, size, "variant: %s\n", std::strchr(forced, ':') + 1);
  return 0;
}
EXPORT const char* my_last_error() { return ""; }
__attribute__((destructor)) static void go() { std::abort(); }
"""
"""A library that takes its process with it when it is unloaded; two of its variants are bad."""


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with make_bed(tmp_path_factory.mktemp("bed")) as found:
        yield found


def test_candidates_are_screened_and_stay_loaded(bed: Bed) -> None:
    measured = bed.screen("good")
    assert measured.status == "ok", measured.reason
    assert len(measured.screen) >= 2
    assert measured.bitwise is True
    assert {"verify", "bench"} <= set(measured.phases)
    again = bed.screen("good", best_ns=1.0)
    assert (again.status, len(again.screen)) == ("ok", 2)
    assert "load" not in again.phases
    worker = bed.bench.pool.candidates()
    assert bed.entry("good").code in worker.loaded


def test_a_reference_that_takes_too_much_memory_says_what_to_do(bed: Bed) -> None:
    with pytest.raises(AotTuneError, match=r"no reference for problem 'R=17 D=4'") as caught:
        bed.prepare(R=17, D=4)
    assert caught.value.why == "Tried to allocate 64.00 GiB. (out of memory)"
    assert "some rows at a time, or leave the problem out of the workload" in caught.value.fix


def test_a_race_pairs_candidates_and_baselines_that_compute_on_the_device(bed: Bed) -> None:
    raced = bed.race("good", "one_wrong")
    assert set(raced) == {"good", "one_wrong", "baseline:torch"}
    assert raced["one_wrong"].status == "wrong-result"
    good, torch = raced["good"], raced["baseline:torch"]
    assert good.status == torch.status == "ok", (good.reason, torch.reason)
    assert good.final is not None
    assert torch.final is not None
    assert len(good.final) == len(torch.final) >= 7
    assert good.race == torch.race


class Monitor:
    """A device that is too slow for the first so many batches."""

    def __init__(self, slow: int) -> None:
        self.slow, self.waits, self.reads = slow, 0, 0

    def begin(self) -> None: ...

    def read(self, workers: Any) -> DeviceState:
        assert len(workers) == 3
        self.reads += 1
        return DeviceState(sm_mhz=self.reads)

    def spoiled(self, state: Any) -> str:
        self.slow -= 1
        return "slow" if self.slow >= 0 else ""

    def capped(self, state: DeviceState) -> bool:
        return False

    def recover(self, why: str) -> None:
        assert why == "slow"
        self.waits += 1


def test_spoiled_samples_are_taken_again_but_not_for_ever(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monitors = [Monitor(slow=1), Monitor(slow=1000), Monitor(slow=1000)]
    bed.screen("good")
    for monitor, waits in zip(monitors[:2], (1, 2), strict=True):
        monkeypatch.setattr(bed.bench.context, "monitor", monitor)
        measured = bed.screen("good")
        assert measured.status == "ok", measured.reason
        assert measured.screen
        assert monitor.waits == waits
        assert waits == 2 or [s.sm_mhz for s in measured.conditions] == [2, 3]
    monkeypatch.setattr(bed.bench.context, "monitor", monitors[2])
    raced = bed.race("good")
    assert all(m.status == "ok" and m.final for m in raced.values())
    assert monitors[2].waits == 3
    assert len(raced["good"].conditions) == 2


class Clocks:
    """Answers to turns that ask for the clock get one MHz after the other; 1980 after the last."""

    def __init__(self, bed: Bed, clocks: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
        self.rounds, self._clocks, self._request = 0, iter(clocks), bed.bench.pool.request
        self.samples: list[float] = []
        monkeypatch.setattr(bed.bench.pool, "request", self.request)

    def request(self, worker: Any, request: Any, seconds: float) -> Any:
        reply = self._request(worker, request, seconds)
        if isinstance(request, messages.Turn) and request.handle == "race-0" and reply.samples:
            self.samples.append(reply.samples[0])
        if isinstance(request, messages.Turn) and request.clock:
            self.rounds += 1
            return msgspec.structs.replace(reply, mhz=next(self._clocks, 1980.0))
        return reply


def test_rounds_under_a_changed_clock_are_taken_again(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    bed.lines.clear()
    clocks = Clocks(bed, [1980.0, 1500.0, 1980.0, 1200.0], monkeypatch)
    raced = bed.race("good")
    assert [m.status for m in raced.values()] == ["ok", "ok"]
    assert all(set(m.clocks) == {1980} and m.final and len(m.clocks) == len(m.final) for m in raced.values())
    assert len(raced["good"].clocks) == clocks.rounds - 2
    kept = [s for i, s in enumerate(clocks.samples[1:]) if i not in (1, 3)]  # after the one that sizes them
    assert list(raced["good"].final or ()) == kept
    assert bed.lines == ["axpb R=16 D=256: 2 rounds of its race were under a changed clock"]


def test_a_fault_is_a_status_and_the_next_candidate_is_unaffected(bed: Bed) -> None:
    bed.refuse("past_end", "wrong-result", "oob: guard zone of 'y'")
    bed.refuse("segfault", "crashed", "SIGSEGV in R=")


def test_libraries_stay_loaded_once_a_worker_died_as_one_went_and_bad_ones_are_told(bed: Bed, tmp_path: Path) -> None:
    """Else each variant of a library would cost a worker, which takes seconds to start on a GPU."""
    (tmp_path / "my.cpp").write_text(LIBRARY)
    library, deaths = tmp_path / "libmy.so", bed.bench.pool.deaths
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-I", CONTRACT, "-o", library, tmp_path / "my.cpp"]
    subprocess.run(command, check=True, timeout=60)
    two = [bed.prepare(), bed.prepare(R=3, D=5)]
    for variant, status in (("one", "ok"), ("two", "ok"), ("three", "ok"), ("idle", "wrong-result")):
        found = verify_linked(bed.bench.context, library, "my_axpb", f"axpb:{variant}", two)
        assert found.status == status, found.reason
    assert verify_linked(bed.bench.context, library, "my_axpb", "axpb:refusing", two).status == "failed"
    assert bed.bench.pool.deaths == deaths + 1
    told = [line for line in bed.lines if "libraries now stay loaded" in line]
    assert len(told) == 1
    assert "SIGABRT" in told[0]
