"""Who is to blame: what a candidate leaves behind costs no other one, and what a worker lacks costs none."""

from __future__ import annotations

import os
import re
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from aot_tune.bench.protocol import messages
from aot_tune.support.errors import TooLargeError

pytestmark = pytest.mark.slow


def wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < deadline:
        time.sleep(0.005)


def test_what_is_no_message_on_the_pipe_costs_the_candidate_that_wrote_it(bed: Any) -> None:
    for name in ("babbles", "babbles_in_frames"):
        measured = bed.screen(name)
        assert measured.status == "no-result"
        assert re.search(r"no message in .*: ", measured.reason), measured.reason
        raced = {m.candidate: m.status for m in bed.bench.race(bed.prepare(), [bed.entry("good"), bed.entry(name)])}
        assert raced == {"good": "ok", name: "no-result", "baseline:numpy": "ok"}
        assert bed.screen("good").status == "ok"


def test_of_a_process_that_forked_one_answers(bed: Any) -> None:
    for name in ("forks", "good", "forks", "good", "spins"):
        measured = bed.screen(name, tune_checks=False)
        assert measured.status == "ok", measured.reason
        assert measured.screen
        assert isinstance(bed.bench.pool.candidates().request(messages.Ping(), 5), messages.Pong)


def test_a_candidate_that_leaves_arithmetic_changed_is_wrong(bed: Any) -> None:
    for name, what in (("rounds", "rounds in another direction"), ("flushes", "treats denormal numbers differently")):
        measured = bed.screen(name)
        assert measured.status == "wrong-result"
        assert f"the thread that called it {what} from then on (problem" in measured.reason
        assert bed.screen("good").status == "ok"


def test_an_entry_after_whose_turns_workers_die_is_out_and_no_other(bed: Any) -> None:
    entries = [bed.entry(n) for n in ("good", "never_waits", "spins")]
    raced = {m.candidate: (m.status, m.reason) for m in bed.bench.race(bed.prepare(), entries)}
    status, reason = raced.pop("never_waits")
    assert status == "no-result"
    assert reason.startswith("ended with status 1 in ")
    assert raced == dict.fromkeys(("good", "spins", "baseline:numpy"), ("ok", ""))


def test_a_candidate_that_lowers_the_limits_of_its_process_is_out_and_the_next_has_its_own(bed: Any) -> None:
    for measured in (bed.screen("lowers_limits"), bed.bench.race(bed.prepare(), [bed.entry("lowers_limits")])[0]):
        assert measured.status == "failed"
        assert measured.reason.startswith("it changes its limits (RLIMIT_AS, RLIMIT_DATA are lower) in ")
        assert measured.lasting
    assert bed.screen("good").status == "ok"


def test_a_worker_that_died_while_it_was_not_asked_is_replaced(bed: Any) -> None:
    bed.screen("good")
    bed.bench.pool.settle()
    idle = bed.bench.pool.workers()
    assert [w.state for w in idle] == ["READY"] * 3
    for worker in idle:
        os.kill(worker.pid, signal.SIGKILL)
        wait_for_end(worker.pid)
    assert bed.screen("good", bed.prepare(R=3, D=5)).status == "ok"


def test_a_worker_that_is_killed_over_a_reference_costs_no_build(bed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, killed = bed.bench.pool, []
    request = pool.request

    def kill_once(worker: Any, message: Any, seconds: float) -> Any:
        if isinstance(message, messages.Reference) and not killed:
            killed.append(worker.pid)
            Path(f"{message.folder}.partial").mkdir()  # as far as it came
            os.kill(worker.pid, signal.SIGKILL)
        return request(worker, message, seconds)

    monkeypatch.setattr(pool, "request", kill_once)
    assert bed.screen("good", bed.prepare(R=3, D=7)).status == "ok"
    assert killed


def test_a_problem_that_workers_have_no_memory_for_is_told_and_no_candidate_blamed(bed: Any) -> None:
    prepared = bed.prepare(R=4096, D=4096)
    bed.bench.pool.candidates()
    for worker in bed.bench.pool.workers():
        if worker.role == "candidate":
            worker.wait_ready()
            held = int(Path(f"/proc/{worker.pid}/statm").read_text().split()[5]) * resource.getpagesize()
            hard = resource.prlimit(worker.pid, resource.RLIMIT_DATA)[1]
            resource.prlimit(worker.pid, resource.RLIMIT_DATA, (held + (32 << 20), hard))
    with pytest.raises(TooLargeError, match=r"no worker can hold problem 'R=4096 D=4096' .* bytes of"):
        bed.screen("good", prepared, tune_checks=False)
    assert bed.screen("good", prepared, tune_checks=False).status == "ok"


def test_a_workspace_that_grows_between_the_calls_of_a_race_is_told(bed: Any) -> None:
    found = {m.candidate: m for m in bed.bench.race(bed.prepare(), [bed.entry("good"), bed.entry("forgets_size")])}
    assert (found["good"].status, found["forgets_size"].status) == ("ok", "skipped")
    assert found["forgets_size"].reason.startswith("asks for 18446744073709551615 bytes of workspace")
