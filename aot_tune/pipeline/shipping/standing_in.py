"""On older CPUs, a candidate like a winner stands in for kinds of calls that there was no time to measure."""

from __future__ import annotations

from collections.abc import Sequence

from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.pipeline.scheduling.older_cpus import transferred
from aot_tune.pipeline.session import Session
from aot_tune.spec import Operator, Problem, all_of

__all__ = ["stand_in"]


def stand_in(session: Session, found: Sequence[Evidence]) -> None:
    """For each choice of dtypes without a time, let one candidate stand in for all of its problems.

    `found` is an operator's evidence by target. On the target for older CPUs, the chosen config is the most like the
    one that won most of these problems on this machine's own target. It is verified like every kept variant. Without it
    the generic variant would serve these calls, at least ten times as slow.
    """
    older = next((e for e in found if e.brief and not e.left_out), None)
    tuned = next((e for e in reversed(found) if e.target.on_host and not e.brief and not e.left_out), None)
    if older is None or tuned is None or not tuned.measurements:
        return
    likely = transferred(session, tuned, older.target)
    for dtypes, problems in _unreached(older).items():
        candidates = [e for e in likely if tuple(e.candidate.dtypes.values()) == dtypes]
        known = [older.entries.get(e.candidate.id, e) for e in candidates]
        able = [e for e in known if e.candidate.id not in older.entries or not older.failed(e.candidate.id)]
        best = max(able, key=lambda e: _served(older.operator, e, problems), default=None)
        if best is not None and _served(older.operator, best, problems):
            older.try_too([best])
            best.stand_in()


def _unreached(evidence: Evidence) -> dict[tuple[str, ...], list[Problem]]:
    """For each choice of dtypes, its problems, if only generic variants were timed on them."""
    operator = evidence.operator
    timed = {p for p, row in evidence.times().items() if any(not evidence.entries[c].candidate.generic for c in row)}
    kinds: dict[tuple[str, ...], list[Problem]] = {}
    for problem in evidence.workload:
        kinds.setdefault(tuple(problem.dtypes.get(v, c[0]) for v, c in operator.dtypes.items()), []).append(problem)
    return {dtypes: found for dtypes, found in kinds.items() if timed.isdisjoint(p.id for p in found)}


def _served(operator: Operator, entry: Entry, problems: Sequence[Problem]) -> int:
    """How many of the problems a candidate serves, among those that its model won."""
    wanted = [p for p in problems if entry.only is None or p.id in entry.only]
    return sum(all_of(entry.requires, operator.facts(p)) for p in wanted)
