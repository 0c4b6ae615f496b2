"""The survey: times of preselected variants on shapes that nobody tuned. Dispatch is learned from it."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from aot_tune.bench.devices.family import family
from aot_tune.bench.protocol.measurement_records import Device, Measurement, rounded
from aot_tune.compile import Variant
from aot_tune.database import OperatorStore, operator_digest
from aot_tune.database.checks import tuned_kernels
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.measuring.builder import CompileBatch, Job, WorkBuilder
from aot_tune.pipeline.measuring.device_pool import DevicePool
from aot_tune.pipeline.measuring.lazy_bench import LazyBench
from aot_tune.pipeline.measuring.measure import Measurer
from aot_tune.pipeline.records.lookup import recall_survey
from aot_tune.pipeline.scheduling.time_to_link import seconds_after, survey_limit, survey_shapes_wanted
from aot_tune.pipeline.session import Session
from aot_tune.pipeline.shipping.surveyed_shapes import ADD_PROBLEMS, Shapes, drawn_shapes, plan, told_gaps
from aot_tune.report.report_text import counted
from aot_tune.search.budget import Budget
from aot_tune.select import PRESELECTED, SCOUTS, Cell, Costs, preselect, scouts
from aot_tune.select.decide import is_held_out
from aot_tune.spec import Operator, Problem
from aot_tune.spec.regimes import regime_of
from aot_tune.spec.survey_shapes import Kind, kind_of, survey_shapes
from aot_tune.support.digests import canonical_digest
from aot_tune.support.errors import AotTuneError, TooLargeError, ToolchainError

_SCOUTED, _OF_SHAPES = 40, 5
"""This many shapes, or a fifth of all, decide which candidates are surveyed."""

_FAR = 8.0
"""A kernel is surveyed unless it is this many times slower than the best wherever it was timed."""

_IN_TURN = 20
"""The first shapes of each regime of each kind are surveyed in turn. Later, kinds of more weight get more."""
_LEAST_SHARE = 0.1

_PATIENCE = 1e8
"""The longest call of a generic variant in ns. Longer calls would take all of a survey's time."""

LEADERS = 6
"""How many candidates are timed on each shape of a plan, at most: those that lead on the tuned problems."""

_ENOUGH = 4
"""A regime of a kind of calls of which a record has so many shapes gets no more."""

_TURN, _CALLS, _INPUTS = 0.016, 3.6, 1.3e-8
"""Seconds of a candidate's turn beside its calls, calls of a turn, and seconds for a byte of inputs.

Fitted to 140 shapes on two cores of a Zen 3 EPYC."""

_ON_HOST = 20.0
"""The longest time on a CPU, where a survey is planned, so that nothing is begun that does not fit."""

_DISTURBED = 2.0
"""If others use the cores, a planned survey may take so many times as long. Then it ends with the shapes it has."""

_SHARE, _AT_LEAST = 0.5, 30.0
"""By default, a survey takes at most this share of the time measured before, but may always take these seconds."""


@dataclass
class _Part:
    """The shapes of one kind of an operator's calls and of one regime, and the units that are timed on them.

    A unit is one config of a kernel: its candidates differ only in what they assume of a call. Results are compared
    with those of a vendor's library, `first`. If it does not serve a shape, they are compared with those of `generics`,
    unless these would take too long. All units are timed on `scouted` problems, and only `chosen` candidates on the
    others. `share` is the weight of the kind's problems relative to the heaviest kind. `paces` are the most ns that
    candidates take for a FLOP or byte there. `rows` are the costs on the tuned problems of the regime, or on those of
    the kind if it has none.
    """

    evidence: Evidence
    problems: Sequence[Problem]
    first: Sequence[Variant]
    generics: Sequence[Variant]
    units: Mapping[str, Sequence[Variant]]
    known: frozenset[str]
    share: float
    paces: Mapping[str, float]
    scouted: Sequence[Problem]
    chosen: list[str] = field(default_factory=list)
    rows: Costs = field(default_factory=dict)

    @property
    def left(self) -> bool:
        """Whether there are shapes without known times."""
        return any(self.lacks(p) for p in self.problems)

    def lacks(self, problem: Problem) -> bool:
        """Whether a shape has no known times, though something serves it of what is chosen, if it is already."""
        return problem.id not in self.known and not (self.chosen and not self._able(problem))

    def _able(self, problem: Problem) -> list[Variant]:
        evidence = self.evidence
        return [e for e in self.variants() if evidence.worth_a_try(e, problem) and not evidence.failed(e.candidate.id)]

    def variants(self) -> list[Variant]:
        """The candidates to time: all, until some are chosen."""
        first = {e.id for e in self.first}
        others = [e for unit in self.units.values() for e in unit if not self.chosen or e.id in self.chosen]
        return self.evidence.now([*self.first, *(e for e in others if e.id not in first)])

    def tried(self, problem: Problem) -> list[Variant]:
        """The candidates to time on a shape. The others are compared with the first of them."""
        evidence, able = self.evidence, self._able(problem)
        if able and any(able[0].id == e.id for e in self.first):
            return able
        most = _PATIENCE / evidence.operator.amount(problem)
        patient = [e for e in evidence.now(self.generics) if self.paces.get(e.candidate.id, 0.0) < most]
        return [*(e for e in patient if evidence.worth_a_try(e, problem)), *able]

    def only(self, problems: Sequence[Problem]) -> None:
        """Survey no other shapes than these, each with all that is chosen."""
        self.problems, self.scouted = problems, ()

    def settle(self, most: int = PRESELECTED) -> None:
        """Choose the candidates to go on with, by times on tuned problems and surveyed shapes. Drop the others' times.

        Shapes that are held out tell nothing. The others together weigh at least as much as the tuned problems, which
        may be many more. Of a kernel that has none among the `most` that are worth most, the one that comes nearest to
        the best of a problem is another. So is what serves shapes that none of these serves.
        """
        if self.chosen:
            return
        able = {e.candidate.id: name for name, unit in self.units.items() for e in unit}
        problems = {p.id for p in self.problems}
        tuned = {p: r for p, r in self.rows.items() if p not in self.evidence.surveyed.times}
        surveyed = {
            p: row
            for p, row in self.evidence.surveyed.times.items()
            if p in problems and not (p not in self.rows and is_held_out(p))
        }
        rows = {p: {c: t for c, t in row.items() if c in able} for p, row in {**tuned, **surveyed}.items()}
        weights = dict.fromkeys(surveyed, max(len(tuned) / max(len(surveyed), 1), 1.0))
        tiles = _tiles(self.evidence, self.units)
        alike = {c: tiles[name] for c, name in able.items() if name in tiles}
        timed = {p: r for p, r in rows.items() if r}
        self.chosen = preselect(timed, alike, most, weights)
        self.chosen += self._of_other_kernels(timed)
        self.chosen += self._for_other_shapes()
        self.evidence.keep_surveyed(problems, {e.candidate.id for e in (*self.generics, *self.variants())})

    def _of_other_kernels(self, rows: Costs) -> list[str]:
        """Of each kernel without a chosen candidate, the one that is least behind on a problem, if that is not far."""
        kernels = {e.candidate.id: e.candidate.kernel for unit in self.units.values() for e in unit}
        there = {kernels[c] for c in self.chosen}
        nearest: dict[str, tuple[float, str]] = {}
        for row in rows.values():
            best = min(row.values())
            for candidate, ns in row.items():
                if kernels[candidate] not in there and ns <= _FAR * best:
                    behind = ns / best, candidate
                    nearest[kernels[candidate]] = min(behind, nearest.get(kernels[candidate], behind))
        return [candidate for _, candidate in sorted(nearest.values())]

    def _for_other_shapes(self) -> list[str]:
        """As few as serve the shapes that nothing chosen serves."""
        others = [e for unit in self.units.values() for e in unit if e.candidate.id not in self.chosen]
        served = {e.candidate.id: {p.id for p in self.problems if self.evidence.worth_a_try(e, p)} for e in others}
        bare = {p.id for p in self.problems if not self._able(p)}
        more: list[str] = []
        while best := max(served, key=lambda c: (len(served[c] & bare), c), default=""):
            if not served[best] & bare:
                break
            more.append(best)
            bare -= served[best]
        return more


def parts_of(
    evidence: Evidence, drawn: Mapping[Kind, Sequence[Problem]], cells: Collection[Cell] | None = None
) -> Iterator[_Part]:
    """What to survey of an operator's drawn shapes and tuned problems where variants compete, or of `cells`."""
    operator = evidence.operator
    regime = partial(_regime, operator)
    by_kind: dict[Kind, list[Problem]] = {}
    for problem in evidence.workload:
        by_kind.setdefault(kind_of(operator, operator.facts(problem)), []).append(problem)
    weights = {kind: sum(evidence.weights.get(p.id, 1.0) for p in ps) for kind, ps in by_kind.items()}
    generics = [e for e in evidence.variants.values() if e.candidate.generic and e.code]
    paces, every = _paces(evidence), _rows(evidence)
    for kind, shapes in drawn.items():
        rows = every.get(kind, {})
        tuned = [p for p in by_kind.get(kind, ()) if p.id in rows]
        share = max(weights.get(kind, 0.0) / max(weights.values(), default=1.0), _LEAST_SHARE)
        for name in dict.fromkeys(map(regime, (*shapes, *tuned))):
            if cells is not None and (kind, name) not in cells:
                continue
            fresh = [p for p in shapes if regime(p) == name]
            problems = _mixed(own := [p for p in tuned if regime(p) == name], fresh)
            units = _units(evidence, {p.id: rows[p.id] for p in own}, rows)
            timed = frozenset(p.id for p in problems if p.id in evidence.surveyed.times)
            telling = [p for p in problems if p.id in rows or not is_held_out(p.id)]
            scouted = telling[: min(_SCOUTED, len(problems) // _OF_SHAPES)]
            known = [p.id for p in fresh if p.id in timed]
            chosen = _known(evidence, units, known) if len(known) >= max(len(scouted), 1) else []
            if len(units) > 1:
                yield _Part(
                    evidence=evidence,
                    problems=problems,
                    first=_vendors(evidence, problems),
                    generics=generics,
                    units=units,
                    known=timed,
                    share=share,
                    paces=paces[name],
                    scouted=[] if chosen else scouted,
                    chosen=chosen,
                    rows={p.id: rows[p.id] for p in own} or rows,
                )


def _regime(operator: Operator, problem: Problem) -> str:
    return regime_of(operator, operator.facts(problem))


def _turns(parts: Sequence[_Part], *, scouted: bool) -> list[tuple[_Part, Problem]]:
    """The shapes without known times, in the order of the survey: the `scouted` ones, or the others."""
    turns: list[tuple[float, int, _Part, Problem]] = []
    for index, part in enumerate(parts):
        first = {p.id for p in part.scouted}
        for number, problem in enumerate(part.problems):
            later = number if number < _IN_TURN else _IN_TURN + (number - _IN_TURN) / part.share
            if (problem.id in first) == scouted and part.lacks(problem):
                turns.append((later, index, part, problem))
    return [(part, problem) for _, _, part, problem in sorted(turns, key=lambda f: f[:2])]


def _paces(evidence: Evidence) -> dict[str, dict[str, float]]:
    """By regime and candidate, ns for a FLOP or byte on the regime's tuned problem where it is slowest.

    Without a time in a regime, it is on the tuned problem of all where it is slowest.
    """
    by_regime: dict[str, dict[str, float]] = {}
    times, slowest = evidence.times(), dict[str, float]()
    for problem in evidence.workload:
        paces, amount = by_regime.setdefault(_regime(evidence.operator, problem), {}), evidence.operator.amount(problem)
        for candidate, ns in times.get(problem.id, {}).items():
            for of in (paces, slowest):
                of[candidate] = max(of.get(candidate, 0.0), ns / amount)
    return defaultdict(lambda: slowest, {name: {**slowest, **paces} for name, paces in by_regime.items()})


def _rows(evidence: Evidence) -> dict[Kind, Costs]:
    """The costs of each kind's tuned problems, without a vendor library's algorithms for single problems."""
    operator, by_kind = evidence.operator, dict[Kind, Costs]()
    kinds = {p.id: kind_of(operator, operator.facts(p)) for p in evidence.workload}
    for problem, row in evidence.choice_costs().items():
        free = {c: t for c, t in row.items() if not evidence.is_bound(evidence.variants[c])}
        if problem in kinds and free:
            by_kind.setdefault(kinds[problem], {})[problem] = free
    return by_kind


def _units(evidence: Evidence, rows: Costs, others: Costs) -> dict[str, list[Variant]]:
    """The first units: leaders on tuned problems, the next best of each kernel in turn, then those of `others`."""
    names, members, kernels = {}, dict[str, list[Variant]](), {}
    timed = {c for row in others.values() for c in row}
    for variant in evidence.variants.values():
        candidate = variant.candidate
        if candidate.id in timed and not candidate.generic and not evidence.failed(candidate.id):
            name = canonical_digest([candidate.kernel, candidate.dtypes, candidate.config])
            names[candidate.id], kernels[name] = name, candidate.kernel
            members.setdefault(name, []).append(variant)
    tiles, chosen = _tiles(evidence, members), list[str]()
    for costs in (rows, others):
        chosen += scouts({p: row for p, r in costs.items() if (row := _of_units(r, names))}, tiles, kernels)
    return {name: members[name] for name in list(dict.fromkeys(chosen))[:SCOUTS]}


def _known(evidence: Evidence, units: Mapping[str, Sequence[Variant]], problems: Collection[str]) -> list[str]:
    """The candidates with known times: those that an earlier survey went on with."""
    timed = {c for p in problems for c in evidence.surveyed.times[p]}
    return [e.candidate.id for unit in units.values() for e in unit if e.candidate.id in timed]


def _of_units(row: Mapping[str, float], names: Mapping[str, str]) -> dict[str, float]:
    """The least time of each unit. `names` has the unit of each candidate."""
    least: dict[str, float] = {}
    for candidate, time in row.items():
        if candidate in names:
            name = names[candidate]
            least[name] = min(time, least.get(name, time))
    return least


def _tiles(evidence: Evidence, units: Mapping[str, Sequence[Variant]]) -> dict[str, str]:
    """The kernel and tile of each unit, which nearly equal units have in common."""
    tiles = {}
    for name, unit in units.items():
        candidate = unit[0].candidate
        tiling = evidence.operator.kernel(candidate.kernel).tiling(candidate.config)
        if tiling is not None:
            tiles[name] = f"{candidate.kernel} {sorted(tiling.extents.items())} {tiling.split}"
    return tiles


def _vendors(evidence: Evidence, problems: Sequence[Problem]) -> list[Variant]:
    """Candidates that leave the choice to a vendor's library, for the current dtypes. Composed ones come last."""
    able = [e for e in evidence.variants.values() if evidence.leaves_choice(e) and e.code]
    useful = [e for e in able if any(evidence.worth_a_try(e, p) for p in problems)]
    return sorted(useful, key=lambda e: not evidence.is_vendors(e))


def _mixed(tuned: Sequence[Problem], drawn: Sequence[Problem]) -> list[Problem]:
    """Drawn shapes, alternating with tuned problems as long as there are any: not all units were timed on these."""
    pairs = itertools.zip_longest(drawn, tuned)
    return [p for pair in pairs for p in pair if p is not None]


def planned(parts: Sequence[_Part], seconds: float) -> list[_Part]:
    """The parts, each with its leading candidates and the shapes that fit into so many seconds together."""
    kinds, drawn = list[Shapes](), list[list[Problem]]()
    for part in parts:
        part.chosen = part.chosen or _known(part.evidence, part.units, part.known)
        part.settle(LEADERS)
        known = [p for p in part.problems if p.id in part.rows or p.id in part.known]
        drawn.append([p for p in part.problems if p.id not in part.rows and p.id not in part.known and part.tried(p)])
        times = [_seconds_of(part, p) for p in drawn[-1]]
        kinds.append(Shapes([_point(p) for p in drawn[-1]], times, [_point(p) for p in known]))
    plan(kinds, seconds)
    for part, kind, shapes in zip(parts, kinds, drawn, strict=True):
        part.only([shapes[n] for n in kind.chosen])
    return [p for p in parts if p.problems]


def _seconds_of(part: _Part, problem: Problem) -> float:
    """The seconds that a shape is expected to take with all its candidates, by their times on tuned problems."""
    operator, tried = part.evidence.operator, part.tried(problem)
    paces = [part.paces[e.candidate.id] for e in tried if e.candidate.id in part.paces]
    usual = statistics.fmean(paces) if paces else 0.0  # of those without a time
    calls = sum(part.paces.get(e.candidate.id, usual) for e in tried) * operator.amount(problem) * 1e-9
    return _TURN * len(tried) + _CALLS * calls + _INPUTS * operator.tensor_bytes(problem)


def _point(problem: Problem) -> list[float]:
    return [math.log2(max(n, 1)) for _, n in sorted(problem.dims.items())]


def survey_all(
    session: Session,
    evidence: Mapping[str, Sequence[Evidence]],
    measured: float,
    losing: Callable[[Evidence], Collection[Cell]],
) -> None:
    """Survey what was tuned on the devices that are here. `measured` is the time that tuning took, in seconds.

    On a CPU, it is planned to fit its time. If the time runs out nevertheless, the survey ends with the shapes that it
    has, about as many of each kind. Then regimes of kinds that are `losing` more than they may get twice as many, in at
    most the same time again and within what a budget has for surveys; unless the user gave the number.
    """
    count = survey_shapes_wanted(session)
    if count == 0 or not session.plan.may_measure:
        return
    every = [e for evidences in evidence.values() for e in evidences if not (e.left_out or e.brief)]
    tuned = [(e, devices) for e in every if (devices := session.devices_for(e.target))]
    for one, devices in tuned:
        one.survey_on(devices[0])
        recall_survey(session, devices[0], one)
    recorded = {id(one) for one, _ in tuned if one.surveyed.times}  # with what was surveyed twice
    first = []
    for one, devices in tuned:
        drawn = drawn_shapes(session, one, count)
        for line in told_gaps(one, drawn):
            session.progress.line(f"NOTE {one.operator.name} on {one.target.name}, {line}. {ADD_PROBLEMS}")
        first.append((devices, list(parts_of(one, drawn))))
    spent = _survey(session, first, measured, {})
    if session.options.survey is not None:
        return
    new = [(e, devices) for e, devices in tuned if id(e) not in recorded]
    again = [(devices, _of_cells(e, 2 * count, cells)) for e, devices in new if (cells := frozenset(losing(e)))]
    if regimes := sum(part.left for _, parts in again for part in parts):
        session.progress.line(
            f"survey: twice as many shapes of {counted(regimes, 'regime')}, where dispatch is not good enough yet"
        )
        _survey(session, again, measured, spent, again=True)


def expected_survey(session: Session, measured: float) -> float:
    """How long a survey will likely take after so many seconds of tuning."""
    if (
        not survey_shapes_wanted(session)
        or not session.plan.may_measure
        or all(map(session.is_recorded, session.devices))
    ):
        return 0.0
    on_host = all(family(d.family).on_host for d in session.devices)
    most = _ON_HOST * min(len(session.operators), 2)  # some regimes of several operators are looked at twice
    return max(min(_seconds(session, measured, 0.0), most if on_host else math.inf), 0.0)


def _of_cells(evidence: Evidence, count: int, cells: Collection[Cell]) -> list[_Part]:
    """What is to be surveyed of some regimes of kinds, if each kind has so many shapes in all."""
    operator = evidence.operator
    drawn = survey_shapes(operator, evidence.target.family, count, tuned_kernels(operator, evidence.target))
    return list(parts_of(evidence, drawn, cells))


def _survey(
    session: Session,
    every: Iterable[tuple[list[Device], Sequence[_Part]]],
    measured: float,
    spent: Mapping[str, float],
    *,
    again: bool = False,
) -> dict[str, float]:
    """Survey parts, after as many seconds as were `spent` on surveys. Both are by the digest of devices."""
    took: dict[str, float] = {}
    by_device: dict[str, tuple[list[Device], list[_Part]]] = {}
    for devices, parts_of in every:
        by_device.setdefault(devices[0].digest, (devices, []))[1].extend(parts_of)
    for digest, (devices, parts) in by_device.items():
        on_host = family(devices[0].family).on_host
        seconds = _seconds(session, measured, spent.get(digest, 0.0))
        bounded = on_host and seconds < math.inf
        lacking = [p for p in parts if again or len(p.known) < _ENOUGH]
        wanted = planned(lacking, min(seconds, _ON_HOST)) if bounded else parts
        most = min(seconds, _DISTURBED * _ON_HOST) if bounded else seconds
        if any(p.left for p in wanted):
            took[digest] = Surveying(session, [p for p in wanted if p.left], most).on(devices)
    return took


def _seconds(session: Session, measured: float, spent: float) -> float:
    """The most seconds that a survey may take, after earlier ones of so many seconds."""
    limit = survey_limit(session, spent)
    if session.options.survey is None and session.options.effort == "default":
        limit = min(limit, max(_SHARE * measured, _AT_LEAST))
    return min(limit, session.time.budget.left - seconds_after(session))


class Surveying:
    """Times parts on all devices of a model: a few shapes with all candidates, then the others with the best of these.

    Each shape is timed on one device. It is a plan, see `WantedWork`. Nothing begins after so many seconds of timing,
    without those in which other builds have the devices.
    """

    def __init__(self, session: Session, parts: Sequence[_Part], seconds: float) -> None:
        self._session, self._parts, self._seconds = session, parts, seconds
        self._turns = deque(enumerate(_turns(parts, scouted=True)))
        self._running: dict[int, tuple[_Part, Problem]] = {}
        self._total = sum(part.lacks(p) for part in parts for p in part.problems)
        self._begun: float | None = None
        self._there = math.inf
        self._settled, self._is_over, self._done = False, False, 0

    def on(self, devices: list[Device]) -> float:
        """Do it, and say how much there was time for. Returns the seconds."""
        session = self._session
        turn = session.time.turn(session.progress, devices[0].family, kept=seconds_after(session))
        with DevicePool(session, devices, turn) as pool:
            WorkBuilder(self, pool, Budget(None), session.progress.now, quiet=True).run()
        self._settle()
        seconds = self._spent
        rest = f" of {self._total} planned shapes, all that there was time for"
        where = f", on {len(devices)} devices" if len(devices) > 1 else ""
        line = f"survey: {self._done}{rest if self._done < self._total else ' shapes'}, in {seconds:.0f} s{where}"
        session.progress.line(line)
        return seconds

    @property
    def _since(self) -> float:
        """When timing began: when the first device was there, if any had to be."""
        now = self._session.progress.now()
        begun = now if self._begun is None else self._begun
        return begun if self._there == math.inf else max(begun, self._there)

    @property
    def _spent(self) -> float:
        return self._session.progress.now() - self._since

    def batch(self) -> CompileBatch | None:
        """See `WantedWork`: everything that only records knew, before anything is timed."""
        if self._begun is not None or self._seconds <= 0:
            return None
        self._begun = self._session.progress.now()
        variants = [e for part in self._parts for e in part.variants() if e.object is None]
        into = list({id(part.evidence): part.evidence for part in self._parts}.values())
        return CompileBatch(variants, into, "survey") if variants else None

    def stops_compiling(self) -> bool:
        return False

    def arrived(self, variant: Variant) -> None:
        """See `WantedWork`."""

    def compiled(self) -> None:
        self._begun = self._session.progress.now()

    def job(self, device: Hashable) -> Job | None:  # noqa: ARG002 - any device times any shape
        if self._seconds <= 0 or self._spent > self._seconds or self._is_over:
            return None
        if not self._turns and not self._running:
            self._settle()
        if not self._turns:
            return None
        number, (part, problem) = self._turns.popleft()
        self._running[number] = part, problem

        def do(measurer: Measurer) -> None:
            survey_one(self._session, measurer, part, problem)
            self._there = min(self._there, measurer.bench.since)
            self._is_over = measurer.turn.over

        return Job(number, "survey", do, part.evidence, problem)

    def measured(self, job: Job) -> None:
        del self._running[job.number]
        self._done += 1
        self._session.progress.count(
            "survey: shape",
            self._done,
            self._total,
            since=self._since,
            left=lambda seconds: None if seconds is None else min(seconds, max(self._seconds - self._spent, 0.0)),
        )

    def lost(self, device: Hashable, job: Job) -> None:  # noqa: ARG002 - another device does it
        self._turns.appendleft((job.number, self._running.pop(job.number)))

    def _settle(self) -> None:
        """Once the first shapes are timed: choose the candidates to go on with."""
        if not self._settled:
            self._settled = True
            for part in self._parts:
                part.settle()
            self._turns = deque(enumerate(_turns(self._parts, scouted=False), self._total))


def survey_one(session: Session, measurer: Measurer, part: _Part, problem: Problem) -> None:
    """Times on one shape, from the store or new."""
    evidence, operator, bench = part.evidence, part.evidence.operator, measurer.bench
    if operator.name in session.failures:
        return
    variants = part.tried(problem)
    store = _store(session, bench, evidence)
    race = store.find_race([(e.candidate.id, e.code) for e in variants], problem)
    if race is None:
        begun = session.progress.now()
        race = _timed(session, measurer, evidence, problem, variants)
        measurer.log("survey", evidence, problem, race, session.progress.now() - begun)
        if race and all(m.lasting for m in race):
            store.put_race(race, evidence.now(variants))
    for measurement in race:
        if measurement.lasting and measurement.status not in ("ok", "skipped"):
            evidence.add(measurement)  # it is out, even where it won
    if not all(m.lasting for m in race) and measurer.turn.over:
        return  # it was cut: what has no time might have been the best
    times = {m.candidate: rounded(m.ns) for m in race if m.ns is not None}
    if times:
        evidence.add_survey([(problem, times)])


def _timed(
    session: Session, measurer: Measurer, evidence: Evidence, problem: Problem, variants: Sequence[Variant]
) -> list[Measurement]:
    operator, linked, bench = evidence.operator, [], measurer.bench
    with session.failures.of(evidence.operator.name):
        for variant in variants:
            try:
                linked.append(bench.linked(variant, evidence))
            except ToolchainError:  # the compile reported it
                continue
        try:
            return bench.get().survey(operator, problem, linked)
        except TooLargeError:
            return []  # nobody asked for this shape
        except AotTuneError:
            if not measurer.turn.over:
                raise
    return []


def _store(session: Session, bench: LazyBench, evidence: Evidence) -> OperatorStore:
    operator, policy = evidence.operator, session.policy(bench.device.family)
    return session.store.operator(operator.name, operator_digest(operator), bench.device, policy, kind="survey")
