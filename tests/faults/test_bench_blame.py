"""Who is to blame: what a candidate leaves behind costs no other one, and what a worker lacks costs none."""

from __future__ import annotations

from pathlib import Path

import pytest
from compiled import Bed

from aot_tune.bench.protocol import messages
from aot_tune.support.errors import AotTuneError

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
