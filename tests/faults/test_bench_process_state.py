"""What candidates leave behind: FAULTS.md, rows 47 to 53. It is theirs alone, and the next one has a clean process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from compiled import Bed

from aot_tune.bench.host.bench import Bench

pytestmark = pytest.mark.slow

LEFT = (
    ("changes_affinity", "failed", r"^it changes the cores that it may use \(\d+, now 1\)"),
    ("changes_nice", "failed", r"^it changes its priority \(nice \d+, now \d+\)"),
    ("changes_folder", "failed", r"^it changes its working folder \(now /\)"),
    ("changes_handlers", "failed", r"^it changes how it takes signals \(SIGUSR1\)"),
    ("changes_environment", "failed", r"^it changes its environment \(OMP_PROC_BIND\)"),
    ("changes_descriptors", "failed", r"^it changes its open files \(\d+ to /dev/null"),
    ("changes_omp_threads", "failed", r"^it changes OpenMP's number of threads \(2, now 1\)"),
    ("changes_arithmetic_of_helpers", "failed", r"^it changes how 1 of OpenMP's threads computes in floating point"),
    ("rounds", "wrong-result", r"the thread that called it rounds in another direction from then on"),
    ("flushes", "wrong-result", r"the thread that called it treats denormal numbers differently from then on"),
    ("leaves_spinning", "leaves-threads", r"^leaves 2 threads that run on after it returned"),
    ("leaves_sleeping", "leaves-threads", r"^leaves 1 thread in "),
    ("many_files", "too-much-disk", r"^its files take \d+ MiB, but only 256 are allowed in "),
    ("shared_memory", "oom", r"^it shares \d+ MiB of memory, but only 512 are allowed in "),
    ("packs_by_pointer", "wrong-result", r"elements are wrong"),
)
"""Rows 48, 49, 50 and 53: candidates by their sources, and what must be said of them."""


def test_what_candidates_leave_behind_is_a_status_and_the_next_has_a_clean_process(bed: Bed) -> None:
    for name, status, told in LEFT:
        if name != "changes_affinity" or len(os.sched_getaffinity(0)) > 1:  # of one core nothing can be taken away
            bed.refuse(name, status, told)
    assert bed.screen("packs_by_pointer", tune_checks=False).status == "wrong-result"
    raced = {n: m.status for n, m in bed.race("good", "changes_nice").items()}
    assert raced == {"good": "ok", "changes_nice": "failed", "baseline:numpy": "ok"}


def test_openmps_own_threads_are_nobodys_fault(bed: Bed, make_bench: Callable[..., Bench]) -> None:
    """Nor is it one to ask for more than are usual."""
    deaths = bed.bench.pool.deaths
    for name in ("uses_openmp", "asks_for_threads", "uses_openmp", "asks_for_threads"):
        assert bed.screen(name).status == "ok"
    assert bed.bench.pool.deaths == deaths
    with make_bench(threads=1) as bench:
        one = Bed(bench, bed.folder, bed.objects)
        for _ in range(2):
            measured = one.screen("asks_for_threads")
            assert measured.status == "ok", measured.reason
        assert bench.pool.deaths == 0


def sleepers(seconds: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cmdline").read_bytes().split(b"\0")[:2] == [b"sleep", seconds.encode()]:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_row_52_no_orphan_is_left_whatever_environment_it_has(bed: Bed) -> None:
    try:
        bed.refuse("unmarked_orphan", "crashed", "")
        deadline = time.monotonic() + 2
        while sleepers("4321") and time.monotonic() < deadline:
            time.sleep(0.05)
        assert sleepers("4321") == []
    finally:
        for pid in sleepers("4321"):
            os.kill(pid, signal.SIGKILL)


def test_row_53_nothing_stays_in_shared_memory(bed: Bed) -> None:
    left = Path("/dev/shm/aot_tune-left-by-a-test")
    measured = bed.screen("shared_file")
    if bed.bench.pool.candidates().hello.sandbox["landlock"]:
        assert measured.status == "failed"
        assert "returned 13" in measured.reason
    assert not left.exists()


@pytest.mark.alone  # it compares times
def test_row_47_less_work_where_a_call_is_repeated_never_wins(bed: Bed) -> None:
    shape = {"R": 192, "D": 256}
    for name in ("sees_output", "remembers_result", "lazy"):
        bed.refuse(name, "suspicious", r"^takes \d+\.\d times as long when its outputs are missing", **shape)
    raced = bed.race("good", "remembers_result", **shape)
    assert (raced["good"].status, raced["remembers_result"].status) == ("ok", "suspicious")
    assert raced["remembers_result"].final is None


def test_honest_candidates_pass_again_and_again(bed: Bed) -> None:
    for rows, columns in ((1, 16), (16, 256), (192, 256), (512, 1024)):
        prepared = bed.prepare(R=rows, D=columns)
        for _ in range(3):
            measured = bed.screen("good", prepared)
            assert measured.status == "ok", measured.reason
