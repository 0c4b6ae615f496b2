"""The modes auto and tune: they render, compile and measure what is not known yet."""

from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from aot_tune.bench.devices.family import family
from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.compile import Variant
from aot_tune.database import OperatorDatabase, deciding
from aot_tune.database.match import winners_elsewhere
from aot_tune.pipeline.evidence import Evidence, Proposal
from aot_tune.pipeline.measuring.device_pool import DevicePool
from aot_tune.pipeline.measuring.measure import Measurer, left_undone
from aot_tune.pipeline.pruning import to_compile, waiting
from aot_tune.pipeline.records.lookup import known_here, recorded_evidence
from aot_tune.pipeline.scheduling.like_device import Openings
from aot_tune.pipeline.scheduling.older_cpus import older_seconds, on_record, tune_older
from aot_tune.pipeline.scheduling.overlapped import measure_overlapped
from aot_tune.pipeline.scheduling.screen_queue import QueuedProblem, queued_problems
from aot_tune.pipeline.scheduling.time_to_link import seconds_after
from aot_tune.pipeline.scheduling.vendor_candidates import Vendors
from aot_tune.pipeline.scheduling.within_budget import BudgetTuning, ended_with
from aot_tune.pipeline.session import Session
from aot_tune.pipeline.wanted_kernels import is_named, kernels_for, left_to_others, tunes
from aot_tune.plan.options import effort_limit
from aot_tune.render import candidates_for
from aot_tune.search.strategy import Strategy, make_strategy
from aot_tune.spec import Config, Kernel, Operator, Target
from aot_tune.support.digests import canonical_digest
from aot_tune.support.errors import AotTuneError, DatabaseError

__all__ = ["not_known", "nothing_is_known", "tune"]

_AT_ONCE = 1 << 20
"""Configs that are asked for at once, if the strategy gives so many.

Nothing is compiled while a CPU candidate is timed, so large steps lose least time."""

_STEP = 16
"""Configs of a kernel that are asked for at once if a search learns from earlier ones, or if only a budget ends it.

In small steps, the most promising ones are measured before the budget ends."""


def tune(session: Session) -> dict[str, list[Evidence]]:
    """Evidence by operator, one for each target, for the modes `auto` and `tune`."""
    by_operator: dict[str, list[Evidence]] = {name: [] for name in session.operators}
    if session.budget.seconds is not None:
        _begin_budget(session)
    targets = [t for t in session.targets if t != session.older]
    left = [t for t in targets if any(tunes(session, op, t) for op in session.operators.values())]
    for target in targets:
        session.pending.begin(target.family)
        kept = seconds_after(session)
        session.begin_turn(len(left), kept + (older_seconds(session, kept) if target.on_host else 0.0))
        left = [t for t in left if t != target]
        devices = session.devices_for(target)
        if not devices or not session.plan.may_measure:
            _without_device(session, target, by_operator)
        else:
            tune_on(session, target, devices, by_operator)
    if session.older is not None:
        _complete(session, session.older, by_operator)
    return by_operator


def _complete(session: Session, older: Target, by_operator: dict[str, list[Evidence]]) -> None:
    """Add evidence for older CPUs to every operator, in the order of the targets, as a replay has it."""
    if not any(e.target == older for evidence in by_operator.values() for e in evidence):
        if session.plan.may_measure:
            _to_tune(session, older, by_operator)
        else:
            _without_device(session, older, by_operator)
    for evidence in by_operator.values():
        evidence.sort(key=lambda e: session.targets.index(e.target))


def _complete_from(
    session: Session,
    older: Target,
    pool: DevicePool,
    evidences: list[Evidence],
    by_operator: dict[str, list[Evidence]],
) -> None:
    """Add evidence for older CPUs: what records have of them, else what short races on this machine find."""
    recorded = on_record(session, older)
    _without_device(session, older, {name: by_operator[name] for name in by_operator if name in recorded})
    left = [evidence for evidence in evidences if evidence.operator.name not in recorded]
    for name, evidence in (tune_older(session, older, pool, left) if left else {}).items():
        by_operator[name].append(evidence)


def _begin_budget(session: Session) -> None:
    """Compile the generic variants, which are always built. Their compile time also tells how long the link takes."""
    generics = list[Variant]()
    for name, operator in session.operators.items():
        with session.failures.of(name):
            generics += session.generic_variants(operator)
    session.compile([e for e in generics if e.candidate.backend == "cxx"], "generic")
    kept, left = seconds_after(session), session.budget.left
    spent = f"budget {session.budget.seconds:g} s, of which {session.budget.spent:.0f} s are spent: "
    if kept < left:
        rest = f", about {kept:.0f} s for the link" if session.links else ""
        session.progress.line(f"{spent}{left - kept:.0f} s to tune{rest}")
    elif not session.links:
        session.progress.line(f"{spent}TOO LITTLE for the generic variants; nothing is tuned")
    else:
        session.progress.line(
            f"{spent}TOO LITTLE for the generic variants and the link, which takes about {kept:.0f} s; nothing is tuned"
        )


def _without_device(session: Session, target: Target, by_operator: dict[str, list[Evidence]]) -> None:
    """Let the database decide. If it cannot, the generic variant serves, and a loud line says so."""
    for name, evidences in by_operator.items():
        operator = session.operators[name]
        try:
            evidence, database = recorded_evidence(session, operator, target)
            evidence.remark(_decided_by(session, evidence, database))
        except DatabaseError as error:
            evidence = Evidence(operator, target, {})
            evidence.remark(f"NOT TUNED for {target.name}, the generic variant serves: {error.what}")
        session.progress.line(f"{name}: {evidence.note}")
        evidences.append(evidence)


def _decided_by(session: Session, evidence: Evidence, database: OperatorDatabase | None) -> str:
    target = evidence.target
    if database is not None:
        return f"{target.name} is chosen by records of {database.device.slug}"
    if session.answers(evidence.operator, target):
        return f"{target.name} has nothing but the generic variant"
    return (
        f"NOTHING for {target.name}: it has no generic kernel for {target.family}; declare one, or leave the target out"
    )


def tune_on(session: Session, target: Target, devices: list[Device], by_operator: dict[str, list[Evidence]]) -> None:
    """Tune all operators for a target on its devices. `by_operator` gets the evidence."""
    evidences = _to_tune(session, target, by_operator)
    if evidences and all(evidence.left_out for evidence in evidences):
        return
    operators = [evidence.operator for evidence in evidences]
    openings = Openings(session, evidences, devices[0])
    with (
        DevicePool(session, devices) as pool,
        Vendors(session, operators, target, pool.device, openings.named) as vendors,
    ):
        recorded = _tune_all(session, target, pool, vendors, openings, evidences)
        for evidence in evidences if session.turn.seconds is not None else ():
            evidence.remark(left_undone(evidence))
        session.progress.line(f"{target.name}: {pool.measured} measurements made, {_known(pool.reused, recorded)}")
        if pool.measured:
            for what, seconds in pool.spent.items():
                session.spent.add("device", what, seconds, target.name)
            spent = [f"{what} {seconds:.0f} s" for what, seconds in pool.spent.items() if seconds >= 0.5]
            session.progress.line(
                f"{target.name}: where the measuring went: {', '.join(spent) or 'less than a second'}"
            )
            if pool.slow_reference:
                session.progress.line(f"note: {pool.slow_reference}")
            for line in pool.told() if len(pool.members) > 1 else ():
                session.progress.line(f"{target.name}: {line}")
        if target.on_host and session.older is not None:
            _complete_from(session, session.older, pool, evidences, by_operator)
        session.end_turn()  # ending the workers and removing files may take seconds


def _known(cached: int, recorded: int) -> str:
    """How many measurements were known, and from where."""
    sources = {"from the records": recorded, "from the cache": cached}
    counts = ", ".join(f"{count} {where}" for where, count in sources.items() if count)
    return f"{cached + recorded} known from before{f' ({counts})' if counts else ''}"


def _tune_all(
    session: Session,
    target: Target,
    pool: DevicePool,
    vendors: Vendors,
    openings: Openings,
    evidences: list[Evidence],
) -> int:
    """Try what the strategies ask for until they are done or the turn ends. Returns how much records knew."""
    alone = family(target.family).on_host
    within = BudgetTuning(session, pool, evidences) if alone and session.turn.seconds is not None else None
    recorded = 0
    early = not alone and nothing_is_known(session, pool.device)
    if early:
        pool.start()
    strategies = _Strategies(session)
    step = strategies.step
    while step and (fresh := ask_for(strategies, session, evidences, vendors, openings, step)):
        begun = session.turn.spent
        for evidence in evidences if session.options.mode == "auto" else ():
            recorded += known_here(session, pool.device, evidence).give(evidence)
        mine = {evidence.operator.name: not_known(evidence) for evidence in evidences}
        variants = [e for wanted in mine.values() for e in wanted]
        race = 0.0 if alone else family(target.family).policy().race_ns / 1e9
        session.pending.expect(evidences, variants, least_race=race)
        if within is not None:
            within.run(variants)
        elif alone:
            one_after_the_other(session, pool, evidences, variants, target)
        else:
            with _checks_fitted_beside(session, target, variants if early else ()):
                _overlapped(session, target, pool, evidences, variants)
        for evidence in fresh:
            strategies.tell(evidence)
        asked = [e for evidence in evidences for e in evidence.now(mine[evidence.operator.name])]
        step = next_step(session, asked, begun, step, strategies.step)
    if within is not None:
        within.finish()
    return recorded


def _overlapped(
    session: Session,
    target: Target,
    pool: DevicePool,
    evidences: list[Evidence],
    variants: list[Variant],
) -> None:
    """Compile and measure at the same time."""
    with ended_with(session.turn, pool.interrupt):
        timings = measure_overlapped(session, pool, evidences, variants)
    session.progress.line(
        f"{target.name}: compiling took {timings.compiling:.0f} s, measuring {timings.measuring:.0f} s, "
        f"both together {timings.wall:.0f} s"
    )


def _to_tune(session: Session, target: Target, by_operator: dict[str, list[Evidence]]) -> list[Evidence]:
    """All operators with new evidence. A line names those that are left out."""
    evidences: list[Evidence] = []
    for name, operator in session.operators.items():
        evidence = Evidence(operator, target, {})
        by_operator[name].append(evidence)
        evidences.append(evidence)
        if not tunes(session, operator, target):
            evidence.leave_out()
            session.progress.line(f"{name}: {evidence.note}")
        elif too_long := left_to_others(session, operator, target):
            evidence.leave_to_others(too_long)
            session.progress.line(f"{name}: {evidence.note}")
    return evidences


class _Strategies:
    """What the strategies of operators' kernels want to try next."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._strategies: dict[tuple[str, str, str], Strategy] = {}

    @property
    def step(self) -> int:
        """How many configs of a kernel to ask for at once."""
        endless = self._session.turn.seconds is not None and self._session.options.effort == "exhaustive"
        return _STEP if endless or self._session.options.effort == "thorough" else _AT_ONCE

    def ask(self, operator: Operator, target: Target, count: int | None = None) -> list[Variant]:
        """Rendered candidates that the strategies of an operator's kernels want to try next for a target.

        They come from up to `count` configs of each kernel; the default is `step`.
        """
        variants: dict[str, Variant] = {}
        for kernel in kernels_for(self._session, operator, target):
            if not is_named(self._session, operator, kernel):
                continue
            strategy = self._strategy(operator, kernel, target)
            before = len(variants)
            while len(variants) == before and (configs := strategy.ask(count or self.step)):
                for config in configs:
                    for candidate in candidates_for(operator, kernel, config, target):
                        if candidate.id not in variants:
                            variants[candidate.id] = self._session.rendered(operator, candidate, target)
        return list(variants.values())

    def tell(self, evidence: Evidence) -> None:
        """Report the current cost of each config to the strategies: its mean time over each problem's best time.

        All configs are reported again, because the best time falls as better ones are found.
        """
        kernels = {k.name: k for k in kernels_for(self._session, evidence.operator, evidence.target)}
        for (name, _), (config, cost) in _config_costs(evidence).items():
            if name in kernels:
                self._strategy(evidence.operator, kernels[name], evidence.target).tell(config, cost)

    def _strategy(self, operator: Operator, kernel: Kernel, target: Target) -> Strategy:
        key = (operator.name, kernel.name, target.name)
        if key not in self._strategies:
            space = list(kernel.configs(target.facts))
            guesses = sum(any(all(c[k] == v for k, v in g.items()) for c in space) for g in kernel.order)
            limit = effort_limit(self._session.options.effort, guesses)
            device = self._session.device_for(target)
            policy = family(target.family).policy().digest
            elsewhere = (
                []
                if device is None
                else winners_elsewhere(_records_for(self._session, device), operator, kernel, device, policy)
            )
            self._strategies[key] = make_strategy(space, kernel.order, limit, transfer=elsewhere)
        return self._strategies[key]


def _records_for(session: Session, device: Device) -> list[OperatorDatabase]:
    """The records that say where a device's search begins. AOT_TUNE_DEVICE may name those of other devices."""
    return session.databases if session.is_recorded(device) else deciding(session.databases, session.options.device)


def _config_costs(evidence: Evidence) -> dict[tuple[str, str], tuple[Config, float]]:
    """By kernel and digest: a config and its cost, the geometric mean of its times over each problem's best time.

    The mean is over all measured candidates of a config, such as one for each choice of dtypes. It is infinite if
    none was measured and one failed. Configs of which nothing is known are left out.
    """
    logs: dict[str, list[float]] = {}
    for row in evidence.costs().values():
        best = min(row.values())
        for name, time in row.items():
            logs.setdefault(name, []).append(math.log(time / best))
    configs: dict[tuple[str, str], tuple[Config, list[float]]] = {}
    for name, variant in evidence.variants.items():
        candidate = variant.candidate
        costs = logs.get(name) or ([math.inf] if evidence.failed(name) else [])
        key = candidate.kernel, canonical_digest(candidate.config)
        configs.setdefault(key, (candidate.config, []))[1].extend(costs)
    return {
        key: (config, math.exp(statistics.fmean([v for v in values if v < math.inf] or values)))
        for key, (config, values) in configs.items()
        if values
    }


def nothing_is_known(session: Session, device: Device) -> bool:
    """Whether all results must be measured on a device, and there is time for it."""
    recorded = session.options.mode == "auto" and session.is_recorded(device)
    return not (recorded or session.store.knew_any) and session.turn.allows(1e-9)


def ask_for(
    strategies: _Strategies,
    session: Session,
    evidences: list[Evidence],
    vendors: Vendors,
    openings: Openings,
    step: int,
) -> list[Evidence]:
    """Add the candidates that are wanted next to the evidence. The first time, add generic candidates too.

    First come those that a like device's record names, then those that strategies want, on the problems to search.
    Returns the evidence that got candidates.
    """
    fresh: list[Evidence] = []
    drawn: dict[str, list[Proposal]] = {}
    for evidence in evidences:
        with session.failures.of(evidence.operator.name):
            drawn[evidence.operator.name] = _wanted(strategies, openings, evidence, step)
    for evidence in evidences:
        operator, others = evidence.operator, list[Proposal]()
        if operator.name in session.failures:
            continue
        if not evidence.variants:
            generics = map(Proposal, session.generic_variants(operator, evidence.target))
            others = [*vendors.proposals(operator), *generics]
        if evidence.try_too((*drawn[operator.name], *others)):
            fresh.append(evidence)
    return fresh


def _wanted(strategies: _Strategies, openings: Openings, evidence: Evidence, step: int) -> list[Proposal]:
    operator = evidence.operator
    opening = openings.of(operator.name)
    if opening is None:
        return [Proposal(e) for e in strategies.ask(operator, evidence.target, step)]
    if not evidence.variants:
        return list(opening.proposals)
    problems = openings.to_search(evidence)
    return [Proposal(e, problems) for e in strategies.ask(operator, evidence.target, step)] if problems else []


def next_step(session: Session, variants: list[Variant], begun: float, step: int, most: int) -> int:
    """How many configs of each kernel, at `most`, the budget has time for, judged by the last step; 0 for none.

    The last step had `step` configs. It was to compile `variants`, and began when `begun` seconds of the budget were
    spent.
    """
    if session.turn.seconds is None:
        return step
    if variants and all(e.object is None for e in variants):
        return 0
    took = max(session.turn.spent - begun, 1e-3)
    return min(most, int(step * session.turn.left / took))


def one_after_the_other(
    session: Session,
    pool: DevicePool,
    evidences: list[Evidence],
    variants: list[Variant],
    target: Target,
) -> None:
    """Compile everything, then measure everything."""
    session.compile(variants, target.name, evidences)
    pool.each((p.number, partial(_measure, p)) for p in queued_problems(evidences))
    pool.each_member(partial(_verify, [e for evidence in evidences for e in evidence.unserved]))


def _measure(queued: QueuedProblem, measurer: Measurer) -> None:
    measurer.measure(queued.evidence, queued.problem)


def _verify(variants: list[Variant], measurer: Measurer) -> None:
    measurer.verify(variants)


def not_known(evidence: Evidence) -> list[Variant]:
    """The variants that must be compiled to be measured.

    If a record knows all of a variant, it is compiled only when it races again or is kept. If it follows one that was
    measured but was not among the best, it is not compiled at all.
    """
    variants = [
        e
        for e in evidence.variants.values()
        if e.object is None and (evidence.lacks(e) or (e.candidate.generic and not e.code))
    ]
    wanted = {e.id for e in (*to_compile(evidence, variants), *waiting(evidence, variants))}
    return [e for e in variants if e.id in wanted]


@contextmanager
def _checks_fitted_beside(session: Session, target: Target, variants: Sequence[Variant]) -> Iterator[None]:
    """In the block, a thread fits the odd problems on which the variants are verified, in their order.

    Benches need them before an object's first screen, and share them. If one fails, that screen reports it.
    """
    policy, on_host = family(target.family).policy(), family(target.family).on_host
    ended = threading.Event()

    def fit() -> None:
        for variant in variants:
            operator = session.operators[variant.candidate.operator]
            if ended.is_set():
                return
            try:
                session.checks.of(operator, variant.requires, policy, on_host)
            except AotTuneError:
                continue

    with ThreadPoolExecutor(1) as thread:
        thread.submit(fit)
        try:
            yield
        finally:
            ended.set()
