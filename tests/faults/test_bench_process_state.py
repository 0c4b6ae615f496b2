"""What candidates leave behind: FAULTS.md, rows 47 to 53. It is theirs alone, and the next one has a clean process."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aot_tune.bench.host.bench import Bench

pytestmark = pytest.mark.slow

CHANGES = {
    "changes_affinity": r"it changes the cores that it may use \(\d+, now 1\)",
    "changes_nice": r"it changes its priority \(nice \d+, now \d+\)",
    "changes_folder": r"it changes its working folder \(now /\)",
    "changes_handlers": r"it changes how it takes signals \(SIGUSR1\)",
    "changes_environment": r"it changes its environment \(OMP_PROC_BIND\)",
    "changes_descriptors": r"it changes its open files \(\d+ to /dev/null",
    "changes_omp_threads": r"it changes OpenMP's number of threads \(2, now 1\)",
    "changes_arithmetic_of_helpers": r"it changes how 1 of OpenMP's threads computes in floating point",
}


def test_row_49_a_candidate_that_changes_its_process_is_out_and_the_next_has_a_clean_one(bed: Any) -> None:
    for name, words in CHANGES.items():
        if name == "changes_affinity" and len(os.sched_getaffinity(0)) < 2:
            continue  # one core: nothing can be taken away
        measured = bed.screen(name)
        assert measured.status == "failed", name
        assert re.match(words, measured.reason), measured.reason
        assert bed.screen("good").status == "ok", name
    entries = [bed.entry("good"), *(bed.entry(name) for name in ("changes_nice", "changes_folder"))]
    raced = {m.candidate: m.status for m in bed.bench.race(bed.prepare(), entries)}
    assert raced == {"good": "ok", "changes_nice": "failed", "changes_folder": "failed", "baseline:numpy": "ok"}


def test_row_50_threads_that_outlive_their_call_are_a_status(bed: Any) -> None:
    for name, words in (
        ("leaves_spinning", "leaves 2 threads that run on after it returned"),
        ("leaves_sleeping", "leaves 1 thread in "),
    ):
        measured = bed.screen(name)
        assert measured.status == "leaves-threads"
        assert measured.reason.startswith(words), measured.reason
        assert bed.screen("good").status == "ok"


def test_openmps_own_threads_are_nobodys_fault(bed: Any) -> None:
    deaths = bed.bench.pool.deaths
    for _ in range(3):
        assert bed.screen("uses_openmp").status == "ok"
    assert bed.bench.pool.deaths == deaths


@pytest.mark.parametrize("threads", [1, 2])
def test_a_kernel_may_ask_openmp_for_more_threads_than_are_usual(
    make_bench: Callable[..., Bench], make_bed: Callable[[Bench], Any], threads: int
) -> None:
    with make_bench(threads=threads) as bench:
        bed = make_bed(bench)
        for _ in range(2):
            measured = bed.screen("asks_for_threads")
            assert measured.status == "ok", measured.reason
        assert bench.pool.deaths == 0


def test_row_51_an_answer_that_a_candidate_writes_is_none(bed: Any) -> None:
    measured = bed.screen("answers")
    assert measured.status == "no-result"
    assert "no message in" in measured.reason
    assert "an answer that nobody asked for" in measured.reason
    raced = {m.candidate: m.status for m in bed.bench.race(bed.prepare(), [bed.entry("good"), bed.entry("answers")])}
    assert raced == {"good": "ok", "answers": "no-result", "baseline:numpy": "ok"}


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


def test_row_52_no_orphan_is_left_whatever_environment_it_has(bed: Any) -> None:
    try:
        measured = bed.screen("unmarked_orphan")
        assert measured.status == "crashed", measured.reason
        deadline = time.monotonic() + 2
        while sleepers("4321") and time.monotonic() < deadline:
            time.sleep(0.05)
        assert sleepers("4321") == []
    finally:
        for pid in sleepers("4321"):
            os.kill(pid, signal.SIGKILL)
    assert bed.screen("good").status == "ok"


def test_row_53_files_are_capped_together(bed: Any) -> None:
    measured = bed.screen("many_files")
    assert measured.status == "too-much-disk"
    assert re.match(r"its files take \d+ MiB, but only 256 are allowed in ", measured.reason), measured.reason
    assert bed.screen("good").status == "ok"


def test_row_53_shared_memory_is_capped(bed: Any) -> None:
    measured = bed.screen("shared_memory")
    assert measured.status == "oom"
    assert re.match(r"it shares \d+ MiB of memory, but only 1024 are allowed in ", measured.reason), measured.reason
    assert bed.screen("good").status == "ok"


def test_row_53_nothing_stays_in_shared_memory(bed: Any) -> None:
    left = Path("/dev/shm/aot_tune-left-by-a-test")
    measured = bed.screen("shared_file")
    if bed.bench.pool.candidates().hello.sandbox["landlock"]:
        assert measured.status == "failed"
        assert "returned 13" in measured.reason
    assert not left.exists()


@pytest.mark.alone  # it compares times
def test_row_47_less_work_where_a_call_is_repeated_never_wins(bed: Any) -> None:
    prepared = bed.prepare(R=192, D=256)
    for name in ("sees_output", "remembers_result"):
        measured = bed.screen(name, prepared)
        assert measured.status == "suspicious", measured.reason
        assert re.match(r"takes \d+\.\d times as long when its outputs are missing", measured.reason), measured.reason
        good, bad, _ = bed.bench.race(prepared, [bed.entry("good"), bed.entry(name)])
        assert (good.status, bad.status) == ("ok", "suspicious")
        assert bad.final is None


def test_row_48_what_is_kept_of_inputs_by_their_address_is_wrong(bed: Any) -> None:
    measured = bed.screen("packs_by_pointer")
    assert measured.status == "wrong-result"
    assert "elements are wrong" in measured.reason
    measured = bed.screen("packs_by_pointer", tune_checks=False)
    assert measured.status == "wrong-result"


def test_honest_candidates_pass_again_and_again(bed: Any) -> None:
    for rows, columns in ((1, 16), (16, 256), (192, 256), (512, 1024)):
        prepared = bed.prepare(R=rows, D=columns)
        for _ in range(3):
            measured = bed.screen("good", prepared)
            assert measured.status == "ok", measured.reason
