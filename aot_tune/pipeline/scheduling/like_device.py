"""Where a build begins on a device without a record of its own: it races what won on a like device.

Only where that race disagrees with the record, or the record says nothing, the search goes on. On another target it
begins with what is most like the winners.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aot_tune.bench.protocol.measurement_records import Device, Measurement, is_baseline
from aot_tune.compile import Variant
from aot_tune.database import OperatorDatabase, nearest_databases, operator_digest
from aot_tune.database.checks import in_space
from aot_tune.database.match import recorded_rows
from aot_tune.pipeline.evidence import Evidence, Proposal
from aot_tune.pipeline.known_times import tie_band
from aot_tune.pipeline.records.lookup import render_again, toolchains_alike
from aot_tune.pipeline.session import Session
from aot_tune.pipeline.wanted_kernels import is_named, kernels_for
from aot_tune.render import Candidate, candidate_for
from aot_tune.report.verdict import names_text, told_together
from aot_tune.select import Costs
from aot_tune.spec import Config, ConfigValue, Kernel, Operator, Problem, Target
from aot_tune.support.digests import canonical_digest
from aot_tune.support.errors import AotTuneError, SpecError

_Models = dict[str, tuple[Candidate, set[str]]]
"""Candidates by id, each with the ids of the problems that it won, or that its model won."""

_NEAR = 1.10
"""Runners-up within this factor of a record's winner race too: the fewest that make two for each problem, and those
that are compiled anyway."""
_EACH = 2

_CHANGED = 1.25
"""If the winner is farther behind another that the record names, and not by noise, the record is not trusted on that
problem: what it left out may be better, too."""

_NEAR_ELSEWHERE = 1.05
"""The same for configs that are only like those which won, on another level of CPUs. There are more of them."""

_EFFORTS = ("quick", "default")
"""Efforts that trust a record. The others search everywhere; a record tells them only what to try early."""
_SHOWN = 3


def winners(
    costs: Costs, near: float, each: int, among: Container[str] | None = None
) -> Iterator[tuple[str, set[str]]]:
    """Candidates with the ids of the problems that each won: it is within the factor `near` of the best there.

    First come the fewest that together won all problems. If `each` is not 0, the best of each problem come next, then
    the fewest others until so many of the winners of each problem are there. All this is `among` some candidates.
    """
    if among is not None:
        costs = {p: kept for p, row in costs.items() if (kept := {c: t for c, t in row.items() if c in among})}
    won: dict[str, set[str]] = {}
    for problem, row in costs.items():
        limit = near * min(row.values(), default=0.0)
        for candidate, time in row.items():
            if time <= limit:
                won.setdefault(candidate, set()).add(problem)
    rivals = Counter(problem for problems in won.values() for problem in problems)
    taken = Counter[str]()

    def fewest(count: int) -> Iterator[tuple[str, set[str]]]:
        while won and (left := {p for p in costs if taken[p] < min(count, rivals[p])}):
            yield take(min(won, key=lambda c: (-len(won[c] & left), c)))

    def take(candidate: str) -> tuple[str, set[str]]:
        taken.update(won[candidate])
        return candidate, won.pop(candidate)

    yield from fewest(1)
    if each:
        best = dict.fromkeys(min(row, key=lambda c: (row[c], c)) for row in costs.values() if row)
        yield from (take(c) for c in best if c in won)
        yield from fewest(each)


def like_winners(
    session: Session,
    operator: Operator,
    target: Target,
    costs: Costs,
    candidates: Mapping[str, Candidate],
    *,
    near: float,
    each: int,
    guesses: int = 0,
) -> _Models:
    """Candidates for a target that are most like those which won by `costs`, each for the problems that its model won.

    After them come `guesses` first guesses of the author of each kernel that won. A kernel without a config for the
    target is left out. `near` and `each` are as in `winners`.
    """
    spaces = {k.name: (k, space) for k in kernels_for(session, operator, target) if (space := _space(k, target))}
    models: _Models = {}

    def add(kernel: Kernel, config: dict[str, ConfigValue], like: Candidate, problems: Collection[str]) -> None:
        candidate = candidate_for(operator, kernel, config, target, dtypes=dict(like.dtypes))
        models.setdefault(candidate.id, (candidate, set()))[1].update(problems)

    able = {name for name, c in candidates.items() if c.kernel in spaces and not c.generic}
    together: dict[str, tuple[Candidate, set[str]]] = {}
    for name, won in winners(costs, near, each, able):
        winner = candidates[name]
        kernel, space = spaces[winner.kernel]
        add(kernel, _most_alike(kernel, space, winner.config), winner, won)
        together.setdefault(canonical_digest([winner.kernel, winner.dtypes]), (winner, set()))[1].update(won)
    for winner, problems in together.values():
        kernel, space = spaces[winner.kernel]
        for config in _guesses(kernel, space)[:guesses]:
            add(kernel, config, winner, problems)
    return models


def transferred(session: Session, tuned: Evidence, target: Target) -> list[Proposal]:
    """Candidates for a target that are most like the winners on another, each for the problems that its model won."""
    operator, candidates = tuned.operator, {c: e.candidate for c, e in tuned.variants.items()}
    costs = tuned.choice_costs()
    models = like_winners(session, operator, target, costs, candidates, near=_NEAR_ELSEWHERE, each=_EACH, guesses=1)
    return [Proposal(session.rendered(operator, c, target), frozenset(only)) for c, only in models.values()]


def _space(kernel: Kernel, target: Target) -> list[dict[str, ConfigValue]]:
    """The configs of a kernel for a target, without those that pin dims. The kernel may not be meant for the target."""
    try:
        return [c for c in kernel.configs(target.facts) if not any(c.get(p) for p in kernel.pins)]
    except SpecError:  # its constraints allow none
        return []


def _guesses(kernel: Kernel, space: Sequence[dict[str, ConfigValue]]) -> list[dict[str, ConfigValue]]:
    """The first guesses of a kernel's author that are in a space."""
    matched = (next((c for c in space if all(c[k] == v for k, v in guess.items())), None) for guess in kernel.order)
    return [c for c in matched if c is not None]


def _most_alike(kernel: Kernel, space: Sequence[dict[str, ConfigValue]], config: Config) -> dict[str, ConfigValue]:
    """The first config of a space that differs from another in the fewest parameters, and by the least in these."""
    ranks = {p.name: {v: i for i, v in enumerate(_in_order(p.values))} for p in kernel.parameters}

    def distance(other: Config) -> tuple[int, int]:
        steps = [abs(ranks[n][other[n]] - ranks[n][v]) for n, v in config.items() if v in ranks.get(n, {})]
        return sum(s > 0 for s in steps), sum(steps)

    return min(space, key=distance)


def _in_order(values: Sequence[ConfigValue]) -> list[ConfigValue]:
    """Numbers by size, names in the order of declaration."""
    named = any(isinstance(v, str) for v in values)
    return sorted(values, key=lambda v: 0 if isinstance(v, str) or named else v)


@dataclass(frozen=True)
class Opening:
    """What one operator begins with on a target.

    `record` is the slug of the like device. `first` has the candidate that won there, by problem id. `outrun` are the
    problems on which it was slower than a baseline there. `gone` are recorded candidates that this tree lacks, with
    why. So many others have `changed`: their source is not the recorded one. `new` are kernels of which no record has
    a candidate, though one is of a build that searched everywhere.
    """

    record: str
    proposals: tuple[Proposal, ...]
    first: Mapping[str, str]
    outrun: frozenset[str]
    gone: Mapping[str, str]
    changed: int = 0
    new: frozenset[str] = frozenset()


class _OpeningOutcome(NamedTuple):
    """What came of an opening: of how many `problems` the record named winners, and on how many the races agreed."""

    operator: str
    record: str
    problems: int
    named: int
    agreed: int
    searched: int
    remarks: list[str]
    refuted: list[str]


class Openings:
    """The openings of operators on one target, by operator, and what came of them. Without one, all is searched."""

    def __init__(self, session: Session, evidences: Sequence[Evidence], device: Device) -> None:
        self._session = session
        self._of: dict[str, Opening] = {}
        self._searched: dict[str, frozenset[str]] = {}
        self._outcomes: list[_OpeningOutcome] = []
        if session.options.mode != "auto" or session.options.effort not in _EFFORTS:
            return
        for evidence in evidences:
            with session.failures.of(evidence.operator.name):
                if not evidence.left_out and (opening := _opening(session, evidence, device)) is not None:
                    self._of[evidence.operator.name] = opening
                    evidence.opening = opening.record

    def of(self, operator: str) -> Opening | None:
        """The opening of an operator; None if it has none."""
        return self._of.get(operator)

    def named(self, operator: str) -> frozenset[str]:
        """The problems for which a record names candidates of an operator."""
        return frozenset(self._of[operator].first) if operator in self._of else frozenset()

    def to_search(self, evidence: Evidence) -> frozenset[str]:
        """The problems to search after the opening's races. It is decided once, and `tell` says why."""
        name = evidence.operator.name
        if name not in self._searched:
            opening, quick = self._of[name], self._session.options.effort == "quick"
            times = evidence.times()
            why = {p.id: reason for p in evidence.workload if (reason := disagreement(evidence, opening, p, times))}
            silent = {p for p in why if p not in opening.first}
            searched = frozenset(silent if quick else why)
            for problem in evidence.workload:
                begun = "no record" if problem.id in silent else f"the record of {opening.record}"
                evidence.began[problem.id] = f"{begun}, then a search" if problem.id in searched else begun
            self._outcomes.append(self._outcome(evidence, opening, why, searched))
            self._searched[name] = searched
        return self._searched[name]

    def _outcome(
        self, evidence: Evidence, opening: Opening, why: Mapping[str, str], searched: frozenset[str]
    ) -> _OpeningOutcome:
        named = sum(p.id in opening.first for p in evidence.workload)
        gone = Counter(opening.gone.values()).items()
        remarks = [f"{number} recorded candidates are not raced: {reason}" for reason, number in gone]
        if opening.changed:
            remarks.append(
                f"{opening.changed} of them are of another version of their kernel, and race as they are now"
            )
        if opening.new:
            remarks.append(f"kernels that it does not know are tried on all problems: {', '.join(sorted(opening.new))}")
        return _OpeningOutcome(
            operator=evidence.operator.name,
            record=opening.record,
            problems=len(evidence.workload),
            named=named,
            agreed=named - sum(p in opening.first for p in why),
            searched=len(searched),
            remarks=remarks,
            refuted=[f"the record does not hold here on '{p}': {r}" for p, r in why.items() if p in opening.first],
        )

    def tell(self) -> None:
        """Say what came of the openings since the last call: a line for each record, and few beside it."""
        outcomes, self._outcomes, line = self._outcomes, [], self._session.progress.line
        for record in dict.fromkeys(o.record for o in outcomes):
            alike = [o for o in outcomes if o.record == record]
            line(
                f"{names_text([o.operator for o in alike])}: begins with the record of {record}: it names winners of "
                f"{sum(o.named for o in alike)} of {sum(o.problems for o in alike)} problems, the races here agree on "
                f"{sum(o.agreed for o in alike)}; {sum(o.searched for o in alike)} are searched"
            )
        for text in told_together((o.operator, remark) for o in outcomes for remark in o.remarks):
            line(text)
        refuted = [f"{o.operator}: {text}" for o in outcomes for text in o.refuted]
        for text in refuted[:_SHOWN]:
            line(text)
        if len(refuted) > _SHOWN:
            line(f"nor on {len(refuted) - _SHOWN} more")


def disagreement(evidence: Evidence, opening: Opening, problem: Problem, every: Costs) -> str:
    """Why a race does not confirm what a record names for a problem; empty if it does. `every` are all times."""
    winner = opening.first.get(problem.id)
    if winner is None:
        return "it says nothing"
    row = evidence.on(problem)
    tuned = {c: e.candidate.kernel for c, e in evidence.variants.items() if not e.candidate.generic}
    times = {c: t for c, t in every.get(problem.id, {}).items() if c in tuned and tuned[c] not in opening.new}
    if winner not in times:
        return _without_time(evidence, winner, row)
    best = min(times, key=lambda c: (times[c], c))
    if times[winner] > _CHANGED * times[best] * (1 + tie_band(row[best])):
        return f"its winner is {times[winner] / times[best] - 1:.0%} behind another that it names"
    baselines = {c: m.ns for c, m in row.items() if is_baseline(c) and m.ns is not None and m.status == "ok"}
    ahead = [c for c, ns in baselines.items() if times[best] > ns * (1 + tie_band(row[best]))]
    slower = bool(ahead) and problem.id not in opening.outrun
    return f"its winner is slower than {ahead[0]}, which it beats there" if slower else ""


def _without_time(evidence: Evidence, winner: str, row: Mapping[str, Measurement]) -> str:
    variant = evidence.variants.get(winner)
    if variant is not None and variant.does_not_compile:
        return f"its winner does not compile: {variant.error}"
    failed = [m for m in (row.get(winner), *evidence.made_of(winner)) if m is not None and m.status != "ok"]
    return f"its winner is {failed[0].status}: {failed[0].reason}" if failed else "its winner has no time"


def _opening(session: Session, evidence: Evidence, device: Device) -> Opening | None:
    """The opening by the nearest records; None if no record names anything, or this device's own says all.

    A device's own record does not if the build that made it had an opening. Then it is the nearest of all.
    """
    operator, target = evidence.operator, evidence.target
    near = nearest_databases(session.databases, operator.name, device)
    if any(not d.opening and _holds_here(session, d, operator, target, device) for d in near):
        return None
    workload = {p.key: p.id for p in evidence.workload}
    proposals: list[Proposal] = []
    first: dict[str, str] = {}
    outrun: set[str] = set()
    gone: dict[str, str] = {}
    records: list[str] = []
    changed: set[str] = set()
    for database, name in _in_turn(near, target):
        rows, behind = recorded_rows(database, name, workload)
        rows = {p: row for p, row in rows.items() if p not in first}
        if not rows:
            continue
        candidates = {c.id: c.candidate for c in database.candidates}
        if name == target.name:
            models = _recorded(session, evidence, candidates, rows)
        else:
            models = like_winners(session, operator, target, rows, candidates, near=_NEAR_ELSEWHERE, each=0)
        plain = models.keys() - candidates.keys() if name == target.name else set[str]()
        rendered = _rendered(session, operator, models, gone, plain)
        sources = {c.id: c.source for c in database.candidates}
        proposals += rendered
        for proposal in rendered:
            if proposal.variant.rendered.digest != sources.get(proposal.variant.id, proposal.variant.rendered.digest):
                changed.add(proposal.variant.id)
        for problem, row in rows.items():
            able = [proposal.variant.id for proposal in rendered if proposal.only is None or problem in proposal.only]
            if able:
                first[problem] = min(able, key=lambda c: row.get(c, math.inf))
        outrun |= behind & rows.keys()
        records += [database.device.slug] if rendered and database.device.slug not in records else []
    if not proposals and not gone:
        return None
    records = records or [d.device.slug for d in near[:1]]
    new = _new_kernels(session, operator, target, near)
    return Opening(" and ".join(records), tuple(proposals), first, frozenset(outrun), gone, len(changed), new)


def _new_kernels(
    session: Session, operator: Operator, target: Target, near: Sequence[OperatorDatabase]
) -> frozenset[str]:
    """Kernels that came after the builds which made the records. A quick build does not try them."""
    if session.options.effort == "quick" or all(d.opening for d in near):
        return frozenset()
    wanted = (k for k in kernels_for(session, operator, target) if is_named(session, operator, k) and not k.fills_in)
    return frozenset({k.name for k in wanted} - {c.candidate.kernel for d in near for c in d.candidates})


def _holds_here(
    session: Session, database: OperatorDatabase, operator: Operator, target: Target, device: Device
) -> bool:
    """Whether a record is of this very device, policy, operator and toolchain, so that its times count as they are."""
    policy = session.policy(device.family).digest
    if not database.was_made_on(device, policy):
        return False
    backends = {c.candidate.backend for c in database.candidates if c.candidate.target == target.name}
    whole, on_device = toolchains_alike(session, database)
    alike = whole if target.on_host else on_device
    return bool(backends) and backends <= alike and database.contract == operator_digest(operator)


def _in_turn(near: Sequence[OperatorDatabase], target: Target) -> Iterator[tuple[OperatorDatabase, str]]:
    """Records with the names of their targets: first this target, the nearest device first, then others like it."""
    yield from ((d, target.name) for d in near if target.name in d.targets)
    yield from ((d, name) for d in near if target.on_host for name in reversed(d.targets) if name != target.name)


def _recorded(session: Session, evidence: Evidence, candidates: Mapping[str, Candidate], rows: Costs) -> _Models:
    """A record's winners and runners-up, with the problems that each won, and what lets a vendor's library choose.

    For a Triton function, they are also the code without assumptions, which is kept for other calls.
    """
    operator, target = evidence.operator, evidence.target
    kernels = {k.name: k for k in kernels_for(session, operator, target) if is_named(session, operator, k)}
    named = {i: c for i, c in candidates.items() if c.kernel in kernels}
    problems = {p.id: p for p in evidence.workload}
    models: _Models = {}
    for name, won in winners(rows, _NEAR, _EACH, named):
        candidate, kernel = named[name], kernels[named[name].kernel]
        models[name] = (candidate, won)
        for problem in won if kernel.triton is not None else ():
            plain = candidate_for(operator, kernel, candidate.config, target, problems[problem], candidate.dtypes)
            models.setdefault(plain.id, (plain, set()))[1].add(problem)
    vendors = {k.backend for k in kernels.values() if k.algorithms is not None}
    for candidate in named.values():
        kernel = kernels[candidate.kernel]
        chooses = kernel.algorithms is not None and kernel.has(candidate.config, target.facts)
        if candidate.target == target.name and (chooses or not vendors.isdisjoint(kernel.stages)):
            models[candidate.id] = (candidate, set(problems))
    return models


def _rendered(
    session: Session, operator: Operator, models: _Models, gone: dict[str, str], follow: Container[str]
) -> list[Proposal]:
    """Proposals that this tree can still make; `gone` gets the others. `follow` ones are tried as their leaders are."""
    proposals: list[Proposal] = []
    for name, (candidate, problems) in models.items():
        try:
            if not in_space(operator, candidate):
                raise SpecError(f"kernel {candidate.kernel} no longer has this config")
            rendered = render_again(session, operator, candidate)
        except AotTuneError as error:
            gone[name] = error.what
            continue
        proposals.append(Proposal(Variant(rendered=rendered), frozenset(problems), name not in follow))
    return proposals
