"""What candidates do wrong, and the status that it must come to; each with a real compiled candidate."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from aot_tune.bench.host.worker_process import DiedError
from aot_tune.bench.protocol.measurement_records import Deadlines
from aot_tune.support.processes import children_of

pytestmark = pytest.mark.slow


def strays(token: str) -> list[int]:
    """Processes that descend from a bench's workers."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and token.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_a_good_candidate_is_ok_and_has_times(bed: Any) -> None:
    measured = bed.screen("good")
    assert measured.status == "ok", measured.reason
    assert len(measured.screen) >= 2
    assert all(ns > 100 for ns in measured.screen)
    assert measured.error is not None
    assert 0 <= measured.error <= 1
    assert measured.bitwise is True
    assert {"load", "check", "verify", "bench"} <= set(measured.phases)
    assert measured.ns is not None


FAULTS = (
    ("segfault", "crashed", r"SIGSEGV in a run of problem 'R="),
    ("aborts", "crashed", r"SIGABRT in a run of problem 'R="),
    ("loader", "crashed", r"SIGABRT in load"),
    ("exits", "no-result", r"ended with status 0 in .* before it answered"),
    ("past_end", "wrong-result", r"oob: guard zone of 'y': \d+ bytes written 0 bytes past its end"),
    ("past_workspace", "wrong-result", r"oob: guard zone of 'workspace': 1 bytes written 0 bytes past"),
    ("before_start", "wrong-result", r"oob: guard zone of 'y': 4 bytes written 0 bytes before its start"),
    ("reads_past", "crashed", r"SIGSEGV in a run of .*, whose tensors end where memory"),
    ("reads_before", "crashed", r"SIGSEGV in a run of .*, whose tensors begin where memory"),
    ("between_rows", "wrong-result", r"oob: 4 bytes between the rows of 'y'"),
    (
        "one_wrong",
        "wrong-result",
        r"y\[\d+, \d+\]: got .*, want .*, .* times the tolerance .*; 1 of \d+ elements are",
    ),
    ("tail", "wrong-result", r"y\[\d+, \d+\]: got 0\.0, want "),
    ("half", "wrong-result", r"y\[\d+, \d+\]: got nan, want "),
    ("mutates", "wrong-result", r"input 'x' was changed, first at byte \d+"),
    ("makes_nan", "wrong-result", r"got nan, want "),
    (
        "hides_nan",
        "wrong-result",
        r"got 0\.0, want nan.*NaN and infinities in 'x'; if no call has any there, declare 'x' with finite=True",
    ),
    ("stale_workspace", "wrong-result", r"elements are wrong"),
    ("hog", "oom", r"SIGSEGV in .*MiB resident"),
    ("leak", "oom", r"grows by \d{7} bytes per call"),
    ("big_file", "failed", r"returned 27"),
    ("refuses", "failed", r"candidate_launch returned 5"),
    ("dense", "wrong-result", r"problem 'R=\d+ D=\d+ [xy]:"),
    ("aligned", "crashed", r"SIGSEGV in a run of problem 'R=\d+ D=\d+ \+bias bias@4 x@4 y@4"),
    ("positive", "wrong-result", r"R=\d+ D=\d+ x:\(-\d+,1\)"),
    ("spread", "wrong-result", r"R=\d+ D=\d+ bias:\(0\)"),
    ("huge_workspace", "skipped", r"asks for 1099511627776 bytes of workspace"),
)
"""Candidates by their sources, and what must be said of them."""


def test_a_fault_is_a_status_and_the_next_candidate_is_unaffected(bed: Any) -> None:
    for name, status, pattern in FAULTS:
        measured = bed.screen(name)
        assert measured.status == status, measured
        assert re.search(pattern, measured.reason), measured.reason
        assert not measured.screen or status == "oom"
        assert bed.screen("good").status == "ok", name


def test_one_wrong_element_in_2_to_the_24_is_found(bed: Any) -> None:
    large = bed.prepare(R=4096, D=4096)
    assert bed.screen("good", large, tune_checks=False).status == "ok"
    measured = bed.screen("one_wrong", large, tune_checks=False)
    assert measured.status == "wrong-result"
    assert "y[4095, 4095]: got " in measured.reason
    assert "1 of 16777216 elements are wrong" in measured.reason


@pytest.mark.alone
def test_a_candidate_that_works_only_while_it_is_looked_at_is_suspicious(bed: Any) -> None:
    measured = bed.screen("lazy", bed.prepare(R=256, D=1024))
    assert measured.status == "suspicious"
    assert re.search(r"^takes \d+\.\d times as long when its outputs are missing", measured.reason)


def test_what_is_wrong_only_in_repeated_calls_is_found_after_those_that_were_timed(bed: Any) -> None:
    measured = bed.screen("accumulates")
    assert measured.status == "wrong-result"
    assert re.search(r"\(after \d+ timed calls\)$", measured.reason)


def test_a_call_that_takes_as_long_as_an_empty_one_is_not_suspicious_where_there_is_next_to_nothing_to_do(
    bed: Any,
) -> None:
    """Else the generic variant would fail by chance, and with it every build of a workload with so small a problem."""
    prepared = bed.prepare(R=1, D=1)
    for _ in range(8):
        measured = bed.screen("good", prepared, tune_checks=False)
        assert measured.status == "ok", measured.reason
        assert measured.ns > 0
    raced = {m.candidate: m.status for m in bed.bench.race(prepared, [bed.entry("good")])}
    assert raced == {"good": "ok", "baseline:numpy": "ok"}


def test_a_problem_without_elements_is_verified(bed: Any) -> None:
    assert bed.bench.verify(bed.prepare(R=0, D=7), bed.entry("good")).status == "ok"


def test_an_unsteady_candidate_is_flagged_and_correct(bed: Any) -> None:
    measured = bed.screen("unsteady")
    assert measured.status == "ok", measured.reason
    assert measured.bitwise is False


@pytest.fixture
def steady_bed(make_bench: Any, make_bed: Any, operator_folder: Path) -> Iterator[Any]:
    """As `bed`, with an operator whose equal calls must give equal bits."""
    path = operator_folder / "operator.py"
    path.write_text(path.read_text().replace('name="axpb",', 'name="axpb",\n    deterministic=True,'))
    with make_bench() as bench:
        yield make_bed(bench)


def test_an_unsteady_candidate_is_wrong_where_bits_must_be_the_same(steady_bed: Any) -> None:
    for tune_checks in (True, False):
        measured = steady_bed.screen("unsteady", tune_checks=tune_checks)
        assert measured.status == "wrong-result"
        found = re.match(
            r"not deterministic: \d bytes of 'y' differ between two runs, first \d \(problem", measured.reason
        )
        assert found, measured.reason
        assert measured.ns is None
    assert steady_bed.screen("good").status == "ok"


def test_a_candidate_that_is_unsteady_only_while_it_is_timed_is_found(steady_bed: Any) -> None:
    measured = steady_bed.screen("unsteady_later", tune_checks=False)
    assert measured.status == "wrong-result"
    assert re.match(r"not deterministic: .* \(after \d+ timed calls\)", measured.reason), measured.reason


def test_a_candidate_that_goes_wrong_later_is_found_after_timing(bed: Any) -> None:
    measured = bed.screen("later", tune_checks=False)
    assert measured.status == "wrong-result"
    assert re.search(r"y\[0, 0\]: got .*after \d+ timed calls", measured.reason), measured.reason


@pytest.mark.alone
def test_a_hang_is_killed_at_its_deadline(make_bench: Any, make_bed: Any) -> None:
    deadlines = Deadlines(handshake=30, check=1.0, verify=1.0, graceful=0.1, terminate=0.2)
    with make_bench(deadlines=deadlines) as bench:
        bed = make_bed(bench)
        prepared = bed.prepare()
        bed.screen("good", prepared)
        begin = time.monotonic()
        measured = bed.screen("hangs", prepared)
        took = time.monotonic() - begin
        assert measured.status == "timeout"
        assert re.search(r"no answer within 1 s in a run of problem 'R=", measured.reason), measured.reason
        assert 1.3 <= took < 2.0, f"a deadline of 1 s, and 0.3 s to end without SIGKILL, took {took:.1f} s"
        assert bed.screen("good", prepared).status == "ok"


@pytest.mark.alone
def test_a_slow_candidate_does_not_get_the_whole_deadline(make_bench: Any, make_bed: Any) -> None:
    deadlines = Deadlines(handshake=30, verify=60.0, verify_least=0.5)
    with make_bench(deadlines=deadlines) as bench:
        bed = make_bed(bench)
        prepared = bed.prepare()
        begin = time.monotonic()
        assert bed.screen("hangs", prepared, best_ns=1000.0, tune_checks=False).status == "timeout"
        assert time.monotonic() - begin < 5.0


@pytest.mark.alone
def test_orphans_of_many_crashes_are_killed_and_reaped(make_bench: Any, make_bed: Any) -> None:
    """Some die by themselves just as the worker does: nothing is left of them, not even a zombie."""
    before = set(children_of(os.getpid()))  # such as the reaper of what this process compiles
    with make_bench(strikes=100) as bench:
        bed = make_bed(bench)
        for _ in range(10):
            assert bed.screen("daemon_crash").status == "crashed"
        bench.pool.candidates()
        bench.pool.sweep()
        alive = {w.pid for w in bench.pool.workers()}
        assert set(strays(bench.pool.token)) <= alive
        deadline = time.monotonic() + 1
        while set(children_of(os.getpid())) - before != alive and time.monotonic() < deadline:
            bench.pool.sweep()
        assert set(children_of(os.getpid())) - before == alive


def test_no_process_that_a_candidate_started_survives(own_bed: Any) -> None:
    pool, token = own_bed.bench.pool, own_bed.bench.pool.token
    for name, status in (("daemon", "ok"), ("daemon_crash", "crashed")):
        measured = own_bed.screen(name)
        assert measured.status == status, measured.reason
        alive = {w.pid for w in pool.workers()}
        assert set(strays(token)) <= alive
    pool.close()
    assert strays(token) == []
    assert not alive & set(children_of(os.getpid()))


def test_a_flood_of_output_is_capped(bed: Any) -> None:
    worker = bed.bench.pool.candidates()
    captured = []
    request = type(worker).request

    def remember(self: Any, *arguments: Any) -> Any:
        try:
            return request(self, *arguments)
        finally:
            captured.append(self.output)

    type(worker).request = remember
    try:
        measured = bed.screen("flood")
    finally:
        type(worker).request = request
    assert measured.status == "ok", measured.reason
    flood = max(captured, key=lambda o: o.total)
    assert flood.total >= 60 << 20
    text = flood.text()
    assert len(text) < 66 << 10
    assert "bytes left out" in text
    assert text.startswith(f"{0:063d}\n")
    assert f"{(1 << 20) - 1:063d}" in text


def test_the_sandbox_denies_files_network_and_signals(bed: Any, objects: Callable[[str], Path]) -> None:
    if bed.bench.pool.candidates().hello.sandbox["landlock"] < 6:
        pytest.skip("this kernel's Landlock is older than version 6")
    measured = bed.screen("outside")
    assert measured.status == "ok", measured.reason
    assert not (objects("outside").parent / "outside").exists()


def test_a_missing_landlock_is_said_once_and_work_goes_on(make_bench: Any, make_bed: Any, monkeypatch: Any) -> None:
    lines: list[str] = []
    with make_bench(log=lines.append) as bench:
        bed = make_bed(bench)
        for worker in bench.pool.workers():
            worker.wait_ready()
            worker.hello = type(worker.hello)(
                **{**{f: getattr(worker.hello, f) for f in worker.hello.__struct_fields__}, "notes": ("no Landlock",)}
            )
        assert bed.screen("segfault").status == "crashed"
        assert bed.screen("good").status == "ok"
    assert lines.count("sandbox: no Landlock") == 1


def test_a_candidate_that_killed_workers_is_not_run_again(own_bed: Any) -> None:
    bed, deaths = own_bed, own_bed.bench.pool.deaths
    prepared = [bed.prepare(R=16, D=256), bed.prepare(R=4, D=64), bed.prepare(R=2, D=32)]
    first, second, third = (bed.screen("segfault", p) for p in prepared)
    assert (first.status, second.status, third.status) == ("crashed", "crashed", "crashed")
    assert third.reason.startswith("SIGSEGV")
    assert third.reason.endswith("; not run again, because it has killed 2 workers")
    assert bed.bench.pool.deaths == deaths + 2


def test_what_somebody_killed_twice_may_still_be_right_the_next_time(own_bed: Any) -> None:
    """As the end of a budget does, or the system when it is out of memory."""
    bed, prepared = own_bed, own_bed.prepare(R=16, D=256)
    digest = bed.screen("good", prepared).code
    for _ in range(2):
        bed.bench.findings.strike(digest, DiedError("oom", "killed by SIGKILL in verify at 5 MiB resident"))
    found = bed.screen("good", prepared)
    assert (found.status, found.lasting) == ("oom", False)
    assert "not run again" in found.reason


def test_a_thread_that_crashes_later_neither_ends_the_build_nor_blames_the_next(bed: Any) -> None:
    problems = [bed.prepare(R=r, D=64) for r in (4, 5, 6, 7)]
    for prepared in problems:
        assert bed.screen("late_crash", prepared).status in ("leaves-threads", "crashed")  # in time to be caught
        worker = bed.bench.pool.candidates()
        deadline = time.monotonic() + 0.3
        state = "R"
        while state != "Z" and worker.hosted and time.monotonic() < deadline:  # dies while the bench looks elsewhere
            state = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0]
            time.sleep(0.005)
        measured = bed.screen("good", prepared)
        assert measured.status == "ok", measured.reason


def test_an_object_that_cannot_be_loaded_is_failed(bed: Any, tmp_path: Path) -> None:
    path = tmp_path / "broken.so"
    path.write_bytes(b"\x7fELF" + bytes(100))
    entry = bed.entry("good")
    measured = bed.bench.screen(bed.prepare(), replace(entry, shared_object=path, code="0" * 64))
    assert measured.status == "failed"
    assert "broken.so cannot be loaded" in measured.reason
    measured = bed.bench.screen(bed.prepare(), replace(entry, symbol="other", code="1" * 64))
    assert measured.status == "failed"
    assert "lacks a function" in measured.reason
