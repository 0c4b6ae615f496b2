"""Variants for older CPUs. They are tuned last and briefly, starting with what won on this machine's own target."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from aot_tune.bench.protocol.measurement_records import is_baseline
from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.pipeline.measuring.device_pool import DevicePool
from aot_tune.pipeline.measuring.measure import left_undone
from aot_tune.pipeline.records.lookup import known_here
from aot_tune.pipeline.scheduling.time_to_link import seconds_after
from aot_tune.pipeline.scheduling.within_budget import BudgetTuning
from aot_tune.pipeline.session import LoadedOperator, Session
from aot_tune.render import Candidate, candidate_for
from aot_tune.spec import Config, ConfigValue, Kernel, Target
from aot_tune.support.digests import canonical_digest
from aot_tune.support.errors import SpecError

__all__ = ["most_alike", "older_seconds", "transferred", "tune_older"]

_TO_TUNE = 0.8
"""Share of the stated extra seconds that goes to tuning. The rest is for linking and checking more variants."""
_OF_BUDGET = 0.2
"""The largest share of the tuning budget that older CPUs may get."""
_NEAR, _PER_PROBLEM = 1.05, 2
"""A candidate won a problem if its time is within this factor of the best; the first two of them are always tried."""
_GUESSES = 1
"""How many guesses of an author are tried too, if the author's kernel won."""


def older_seconds(session: Session, kept: float) -> float:
    """Seconds for tuning variants for older CPUs. `kept` are the seconds for what comes after tuning."""
    if session.older is None or not session.plan.may_measure:
        return 0.0
    return min(_TO_TUNE * session.options.older_cpus, _OF_BUDGET * max(session.budget.left - kept, 0.0))


def tune_older(
    session: Session, target: Target, pool: DevicePool, tuned: Sequence[tuple[LoadedOperator, Evidence]]
) -> dict[str, Evidence]:
    """Evidence for older CPUs by operator. It starts from what was tuned on a pool's devices, which have references."""
    kept = seconds_after(session)
    session.begin_turn(1, kept, older_seconds(session, kept))
    begun, measured, reused = session.turn.spent, pool.measured, pool.reused
    found = {loaded.operator.name: _begun(session, target, evidence) for loaded, evidence in tuned}
    pairs = [(loaded, found[loaded.operator.name]) for loaded, _ in tuned]
    if session.options.mode == "auto":
        for loaded, evidence in pairs:
            known_here(session, loaded.operator, pool.device, evidence.entries).give(evidence)
    entries = [e for _, evidence in pairs for e in evidence.entries.values() if e.object is None and evidence.lacks(e)]
    session.pending.expect([evidence for _, evidence in pairs], entries)
    session.progress.line(f"{target.name}, for older CPUs: begins, for {session.turn.left:.0f} s at most")
    tuning = BudgetTuning(session, pool, pairs)
    tuning.run(entries)
    short = tuning.lacks_time()
    for _, evidence in pairs:
        if short or evidence.unmeasured():
            evidence.remark(left_undone(evidence, "the time for older CPUs"))
    session.progress.line(
        f"{target.name}, for older CPUs: {pool.measured - measured} measurements made, {pool.reused - reused} known "
        f"from before, in {session.turn.spent - begun:.0f} s"
    )
    return found


def _begun(session: Session, target: Target, tuned: Evidence) -> Evidence:
    """Evidence with the first candidates, and with the measurements that all targets share."""
    operator = tuned.operator
    evidence = Evidence(operator, target, {}, brief=True)
    if tuned.left_out:
        evidence.leave_out()
    if tuned.left_out or operator.name in session.failures:
        return evidence
    with session.failures.of(operator.name):
        evidence.try_too([*transferred(session, tuned, target), *session.generic_entries(operator, target)])
    for row in tuned.measurements.values():
        for name, measurement in row.items():
            if is_baseline(name) or (name in evidence.entries and evidence.entries[name].candidate.generic):
                evidence.add(measurement)
    return evidence


def transferred(session: Session, tuned: Evidence, target: Target) -> list[Entry]:
    """Candidates for a target that are most like the winners on another, each for the problems that its model won.

    First come the fewest that together won all problems. After the others come the first guesses of the authors of the
    kernels that won. A kernel without a config for the target is left out.
    """
    operator = tuned.operator
    spaces = {k.name: (k, space) for k in session.kernels_for(operator, target) if (space := _space(k, target))}
    only: dict[str, set[str]] = {}
    made: dict[str, Candidate] = {}

    def add(kernel: Kernel, config: dict[str, ConfigValue], like: Candidate, problems: Iterable[str]) -> None:
        candidate = candidate_for(operator, kernel, config, target, dtypes=dict(like.dtypes))
        made.setdefault(candidate.id, candidate)
        only.setdefault(candidate.id, set()).update(problems)

    together: dict[str, tuple[Candidate, set[str]]] = {}
    for name, won in _winners(tuned, spaces):
        one = tuned.entries[name].candidate
        kernel, space = spaces[one.kernel]
        add(kernel, most_alike(kernel, space, one.config), one, won)
        together.setdefault(canonical_digest([one.kernel, one.dtypes]), (one, set()))[1].update(won)
    for one, problems in together.values():
        kernel, space = spaces[one.kernel]
        for config in _guesses(kernel, space):
            add(kernel, config, one, problems)
    return [
        Entry.of(operator, session.renderer.render(operator, c, target), only=frozenset(only[c.id]))
        for c in made.values()
    ]


def _space(kernel: Kernel, target: Target) -> list[dict[str, ConfigValue]]:
    """The configs of a kernel for a target, without those that pin dims. The kernel may not be meant for the target."""
    try:
        return [c for c in kernel.configs(target.facts) if not any(c.get(p) for p in kernel.pins)]
    except SpecError:  # its constraints allow none
        return []


def _winners(tuned: Evidence, kernels: Collection[str]) -> Iterator[tuple[str, set[str]]]:
    """Candidates of some kernels with the ids of the problems that each won. First come a few that won all problems."""
    won: dict[str, set[str]] = {}
    second: dict[str, set[str]] = {}
    for problem, row in tuned.choice_costs().items():
        known = ((t, c, tuned.entries[c].candidate) for c, t in row.items())
        own = sorted((t, c) for t, c, one in known if one.kernel in kernels and not one.generic)
        for place, (time, candidate) in enumerate(own):
            if time <= own[0][0] * _NEAR:
                won.setdefault(candidate, set()).add(problem)
                if place < _PER_PROBLEM:
                    second.setdefault(candidate, set()).add(problem)
    left = set().union(*won.values())
    while left:
        best = min(won, key=lambda c: (-len(won[c] & left), c))
        left -= won[best]
        yield best, won.pop(best)
        second.pop(best, None)
    yield from sorted(second.items(), key=lambda found: (-len(found[1]), found[0]))


def _guesses(kernel: Kernel, space: Sequence[dict[str, ConfigValue]]) -> Iterator[dict[str, ConfigValue]]:
    """The first guesses of a kernel's author that are in a space."""
    matched = (next((c for c in space if all(c[k] == v for k, v in guess.items())), None) for guess in kernel.order)
    yield from [c for c in matched if c is not None][:_GUESSES]


def most_alike(kernel: Kernel, space: Sequence[dict[str, ConfigValue]], config: Config) -> dict[str, ConfigValue]:
    """The first config of a space that differs from another in the fewest parameters, and by the least in these."""
    places = {p.name: {v: i for i, v in enumerate(_in_order(p.values))} for p in kernel.parameters}

    def distance(other: Config) -> tuple[int, int]:
        steps = [abs(places[n][other[n]] - places[n][v]) for n, v in config.items() if n in places]
        return sum(s > 0 for s in steps), sum(steps)

    return min(space, key=distance)


def _in_order(values: Sequence[ConfigValue]) -> list[ConfigValue]:
    """Numbers by size, names in the order of declaration."""
    named = any(isinstance(v, str) for v in values)
    return sorted(values, key=lambda v: 0 if isinstance(v, str) or named else v)
