"""What candidates do wrong, and the status that it must come to; each with a real compiled candidate."""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from compiled import Bed, linked_variant
from msgspec.structs import replace
from processes import becomes_true, is_alive, processes

from aot_tune.bench.host.bench import Bench
from aot_tune.bench.protocol.measurement_records import Deadlines
from aot_tune.support.processes import children_of

pytestmark = pytest.mark.slow

Make = Callable[..., Bench]


def strays(token: str) -> set[int]:
    """Processes that descend from a bench's workers."""
    return set(processes(lambda entry: token.encode() in (entry / "environ").read_bytes()))


def test_a_good_candidate_is_ok_and_has_times(bed: Bed) -> None:
    measured = bed.screen("good")
    assert measured.status == "ok", measured.reason
    assert len(measured.screen) >= 2
    assert all(ns > 100 for ns in measured.screen)
    assert measured.error is not None
    assert 0 <= measured.error <= 1
    assert measured.bitwise is True
    assert {"load", "check", "verify", "bench"} <= set(measured.phases)
    assert measured.ns is not None
    assert bed.bench.verify(bed.prepare(R=0, D=7), bed.entry("good")).status == "ok"  # without elements


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
    ("one_wrong", "wrong-result", r"y\[\d+, \d+\]: .* times the tolerance .*; 1 of \d+ elements are"),
    ("tail", "wrong-result", r"y\[\d+, \d+\]: got 0\.0, want "),
    ("half", "wrong-result", r"y\[\d+, \d+\]: got nan, want "),
    ("keeps_larger", "wrong-result", r"y\[0, 0\]: got inf, want "),
    ("lazy", "wrong-result", r"y\[0, 0\]: got inf, want "),
    ("keeps_finite", "wrong-result", r"y\[\d+, \d+\]: got -0\.71875, want "),
    ("mutates", "wrong-result", r"input 'x' was changed, first at byte \d+"),
    ("shrinks_shape", "wrong-result", r"^the caller's description of 'x' was changed \(problem"),
    ("moves_output", "wrong-result", r"^the caller's description of 'y' was changed"),
    ("restores_input", "crashed", r"SIGSEGV in a run of .*, whose inputs cannot be written"),
    ("one_thread", "wrong-result", r"elements are wrong \(problem 'R=\d+ D=\d+', with 1 thread\)"),
    ("three_threads", "wrong-result", r"elements are wrong \(problem 'R=\d+ D=\d+', with 3 threads\)"),
    ("makes_nan", "wrong-result", r"got nan, want "),
    ("hides_nan", "wrong-result", r"got 0\.0, want nan.*NaN and infinities in 'x'; .* declare 'x' with finite=True"),
    ("stale_workspace", "wrong-result", r"elements are wrong"),
    ("leak", "oom", r"grows by \d{7} bytes per call"),
    ("big_file", "failed", r"returned 27"),
    ("refuses", "failed", r"candidate_launch returned 5"),
    ("dense", "wrong-result", r"problem 'R=\d+ D=\d+ [xy]:"),
    ("aligned", "crashed", r"SIGSEGV in a run of problem 'R=\d+ D=\d+ \+bias bias@4 x@4 y@4"),
    ("wide_rows", "wrong-result", r"elements are wrong \(problem 'R=\d+ D=\d+ x:\(\d+,1\)"),
    ("far_rows", "wrong-result", r"elements are wrong \(problem 'R=\d+ D=\d+ x:\(65536,1\)"),
    ("zeros", "wrong-result", r"', zeros; if no call has any, declare inputs with values=uniform\(\.\.\.\) without"),
    ("denormals", "wrong-result", r"', denormal numbers; if no call has any, declare inputs"),
    ("positive", "wrong-result", r"R=\d+ D=\d+ x:\(-\d+,1\)"),
    ("spread", "wrong-result", r"R=\d+ D=\d+ bias:\(0\)"),
    ("huge_workspace", "skipped", r"asks for 1099511627776 bytes of workspace"),
    ("accumulates", "wrong-result", r"got inf, want "),
)
"""Candidates by their sources, and what must be said of them. Those that keep what an output held are row 77,
those of values row 78, those of far rows and a number of threads row 79."""


def test_a_fault_is_a_status_and_the_next_candidate_is_unaffected(bed: Bed) -> None:
    for name, status, told in FAULTS:
        bed.refuse(name, status, told)
    bed.refuse("later", "wrong-result", r"y\[0, 0\]: got .*after \d+ timed calls", tune_checks=False)
    assert bed.screen("segfault", bed.prepare(R=4, D=64)).status == "crashed"
    deaths = bed.bench.pool.deaths
    last = bed.screen("segfault", bed.prepare(R=2, D=32))
    assert last.status == "crashed"
    assert re.search("^SIGSEGV.*; not run again, because it has killed 2 workers$", last.reason), last.reason
    assert bed.bench.pool.deaths == deaths


@pytest.mark.alone
def test_what_takes_all_memory_is_told_from_a_crash(bed: Bed) -> None:
    """Of a worker's peak, Linux says nothing below what the process that started it held: here few tests ran before."""
    bed.refuse("hog", "oom", r"SIGSEGV in .*MiB resident")


def test_one_wrong_element_in_2_to_the_24_is_found(bed: Bed) -> None:
    large = bed.prepare(R=4096, D=4096)
    assert bed.screen("good", large, tune_checks=False).status == "ok"
    measured = bed.screen("one_wrong", large, tune_checks=False)
    assert measured.status == "wrong-result"
    assert "y[4095, 4095]: got " in measured.reason
    assert "1 of 16777216 elements are wrong" in measured.reason


def test_a_call_that_takes_as_long_as_an_empty_one_is_not_suspicious_where_there_is_next_to_nothing_to_do(
    bed: Bed,
) -> None:
    """Else the generic variant would fail by chance, and with it every build of a workload with so small a problem."""
    prepared = bed.prepare(R=1, D=1)
    for _ in range(8):
        measured = bed.screen("good", prepared, tune_checks=False)
        assert measured.status == "ok", measured.reason
        assert measured.ns is not None
        assert measured.ns > 0
    assert {n: m.status for n, m in bed.race("good", R=1, D=1).items()} == {"good": "ok", "baseline:numpy": "ok"}


def test_an_unsteady_candidate_is_wrong_where_bits_must_be_the_same(bed: Bed, tmp_path: Path) -> None:
    measured = bed.screen("unsteady")
    assert (measured.status, measured.bitwise) == ("ok", False), measured.reason
    raced = bed.race("unsteady", "spins")
    told = "not deterministic: results vary between equal calls; if that is meant, declare deterministic=False"
    assert (raced["unsteady"].status, raced["unsteady"].reason) == ("wrong-result", told)
    assert (raced["spins"].status, raced["spins"].bitwise) == ("ok", True)  # the next best
    assert bed.race("unsteady", R=8, D=64)["unsteady"].status == "wrong-result"  # as is known of the object
    beds = {}
    for declared in (True, False):
        (tmp_path / str(declared) / "axpb").mkdir(parents=True)
        text = (bed.folder / "operator.py").read_text()
        (tmp_path / str(declared) / "axpb" / "operator.py").write_text(
            text.replace('name="axpb",', f'name="axpb",\n    deterministic={declared},')
        )
        beds[declared] = bed.on(tmp_path / str(declared) / "axpb")
    meant = beds[False].race("unsteady")["unsteady"]
    assert (meant.status, meant.bitwise) == ("ok", False), meant.reason
    steady = beds[True]
    told = r"^not deterministic: \d bytes of 'y' differ between two runs, first \d \(problem"
    steady.refuse("unsteady", "wrong-result", told)
    steady.refuse("unsteady", "wrong-result", told, tune_checks=False)
    steady.refuse(
        "unsteady_later", "wrong-result", r"^not deterministic: .* \(after \d+ timed calls\)", tune_checks=False
    )


def test_a_hang_is_killed_at_its_deadline_and_a_slow_candidate_does_not_get_all_of_it(
    make_bench: Make, make_bed: Callable[[Bench], Bed]
) -> None:
    deadlines = Deadlines(handshake=30, check=1.0, verify=60.0, verify_least=0.5, graceful=0.1, terminate=0.2)
    with make_bench(deadlines=deadlines) as bench:
        bed = make_bed(bench)
        prepared, _ = bed.prepare(), bed.entry("hangs")  # compiled before time counts
        bed.screen("good", prepared)
        begin = time.monotonic()
        measured = bed.screen("hangs", prepared)
        took = time.monotonic() - begin
        assert measured.status == "timeout"
        assert re.search(r"no answer within 1 s in a run of problem 'R=", measured.reason), measured.reason
        assert 1.3 <= took < 20, f"a deadline of 1 s, and 0.3 s to end without SIGKILL, took {took:.1f} s"
        assert bed.screen("good", prepared).status == "ok"
        begin = time.monotonic()
        assert bed.screen("hangs", prepared, best_ns=1000.0, tune_checks=False).status == "timeout"
        assert time.monotonic() - begin < 20  # others have 60 s


def test_no_process_that_a_candidate_started_survives(make_bench: Make, make_bed: Callable[[Bench], Bed]) -> None:
    """Some die by themselves just as the worker does: nothing is left of them, not even a zombie."""
    before = set(children_of(os.getpid()))  # such as the reaper of what this process compiles
    with make_bench(strikes=100) as bench:
        bed, pool = make_bed(bench), bench.pool
        for name, status in (("daemon", "leaves-threads"), *[("daemon_crash", "crashed")] * 3):
            measured = bed.screen(name)
            assert measured.status == status, measured.reason
            assert strays(pool.token) <= {w.pid for w in pool.workers()}
        pool.candidates()
        pool.sweep()
        alive = {w.pid for w in pool.workers()}
        assert becomes_true(lambda: pool.sweep() or set(children_of(os.getpid())) - before == alive, 10)
    assert not strays(pool.token)
    assert not alive & set(children_of(os.getpid()))


def test_a_flood_of_output_is_capped(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    request, outputs = bed.bench.pool.request, list[Any]()

    def remember(worker: Any, *given: Any) -> Any:
        reply = request(worker, *given)
        outputs.append(worker.output)
        return reply

    monkeypatch.setattr(bed.bench.pool, "request", remember)
    measured = bed.screen("flood")
    assert measured.status == "ok", measured.reason
    flood = max(outputs, key=lambda o: o.total)
    assert flood.total >= 60 << 20
    text = flood.text()
    assert len(text) < 66 << 10
    assert "bytes left out" in text
    assert text.startswith(f"{0:063d}\n")
    assert f"{(1 << 20) - 1:063d}" in text


def test_the_sandbox_denies_files_network_and_signals(bed: Bed) -> None:
    if bed.bench.pool.candidates().hello.sandbox["landlock"] < 6:
        pytest.skip("this kernel's Landlock is older than version 6")
    measured = bed.screen("outside")
    assert measured.status == "ok", measured.reason
    assert not (bed.objects("outside").parent / "outside").exists()


def test_a_missing_landlock_is_said_once_and_work_goes_on(bed: Bed) -> None:
    bed.bench.pool.candidates()
    for worker in bed.bench.pool.workers():
        worker.wait_ready()
        worker.hello = replace(worker.hello, notes=("no Landlock",))
    assert bed.screen("aborts").status == "crashed"
    assert bed.screen("good").status == "ok"
    assert bed.lines.count("sandbox: no Landlock") == 1


def test_a_thread_that_crashes_later_neither_ends_the_build_nor_blames_the_next(bed: Bed) -> None:
    for rows in (4, 5):
        prepared = bed.prepare(R=rows, D=64)
        assert bed.screen("late_crash", prepared).status in ("leaves-threads", "crashed")  # in time to be caught
        worker = bed.bench.pool.candidates()
        # It dies while the bench looks elsewhere.
        becomes_true(lambda worker=worker: not (worker.hosted and is_alive(worker.pid)), 0.3)
        measured = bed.screen("good", prepared)
        assert measured.status == "ok", measured.reason


def test_an_object_that_cannot_be_loaded_is_failed(bed: Bed, tmp_path: Path) -> None:
    path = tmp_path / "broken.so"
    path.write_bytes(b"\x7fELF" + bytes(100))
    good = SimpleNamespace(id="good")
    for wrong, told in (
        (linked_variant(good, path, "candidate", "0" * 64), "broken.so cannot be loaded"),
        (linked_variant(good, bed.objects("good"), "other", "1" * 64), "lacks a function"),
    ):
        measured = bed.bench.screen(bed.prepare(), wrong)
        assert measured.status == "failed"
        assert told in measured.reason
