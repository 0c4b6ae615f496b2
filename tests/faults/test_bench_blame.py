"""Who is to blame: what a candidate leaves behind costs no other one, and what a worker lacks costs none."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from compiled import Bed

from aot_tune.bench.host.worker_process import DiedError
from aot_tune.bench.protocol import messages
from aot_tune.support.errors import AotTuneError, TooLargeError

pytestmark = pytest.mark.slow

OTHERS = {"good": "ok", "baseline:numpy": "ok"}


def test_what_is_no_message_on_the_pipe_costs_the_candidate_that_wrote_it(bed: Bed) -> None:
    """FAULTS.md, row 51, is what has the form of an answer."""
    bed.refuse("babbles", "no-result", r"no message in .*: ")
    bed.refuse("answers", "no-result", r"no message in .*an answer that nobody asked for")
    raced = {n: m.status for n, m in bed.race("good", "babbles_in_frames").items()}
    assert raced == {**OTHERS, "babbles_in_frames": "no-result"}
    assert bed.screen("good").status == "ok"


def test_of_a_process_that_forked_one_answers(bed: Bed) -> None:
    for name in ("forks", "good", "forks", "spins"):
        measured = bed.screen(name, tune_checks=False)
        assert measured.status == "ok", measured.reason
        assert measured.screen
        assert isinstance(bed.bench.pool.candidates().request(messages.Ping(), 5), messages.Pong)


def test_an_entry_after_whose_turns_workers_die_is_out_and_no_other(bed: Bed) -> None:
    raced = {n: (m.status, m.reason) for n, m in bed.race("good", "never_waits", "spins").items()}
    status, reason = raced.pop("never_waits")
    assert status == "no-result"
    assert reason.startswith("ended with status 1 in ")
    assert raced == dict.fromkeys(("good", "spins", "baseline:numpy"), ("ok", ""))


def test_a_candidate_that_lowers_the_limits_of_its_process_is_out_and_the_next_has_its_own(bed: Bed) -> None:
    for measured in (bed.screen("lowers_limits"), bed.race("lowers_limits")["lowers_limits"]):
        assert measured.status == "failed"
        assert measured.reason.startswith("it changes its limits (RLIMIT_AS, RLIMIT_DATA are lower) in ")
        assert measured.lasting
    assert bed.screen("good").status == "ok"


def test_what_somebody_killed_twice_may_still_be_right_the_next_time(bed: Bed) -> None:
    """As the end of a budget does, or the system when it is out of memory."""
    digest = bed.screen("uses_openmp").code
    for _ in range(2):
        bed.bench.findings.strike(digest, DiedError("oom", "killed by SIGKILL in verify at 5 MiB resident"))
    found = bed.screen("uses_openmp")
    assert (found.status, found.lasting) == ("oom", False)
    assert "not run again" in found.reason


def test_a_worker_that_died_while_it_was_not_asked_is_replaced(bed: Bed) -> None:
    bed.screen("good")
    bed.bench.pool.settle()
    idle = bed.bench.pool.workers()
    assert [w.state for w in idle] == ["READY"] * 3
    for worker in idle:
        os.kill(worker.pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.005)
    assert bed.screen("good", bed.prepare(R=3, D=5)).status == "ok"


def test_a_worker_that_is_killed_over_a_reference_costs_no_build(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_problem_that_workers_have_no_memory_for_is_told_and_no_candidate_blamed(bed: Bed) -> None:
    prepared = bed.prepare(R=2048, D=2048)
    bed.bench.pool.candidates()
    for worker in bed.bench.pool.workers():
        if worker.role == "candidate":
            worker.wait_ready()
            held = int(Path(f"/proc/{worker.pid}/statm").read_text().split()[5]) * resource.getpagesize()
            hard = resource.prlimit(worker.pid, resource.RLIMIT_DATA)[1]
            resource.prlimit(worker.pid, resource.RLIMIT_DATA, (held + (8 << 20), hard))
    with pytest.raises(TooLargeError, match=r"no worker can hold problem 'R=2048 D=2048' .* bytes of"):
        bed.screen("good", prepared, tune_checks=False)
    assert bed.screen("good", prepared, tune_checks=False).status == "ok"


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_candidate_is_not_blamed_for_memory_that_others_hold(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, deaths: int
) -> None:
    """Workers give back what they keep, and it is tried again. After that, the problem is left out."""
    pool, killed = bed.bench.pool, list[int]()
    request = pool.request

    def starve(worker: Any, message: Any, seconds: float) -> Any:
        if isinstance(message, messages.Verify) and len(killed) < deaths:
            killed.append(worker.pid)
            worker.kill()
            raise DiedError("oom", "killed by SIGKILL in verify at 90 MiB resident", starved=True)
        return request(worker, message, seconds)

    monkeypatch.setattr(pool, "request", starve)
    if deaths == 2:
        with pytest.raises(TooLargeError, match="no worker can hold problem 'R=16 D=256' of operator 'axpb'"):
            bed.screen("good")
    assert bed.screen("good").status == "ok"
    assert len(set(killed)) == deaths


def test_a_workspace_that_grows_between_the_calls_of_a_race_is_told(bed: Bed) -> None:
    found = bed.race("good", "forgets_size")
    assert (found["good"].status, found["forgets_size"].status) == ("ok", "skipped")
    assert found["forgets_size"].reason.startswith("asks for 18446744073709551615 bytes of workspace")


REFERENCES = {
    '    return [call.x, "y"]': "TypeError: the reference returns list instead of a dict from output names",
    '    return {"y": call.x[1:]}': "returns 'y' of shape (15, 256), but (16, 256) is declared",
    '    return {"y": call.xs}': "has no attribute 'xs' (operator.py:",
    '    return {"z": call.x}': "returns no 'y'",
}


def test_a_fault_of_a_reference_is_told_with_its_line(bed: Bed, tmp_path: Path) -> None:
    head, found, rest = (bed.folder / "operator.py").read_text().partition("def reference(xp, call):\n")
    assert found
    for number, (line, told) in enumerate(REFERENCES.items()):
        folder = tmp_path / str(number) / "axpb"
        folder.mkdir(parents=True)
        (folder / "operator.py").write_text(f"{head}{found}{line}\n{rest}")
        with pytest.raises(AotTuneError, match="'axpb': no reference for problem 'R=16 D=256'") as caught:
            bed.on(folder).prepare()
        assert told in caught.value.why
