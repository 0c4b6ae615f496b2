"""Nothing ships unverified: an object that no measurement vouches for is verified before it is linked."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from aot_tune.bench.devices.family import family
from aot_tune.bench.host.odd_problems import checks_for
from aot_tune.bench.host.preparation import has_room
from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.compile import Variant, target_by_name
from aot_tune.database import operator_digest
from aot_tune.pipeline.evidence import Chosen, Evidence
from aot_tune.pipeline.failures import again, crash_hint
from aot_tune.pipeline.measuring.lazy_bench import LazyBench
from aot_tune.pipeline.session import Session
from aot_tune.spec import Operator, Problem, all_of
from aot_tune.support.errors import AotTuneError, BuildError, WorkerError
from aot_tune.support.interrupts import end_all

_NOT_RUN = ("skipped", "timeout")
"""A generic kernel may be too slow for a large problem, or need too much workspace. Neither is a wrong result."""


def verify_shipped(
    session: Session, chosen: Mapping[str, Sequence[Chosen]], generics: Mapping[str, Sequence[Variant]]
) -> frozenset[str]:
    """Verify every kept and generic variant whose object neither this build nor a record has verified.

    A variant without a device here stays as it is; if it was rebuilt, a line says so. A build that measures nothing may
    find that a GPU here can run nothing. Then its generic variants stay too, and a line says so.

    An operator fails if one of its variants fails. A variant that failed while it was measured is not run again. A
    variant that fills in and was never measured may fail: a line says why. Returns the ids of such candidates.

    Raises:
        WorkerError: when no worker can be started.
    """
    waiting: list[Variant] = []
    verifying = _Verifying(session)
    for name, operator in session.operators.items():
        choices = list(chosen.get(name, ()))
        for generic in generics.get(name, ()):
            with session.failures.of(name):
                _refuse_bad_generic(operator, generic, [choice.evidence for choice in choices])
        if name in session.failures:
            continue
        kept = {c: choice.evidence.variants[c] for choice in choices for c in choice.selection.kept}
        made = [m for choice in choices for m in choice.evidence.made()]
        vouched = {m.code for m in made if m.status == "ok"}
        shipped = {**kept, **{g.candidate.id: g for g in generics[name]}}
        waiting += [e for e in shipped.values() if e.code not in vouched]
        filling = {c for c, e in shipped.items() if _fills_in(operator, e, [choice.evidence for choice in choices])}
        verifying.filling |= filling
        verifying.needless |= filling - {m.candidate for m in made}
    groups = list(_by_device(session, waiting, verifying.filling))
    if len(groups) < 2:  # workers belong to the thread that asks, here the build's own
        for device, group in groups:
            verifying.on(device, group)
        return frozenset(verifying.wrong)
    ended = threading.Event()
    with ThreadPoolExecutor(len(groups)) as threads:  # references on a CPU take as long as starting a GPU's workers
        try:
            for future in as_completed(threads.submit(verifying.on, *group, ended.is_set) for group in groups):
                future.result()
        except BaseException:
            ended.set()
            raise
    return frozenset(verifying.wrong)


@contextmanager
def verified_beside(session: Session) -> Iterator[None]:
    """Verify the host's generic variants in a thread while GPUs tune. `verify_shipped` reports what is left."""
    targets = session.targets
    on_host = any(family(t.family).on_host for t in targets)
    on_gpus = not on_host and any(session.device_for(t) is not None for t in targets)
    generics = list[Variant]()
    for name, operator in session.operators.items() if on_gpus else ():
        with session.failures.of(name):
            generics += session.generic_variants(operator)
    generics = [e for e in generics if family(target_by_name(e.candidate.target).family).on_host]
    if not (generics and _measures(session)):
        yield
        return
    generics = session.compile(generics, "generic")
    device, group = next(iter(_by_device(session, [e for e in generics if e.compiled])), (None, []))
    if device is None:
        yield
        return
    ended = threading.Event()
    with LazyBench(session, device, exclusive=False) as bench, ThreadPoolExecutor(1) as thread:
        verified = thread.submit(verify_early, session, bench, group, ended.is_set)
        try:
            yield
            wait((verified,))
        except BaseException:
            ended.set()
            end_all((verified,), bench.interrupt)
            raise


def verify_early(session: Session, bench: LazyBench, variants: Iterable[Variant], ended: Callable[[], bool]) -> bool:
    """Verify variants until `ended`. `verify_shipped` reports what is left. Returns whether there were workers."""
    for variant in variants:
        if ended():
            break
        try:
            verify_variant(session, bench, session.operators[variant.candidate.operator], variant)
        except WorkerError:
            return False  # the next variant would wait for workers as long
        except AotTuneError:
            continue
    return True


@dataclass
class _Verifying:
    """Verifies variants. `needless` ones, by id, that fail become `wrong`; `filling` ones may be unmeasured."""

    session: Session
    filling: set[str] = field(default_factory=set)
    needless: set[str] = field(default_factory=set)
    wrong: set[str] = field(default_factory=set)

    def on(self, device: Device, group: Sequence[Variant], ended: Callable[[], bool] = lambda: False) -> None:
        """Verify variants on one device until `ended`. Raises WorkerError where a worker is needed and none starts."""
        session, devices = self.session, family(device.family)
        try:
            with LazyBench(session, device, exclusive=not devices.on_host) as bench:  # nothing is timed
                for variant in itertools.takewhile(lambda _: not ended(), group):
                    with session.failures.of(variant.candidate.operator):
                        self._one(bench, variant)
        except WorkerError as error:
            if (
                _measures(session)
                or devices.on_host
                or not all(e.candidate.generic or e.id in self.filling for e in group)
            ):
                raise
            # Only builds that measure require what a GPU's workers need, such as torch.
            kind, of = ("generic ", "") if all(e.candidate.generic for e in group) else ("", " that no record has")
            count = f"{len(group)} {kind}variant{'s' * (len(group) != 1)}{of}"
            session.progress.line(f"{count} NOT verified on {device.name}: {error}")

    def _one(self, bench: LazyBench, variant: Variant) -> None:
        candidate = variant.candidate
        try:
            verify_variant(self.session, bench, self.session.operators[candidate.operator], variant)
        except BuildError as error:
            if candidate.id not in self.needless:
                raise
            self.wrong.add(candidate.id)
            self.session.progress.line(f"LEFT OUT {candidate.label}, for which the generic variant serves: {error}")


def _fills_in(operator: Operator, variant: Variant, evidences: Sequence[Evidence]) -> bool:
    if any(variant.id in evidence.standing_in for evidence in evidences):
        return True
    return not variant.candidate.generic and operator.kernel(variant.candidate.kernel).fills_in


def _measures(session: Session) -> bool:
    return session.plan.may_measure and session.options.mode in ("auto", "tune")


def _refuse_bad_generic(operator: Operator, generic: Variant, evidences: Sequence[Evidence]) -> None:
    for evidence in evidences:
        for m in evidence.made_of(generic.candidate.id):
            if m.status not in ("ok", *_NOT_RUN):
                raise BuildError(
                    f"operator {operator.name!r}: its generic kernel fails on '{m.problem.id}'",
                    why=f"{m.status}: {m.reason}",
                    fix=f"correct {operator.kernel(generic.candidate.kernel).source}{crash_hint([m.status])}; "
                    "it serves every call that no other variant serves. "
                    f"To try again: {again(operator, generic, generic.candidate.target, m.problem)}",
                )


def _by_device(
    session: Session, variants: Sequence[Variant], filling: Collection[str] = ()
) -> Iterator[tuple[Device, list[Variant]]]:
    groups: dict[str, tuple[Device, list[Variant]]] = {}
    away: dict[tuple[str, str, str], None] = {}
    for variant in variants:
        candidate = variant.candidate
        device = session.device_for(target_by_name(candidate.target))
        if device is not None:
            groups.setdefault(device.digest, (device, []))[1].append(variant)
        elif variant.id in filling:
            away[candidate.operator, candidate.kernel, candidate.target] = None
        elif variant.rebuilt:
            session.progress.line(
                f"{variant.candidate.operator}: {variant.candidate.label} is rebuilt and cannot be verified here: "
                f"no {variant.candidate.target} on this machine"
            )
    for operator, kernel, target in away:
        session.progress.line(
            f"{operator}: {kernel} is kept for calls that nobody measured, and cannot be verified here: "
            f"no {target} on this machine"
        )
    yield from groups.values()


def verify_variant(session: Session, bench: LazyBench, operator: Operator, variant: Variant) -> None:
    """Verify one variant on the smallest problem that it serves and on odd ones, unless the store has the result."""
    devices = bench.device.family
    problem = min(served_by(operator, variant, devices), key=lambda p: (operator.compulsory_bytes(p), p.id))
    policy = session.policy(devices)
    store = session.store.operator(operator.name, operator_digest(operator), bench.device, policy, kind="verify only")
    result = store.find(variant.candidate.id, variant.code, problem)
    if result is None:
        prepared = bench.get().prepare(operator, problem)
        linked = bench.linked(variant)
        result = bench.get().verify(prepared, linked)
        if result.lasting:
            store.put(result, [linked])
    if result.status != "ok":
        kind = "generic kernel" if variant.candidate.generic else f"kept variant {variant.candidate.label}"
        raise BuildError(
            f"operator {operator.name!r}: its {kind} fails on '{problem.id}'",
            why=f"{result.status}: {result.reason}",
            fix=f"{'build again when the machine is less busy, else ' * (result.status == 'timeout')}correct the "
            "kernel: nothing that fails is shipped. "
            f"To try again: {again(operator, variant, variant.candidate.target, result.problem)}",
        )


def served_by(operator: Operator, variant: Variant, devices: str) -> list[Problem]:
    """Problems of the workload that a variant serves. There is always one.

    If the workload has none in the variant's dtypes, its problems are used in these dtypes. If nothing is worth tuning
    on `devices` of that family, or the host has no memory for any of it, the author's checks are used, or else odd
    problems.
    """
    policy, on_host = family(devices).policy(), family(devices).on_host
    workload = (
        [p for p in operator.workload_for(devices) if not on_host or has_room(operator, p, policy)]
        or operator.checks
        or [c.problem for c in checks_for(operator, (), policy, on_host=on_host)]
    )
    served = [p for p in workload if all_of(variant.requires, operator.facts(p))]
    return served or [msgspec.structs.replace(p, dtypes=dict(variant.candidate.dtypes)) for p in workload]
