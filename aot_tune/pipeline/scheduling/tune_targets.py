"""The modes auto and tune: all targets are tuned; what is not known yet is rendered, compiled and measured."""

from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from aot_tune.bench.devices.family import family
from aot_tune.bench.protocol.measurement_records import Device, is_baseline
from aot_tune.compile import Variant
from aot_tune.database import OperatorDatabase, deciding
from aot_tune.database.match import winners_elsewhere
from aot_tune.pipeline.build_time import TuningTurn
from aot_tune.pipeline.evidence import Evidence, Proposal
from aot_tune.pipeline.measuring.builder import WorkBuilder
from aot_tune.pipeline.measuring.device_pool import DevicePool, check_agreement
from aot_tune.pipeline.measuring.doubtful_times import settle_doubts
from aot_tune.pipeline.measuring.measure import left_undone
from aot_tune.pipeline.pruning import to_compile, waiting
from aot_tune.pipeline.records.lookup import known_here, recorded_evidence
from aot_tune.pipeline.scheduling.like_device import Openings, transferred
from aot_tune.pipeline.scheduling.time_to_link import older_seconds, on_record, seconds_after, seconds_beside
from aot_tune.pipeline.scheduling.tuning_plan import Constraints, TuningPlan
from aot_tune.pipeline.scheduling.vendor_candidates import Vendors
from aot_tune.pipeline.session import Session
from aot_tune.pipeline.wanted_kernels import is_named, kernels_for, left_to_others, tunes
from aot_tune.plan.options import effort_limit
from aot_tune.render import candidates_for
from aot_tune.report.verdict import told_together
from aot_tune.search.strategy import Strategy, make_strategy
from aot_tune.spec import Config, Kernel, Operator, Target
from aot_tune.support.digests import canonical_digest
from aot_tune.support.errors import AotTuneError, DatabaseError

_OLDER, _OLDER_TAKES = "older CPUs", 0.25
"""The step's name, and how long it takes in relation to tuning before it, where it has the time."""
_AT_ONCE = 1 << 20
"""Configs that are asked for at once, if the strategy gives so many.

Nothing is compiled while a CPU candidate is timed, so large steps lose least time."""

_STEP = 16
"""Configs of a kernel that are asked for at once if a search learns from earlier ones, or if only a budget ends it.

In small steps, the most promising ones are measured before the budget ends."""


def tune(session: Session) -> dict[str, list[Evidence]]:
    """Evidence by operator, one for each target, for the modes `auto` and `tune`."""
    by_operator: dict[str, list[Evidence]] = {name: [] for name in session.operators}
    if session.time.budget.seconds is not None:
        _begin_budget(session)
    if session.older is not None:
        began = session.progress.now()
        session.coming[_OLDER] = lambda: min(
            older_seconds(session, seconds_after(session)), _OLDER_TAKES * (session.progress.now() - began)
        )
    targets = [t for t in session.targets if t != session.older]
    left = [t for t in targets if any(tunes(session, op, t) for op in session.operators.values())]
    for target in targets:
        kept = seconds_after(session)
        more = seconds_beside(session, target, kept)
        turn = session.time.turn(session.progress, target.family, len(left), kept, more)
        left = [t for t in left if t != target]
        devices = session.devices_for(target)
        if not devices or not session.plan.may_measure:
            _without_device(session, target, by_operator)
        else:
            _tune_on(session, target, devices, turn, by_operator)
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
    session: Session, older: Target, pool: DevicePool, evidences: list[Evidence], by_operator: dict[str, list[Evidence]]
) -> None:
    """Add evidence for older CPUs: what records have of them, else what short races on this machine find."""
    recorded = on_record(session, older)
    _without_device(session, older, {name: by_operator[name] for name in by_operator if name in recorded})
    left = [evidence for evidence in evidences if evidence.operator.name not in recorded]
    for name, evidence in (_tune_older(session, older, pool, left) if left else {}).items():
        by_operator[name].append(evidence)


def _tune_older(session: Session, target: Target, pool: DevicePool, tuned: Sequence[Evidence]) -> dict[str, Evidence]:
    """Evidence for older CPUs by operator. It starts from what was tuned on a pool's devices, which have references."""
    kept = seconds_after(session)
    turn = session.time.turn(session.progress, target.family, kept=kept, most=older_seconds(session, kept))
    pool.begin(turn)
    measured, reused = pool.measured, pool.reused
    by_operator = {evidence.operator.name: _begun(session, target, evidence) for evidence in tuned}
    evidences = list(by_operator.values())
    if session.options.mode == "auto":
        for evidence in evidences:
            known_here(session, pool.device, evidence).give(evidence)
    variants = [
        e for evidence in evidences for e in evidence.variants.values() if e.object is None and evidence.lacks(e)
    ]
    turn.expect(evidences, variants)
    session.coming.pop(_OLDER, None)
    plan, builder = plan_on(session, pool, evidences, quiet=True)
    plan.add(variants)
    builder.run()
    pool.each_member(settle_doubts)
    short = plan.lacks_time()
    for evidence in evidences:
        if short or evidence.unmeasured():
            evidence.remark(left_undone(evidence, "the time for older CPUs"))
    session.progress.line(
        f"{target.name}, for older CPUs: {pool.measured - measured} measurements made, {pool.reused - reused} known "
        f"from before, in {turn.spent:.0f} s"
    )
    return by_operator


def _begun(session: Session, target: Target, tuned: Evidence) -> Evidence:
    """Evidence with the first candidates, and with the measurements that all targets share."""
    operator = tuned.operator
    evidence = Evidence(operator, target, {}, brief=True)
    if tuned.left_out:
        evidence.leave_out()
    if tuned.left_out or operator.name in session.failures:
        return evidence
    with session.failures.of(operator.name):
        generics = map(Proposal, session.generic_variants(operator, target))
        evidence.try_too([*transferred(session, tuned, target), *generics])
    generic = {name for name, variant in evidence.variants.items() if variant.candidate.generic}
    evidence.add(*(m for m in tuned.made() if is_baseline(m.candidate) or m.candidate in generic))
    return evidence


def _begin_budget(session: Session) -> None:
    """Compile the generic variants, which are always built. Their compile time also tells how long the link takes."""
    generics = list[Variant]()
    for name, operator in session.operators.items():
        with session.failures.of(name):
            generics += session.generic_variants(operator)
    session.compile([e for e in generics if e.candidate.backend == "cxx"], "generic")
    kept, left = seconds_after(session), session.time.budget.left
    spent = f"budget {session.time.budget.seconds:g} s, of which {session.time.budget.spent:.0f} s are spent: "
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
    notes = []
    for name, evidences in by_operator.items():
        operator = session.operators[name]
        try:
            evidence, database = recorded_evidence(session, operator, target)
            evidence.remark(_decided_by(session, evidence, database))
        except DatabaseError as error:
            evidence = Evidence(operator, target, {})
            evidence.remark(f"NOT TUNED for {target.name}, the generic variant serves: {error.what}")
        notes.append((name, evidence.note))
        evidences.append(evidence)
    for line in told_together(notes):
        session.progress.line(line)


def _decided_by(session: Session, evidence: Evidence, database: OperatorDatabase | None) -> str:
    target = evidence.target
    if database is not None:
        return f"{target.name} is chosen by records of {database.device.slug}"
    if session.answers(evidence.operator, target):
        return f"{target.name} has nothing but the generic variant"
    return (
        f"NOTHING for {target.name}: it has no generic kernel for {target.family}; declare one, or leave the target out"
    )


def _tune_on(
    session: Session, target: Target, devices: list[Device], turn: TuningTurn, by_operator: dict[str, list[Evidence]]
) -> None:
    """Tune all operators for a target on its devices. `by_operator` gets the evidence."""
    evidences = _to_tune(session, target, by_operator)
    if evidences and all(evidence.left_out for evidence in evidences):
        return
    operators = [evidence.operator for evidence in evidences]
    openings = Openings(session, evidences, devices[0])
    with (
        DevicePool(session, devices, turn) as pool,
        Vendors(session, operators, target, pool.device, openings.named) as vendors,
    ):
        recorded = _tune_all(session, target, pool, vendors, openings, evidences)
        undone = [(e, note) for e in evidences if turn.limited and (note := left_undone(e))]
        for evidence, note in undone:
            evidence.remark(note)
        for line in told_together((e.operator.name, note) for e, note in undone):
            session.progress.line(f"NOTE {line}")
        session.progress.line(f"{target.name}: {pool.measured} measurements made, {_known(pool.reused, recorded)}")
        if pool.measured:
            for what, seconds in pool.spent.items():
                session.time.add("device", what, seconds, target.name)
            if pool.slow_reference:
                session.progress.line(f"note: {pool.slow_reference}")
            for line in pool.told() if len(pool.devices) > 1 else ():
                session.progress.line(f"{target.name}: {line}")
        if target.on_host and session.older is not None:
            _complete_from(session, session.older, pool, evidences, by_operator)
        session.time.tuned = session.progress.now()  # ending the workers and removing files may take seconds


def _known(cached: int, recorded: int) -> str:
    """How many measurements were known, and from where."""
    sources = {"from the records": recorded, "from the cache": cached}
    counts = ", ".join(f"{count} {where}" for where, count in sources.items() if count)
    return f"{cached + recorded} known from before{f' ({counts})' if counts else ''}"


def _tune_all(
    session: Session, target: Target, pool: DevicePool, vendors: Vendors, openings: Openings, evidences: list[Evidence]
) -> int:
    """Try what the strategies ask for until they are done or the turn ends. Returns how much records knew."""
    turn, quiet = pool.turn, family(target.family).on_host
    plan, builder = plan_on(session, pool, evidences, quiet=quiet)
    recorded = 0
    early = not (quiet or turn.over) and nothing_is_known(session, pool.device)
    if early:
        pool.start()
    strategies, agreed = _Strategies(session, turn), False
    step = strategies.step
    while step and (fresh := ask_for(strategies, session, evidences, vendors, openings, step)):
        begun = turn.spent
        for evidence in evidences if session.options.mode == "auto" else ():
            recorded += known_here(session, pool.device, evidence).give(evidence)
        mine = {evidence.operator.name: not_known(evidence) for evidence in evidences}
        variants = [e for wanted in mine.values() for e in wanted]
        race = 0.0 if quiet else family(target.family).policy().race_ns / 1e9
        turn.expect(evidences, variants, least_race=race)
        turn.devices = len(pool.devices)
        plan.add(variants)
        with _checks_fitted_beside(session, target, variants if early else ()):
            if not agreed and turn.anything and not turn.over:
                check_agreement(session, pool, evidences, builder.begin_compiling)
                agreed = True
            _run(session, builder, "" if quiet else target.name)
        for evidence in fresh:
            strategies.tell(evidence)
        asked = [e for evidence in evidences for e in evidence.now(mine[evidence.operator.name])]
        step = next_step(turn, asked, begun, step, strategies.step)
    plan.least = 0.0  # if there is time, measure what only improves the report
    builder.run()
    pool.each_member(settle_doubts)
    return recorded


def plan_on(
    session: Session, pool: DevicePool, evidences: Sequence[Evidence], *, quiet: bool
) -> tuple[TuningPlan, WorkBuilder]:
    """What is wanted of operators on a pool's devices within its turn, and what does it."""
    limits = Constraints(quiet, session.jobs_of("cxx").count, lambda: len(pool.devices))
    turn, plan = pool.turn, TuningPlan(evidences, pool.turn, pool, limits)

    def compiled() -> None:
        limited = session.time.budget.seconds is not None  # not by the stated time for older CPUs alone
        if limited and not turn.over:  # what it has killed must not seem to have ended by itself
            turn.keep(seconds_after(session))

    return plan, WorkBuilder(plan, pool, turn.budget, session.progress.now, quiet, compiled)


def _run(session: Session, builder: WorkBuilder, target: str) -> None:
    """Do what is wanted. If compilers and devices work at the same time, say how long on a target."""
    begun, compiling, idle = session.progress.now(), builder.compiling, builder.idle
    builder.run()
    wall = session.progress.now() - begun
    if target:
        session.progress.line(
            f"{target}: compiling took {builder.compiling - compiling:.0f} s, "
            f"measuring {wall - builder.idle + idle:.0f} s, both together {wall:.0f} s"
        )


def _to_tune(session: Session, target: Target, by_operator: dict[str, list[Evidence]]) -> list[Evidence]:
    """All operators with new evidence. A line names those that are left out."""
    evidences: list[Evidence] = []
    notes: list[tuple[str, str]] = []
    for name, operator in session.operators.items():
        evidence = Evidence(operator, target, {})
        by_operator[name].append(evidence)
        evidences.append(evidence)
        if not tunes(session, operator, target):
            evidence.leave_out()
        elif too_long := left_to_others(session, operator, target):
            evidence.leave_to_others(too_long)
        notes += [(name, evidence.note)] if evidence.note else []
    for line in told_together(notes):
        session.progress.line(line)
    return evidences


class _Strategies:
    """What the strategies of operators' kernels want to try next."""

    def __init__(self, session: Session, turn: TuningTurn) -> None:
        self._session, self._turn = session, turn
        self._strategies: dict[tuple[str, str, str], Strategy] = {}

    @property
    def step(self) -> int:
        """How many configs of a kernel to ask for at once."""
        endless = self._turn.limited and self._session.options.effort == "exhaustive"
        return _STEP if endless or self._session.options.effort == "thorough" else _AT_ONCE

    def ask(
        self, operator: Operator, target: Target, count: int | None = None, among: Container[str] | None = None
    ) -> list[Variant]:
        """Rendered candidates wanted next for a target: of up to `count` configs of each kernel, or `among` them."""
        variants: dict[str, Variant] = {}
        for kernel in kernels_for(self._session, operator, target):
            if not is_named(self._session, operator, kernel) or (among is not None and kernel.name not in among):
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
            policy = self._session.policy(target.family).digest
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
    """Whether all results must be measured on a device."""
    recorded = session.options.mode == "auto" and session.is_recorded(device)
    return not (recorded or session.store.knew_any)


def ask_for(
    strategies: _Strategies,
    session: Session,
    evidences: list[Evidence],
    vendors: Vendors,
    openings: Openings,
    step: int,
) -> list[Evidence]:
    """Add the candidates that are wanted next to the evidence. The first time, add generic candidates too.

    First come those that a like device's record names or does not know, then those that strategies want, on the
    problems to search.
    Returns the evidence that got candidates.
    """
    fresh: list[Evidence] = []
    drawn: dict[str, list[Proposal]] = {}
    for evidence in evidences:
        with session.failures.of(evidence.operator.name):
            drawn[evidence.operator.name] = _wanted(strategies, openings, evidence, step)
    openings.tell()
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
        return [*opening.proposals, *map(Proposal, strategies.ask(operator, evidence.target, step, opening.new))]
    problems = openings.to_search(evidence)
    return [Proposal(e, problems) for e in strategies.ask(operator, evidence.target, step)] if problems else []


def next_step(turn: TuningTurn, variants: list[Variant], begun: float, step: int, most: int) -> int:
    """How many configs of each kernel, at `most`, the budget has time for, judged by the last step; 0 for none.

    The last step had `step` configs. It was to compile `variants`, and began when `begun` seconds of the budget were
    spent.
    """
    if not turn.limited:
        return step
    if variants and all(e.object is None for e in variants):
        return 0
    took = max(turn.spent - begun, 1e-3)
    return min(most, int(step * turn.left / took))


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
    """In the block, a thread fits the odd problems that benches need first. If one fails, its screen reports it."""
    policy, on_host = session.policy(target.family), family(target.family).on_host
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
