"""The modes auto and tune: render, compile and measure what is not known yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, zip_longest

from aot_tune.bench import Device
from aot_tune.errors import DatabaseError
from aot_tune.pipeline.crew import Crew
from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.pipeline.follow import to_compile, waiting
from aot_tune.pipeline.measure import Measurer
from aot_tune.pipeline.overlap import measure_overlapped
from aot_tune.pipeline.recorded import known_here, recorded_evidence
from aot_tune.pipeline.session import LoadedOperator, Session
from aot_tune.pipeline.vendors import vendor_entries
from aot_tune.spec import Problem, Target

__all__ = ["tune"]


def tune(session: Session) -> dict[str, list[Evidence]]:
    """Evidence by operator, a target each, for the modes `auto` and `tune`."""
    found: dict[str, list[Evidence]] = {name: [] for name in session.operators}
    for i, target in enumerate(session.targets):
        session.turn = session.budget.part(len(session.targets) - i)
        devices = session.devices_for(target)
        if not devices or not session.plan.may_measure:
            _without_device(session, target, found)
        else:
            _on_device(session, target, devices, found)
    return found


def _without_device(session: Session, target: Target, found: dict[str, list[Evidence]]) -> None:
    """Let the database decide; where it cannot, the generic variant serves, and a loud line says so."""
    for name, loaded in session.operators.items():
        try:
            evidence, database = recorded_evidence(session, loaded.operator, target)
            if database is not None:
                evidence.note = f"{target.name} is chosen by records of {database.device.slug}"
            elif session.answers(loaded.operator, target):
                evidence.note = f"{target.name} has nothing but the generic variant"
            else:
                evidence.note = f"NOTHING for {target.name}: it has no generic kernel for {target.family}"
        except DatabaseError as error:
            evidence = Evidence(loaded.operator, target, {})
            evidence.note = f"NOT TUNED for {target.name}, the generic variant serves: {error.what}"
        session.progress.line(f"{name}: {evidence.note}")
        found[name].append(evidence)


def _on_device(session: Session, target: Target, devices: list[Device], found: dict[str, list[Evidence]]) -> None:
    pairs: list[tuple[LoadedOperator, Evidence]] = []
    for name, loaded in session.operators.items():
        found[name].append(Evidence(loaded.operator, target, {}))
        pairs.append((loaded, found[name][-1]))
    with Crew(session, devices) as crew:
        recorded = 0
        step = session.step
        while step and (fresh := _ask(session, pairs, crew.device, step)):
            begun = session.turn.spent
            for loaded, evidence in pairs if session.options.mode == "auto" else ():
                known = known_here(session, loaded.operator, devices[0], evidence.entries)
                recorded += known.give(evidence)
            entries = [e for _, evidence in pairs for e in _unknown(evidence)]
            if target.family == "cpu":  # a compiler beside it would disturb what is measured
                _one_after_the_other(session, crew.members[0], pairs, entries, target)
            else:
                tick = _ticker(session, pairs, entries, races=True)
                timings = measure_overlapped(session, crew, pairs, entries, tick)
                session.progress.line(
                    f"{target.name}: compiling took {timings.compiling:.0f} s, measuring {timings.measuring:.0f} s, "
                    f"both together {timings.wall:.0f} s"
                )
            for evidence in fresh:
                session.tell(evidence)
            step = _next_step(session, entries, begun, step)
        known_before = crew.reused + recorded
        session.progress.line(f"{target.name}: {crew.measured} measurements made, {known_before} known from before")


def _ask(session: Session, pairs: list[tuple[LoadedOperator, Evidence]], device: Device, step: int) -> list[Evidence]:
    """Add to the evidence what the strategies want to try next, with the first also the generic candidates.

    Returns the evidence that was added to.
    """
    fresh: list[Evidence] = []
    for loaded, evidence in pairs:
        asked = session.ask(loaded.operator, evidence.target, step)
        if not evidence.entries:
            asked += vendor_entries(session, loaded.operator, evidence.target, device)
        if not evidence.entries:
            asked += session.generic_entries(loaded.operator, evidence.target)
        new = {e.candidate.id: e for e in asked if e.candidate.id not in evidence.entries}
        evidence.entries.update(new)
        if new:
            fresh.append(evidence)
    return fresh


def _next_step(session: Session, entries: list[Entry], begun: float, step: int) -> int:
    """How many configs of each kernel a budget leaves time for, going by the last step; 0 for none.

    That step was of `step` configs, was to compile `entries` and began at `begun` seconds of the budget.
    """
    if session.turn.seconds is None:
        return step
    if entries and all(e.object is None for e in entries):
        return 0
    took = max(session.turn.spent - begun, 1e-3)
    return min(session.step, int(step * session.turn.left / took))


def _one_after_the_other(
    session: Session,
    measurer: Measurer,
    pairs: list[tuple[LoadedOperator, Evidence]],
    entries: list[Entry],
    target: Target,
) -> None:
    """Compile everything, then measure everything."""
    if entries:
        first = not any(evidence.measurements for _, evidence in pairs)
        session.compile(_within_budget(session, entries, first=first), target.name)
    tick = _ticker(session, pairs, [], races=False)
    for loaded, evidence, problem in _in_order(session, pairs):
        measurer.measure(loaded, evidence, problem, tick)


def _unknown(evidence: Evidence) -> list[Entry]:
    """What has to be compiled to be measured.

    What a record covers whole is compiled only if it races again or is kept; what follows a candidate that was measured
    and not among the best is not compiled at all.
    """
    entries = [
        e
        for e in evidence.entries.values()
        if e.object is None and (evidence.lacks(e) or (e.candidate.generic and not e.digest))
    ]
    wanted = {id(e) for e in (*to_compile(evidence, entries), *waiting(evidence, entries))}
    return [e for e in entries if id(e) in wanted]


def _within_budget(session: Session, entries: list[Entry], *, first: bool) -> list[Entry]:
    """The entries whose compiling fits in two fifths of the budget, each kernel's best guesses first.

    The time of a compile is learned from the generic variants; those are always built. In steps after the `first` it
    is two fifths of what is left, and the first of the entries tells how long one takes.
    """
    budget = session.turn
    if budget.seconds is None:
        return entries
    ranked = _in_turn([e for e in entries if not e.candidate.generic])
    sample = [e for e in entries if e.candidate.generic] or ranked[:1]
    start = session.progress.now()
    session.compile(sample, "generic" if first else "a first one")
    each = max((session.progress.now() - start) / max(len(sample), 1), 0.05)
    seconds = 0.4 * budget.seconds - budget.spent if first else 0.4 * budget.left
    room = int(max(seconds, 0.0) / each)
    if room < len(ranked):
        session.progress.line(f"budget {budget.seconds:g} s: {room} of {len(ranked)} candidates will be compiled")
    return ranked[:room]


def _in_turn(entries: list[Entry]) -> list[Entry]:
    """First entries of all kernels, then the second ones, and so on."""
    position: dict[tuple[str, str], int] = {}
    ranked: list[tuple[int, int, Entry]] = []
    for i, entry in enumerate(entries):
        kernel = (entry.candidate.operator, entry.candidate.kernel)
        position[kernel] = position.get(kernel, -1) + 1
        ranked.append((position[kernel], i, entry))
    return [e for _, _, e in sorted(ranked, key=lambda r: r[:2])]


def _in_order(
    session: Session, pairs: list[tuple[LoadedOperator, Evidence]]
) -> Iterator[tuple[LoadedOperator, Evidence, Problem]]:
    """All problems, operator by operator; under a budget in turn, so that its end finds every operator served,
    and each with problems from all over its workload."""
    rows = [[(loaded, evidence, p) for p in evidence.workload] for loaded, evidence in pairs]
    if session.turn.seconds is None:
        yield from chain.from_iterable(rows)
    else:
        turns = zip_longest(*([row[i] for i in _spread_out(len(row))] for row in rows))
        yield from (one for turn in turns for one in turn if one is not None)


def _spread_out(count: int) -> list[int]:
    """0 to count - 1 so that every beginning of the list is spread over the whole: by reversed binary digits."""
    width = max(count - 1, 1).bit_length()
    return sorted(range(count), key=lambda i: f"{i:0{width}b}"[::-1])


def _ticker(
    session: Session, pairs: list[tuple[LoadedOperator, Evidence]], coming: list[Entry], *, races: bool
) -> Callable[[str], None]:
    """Counts what was tried, and with `races` the races too; `coming` are entries that may have no object yet."""
    names = {e.candidate.id for e in coming}
    total = 0
    for _, evidence in pairs:
        for problem in evidence.workload:
            subjects = [e for i, e in evidence.entries.items() if e.digest or (i in names and e.object is None)]
            left = sum(not evidence.has(e, problem) and evidence.meant_for(e, problem) for e in subjects)
            total += left + (races and left > 0)
    done = 0
    start = session.progress.now()

    def tick(note: str) -> None:
        nonlocal done
        done += 1
        session.progress.count("tried", done, total, note, since=start)

    return tick
