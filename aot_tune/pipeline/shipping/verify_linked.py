"""After the link: verifies every kept variant once more, called through the library's own C functions.

Each object has been verified by itself. New in the library is the way to it: dispatch, guards, the arguments of
variants, the link. The build writes down the problems to verify on, and the check of the linked library runs them. A
library whose bytes were verified before is not run again.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
import shlex
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec

from aot_tune.bench.devices.family import family
from aot_tune.bench.host.bench import Bench
from aot_tune.bench.host.odd_problems import oddest_checks
from aot_tune.bench.protocol.measurement_records import Check, Device, Measurement, digest_of
from aot_tune.compile import Variant, target_by_name
from aot_tune.database import operator_digest
from aot_tune.pipeline.evidence import Chosen, guards_of
from aot_tune.pipeline.measuring.lazy_bench import BenchFiles, LazyBench
from aot_tune.pipeline.measuring.verify_variants import served_by
from aot_tune.pipeline.session import Session
from aot_tune.plan.library_plan import read_plan
from aot_tune.select import picked
from aot_tune.spec import Operator, Problem
from aot_tune.support.errors import BuildError, CacheError, WorkerError
from aot_tune.support.interrupts import end_all
from aot_tune.support.limits import usable_cores
from aot_tune.support.progress import Progress
from aot_tune.support.storage import TEMPORARIES, check_folder, private_folder, replace_file, write_changed

_UNAVAILABLE = re.compile(r"\breturned -100\b")
"""AOT_TUNE_UNAVAILABLE: a variant needs something that is missing, such as a vendor's library. Dispatch skips it."""

_MOST, _CORES, _GIB, _EACH = 3, 4, 24, 16
"""Limits on how many benches run at a time: in all, by cores, by the device's memory and by variants.

A bench is three processes, which take seconds to start."""
_FILE = "shipped.json"

_HOST_FLOPS, _HOST_BYTES = 1 << 31, 32 << 20
"""Limits of a quick problem on a CPU. References of larger ones take seconds, too long for the end of each build."""
_REMEMBERED = 256

_ENOUGH = 8
"""More failures would say no more. Each may cost a worker, which takes seconds to start on a GPU."""


def _unavailable(measurement: Measurement) -> bool:
    """Whether a variant could not run because something that it needs is missing."""
    return measurement.status == "failed" and bool(_UNAVAILABLE.search(measurement.reason))


def _failed(measurement: Measurement) -> bool:
    return measurement.status != "ok" and not _unavailable(measurement)


def _work_off(
    session: Session,
    device: Device,
    given: Sequence[_Shipped],
    run: Callable[[LazyBench, _Shipped], Measurement],
    enough: int,
    results: dict[int, Measurement],
) -> None:
    """Have benches `run` variants on a device in turn, until `enough` of them have failed. `results` are by place.

    A CPU is shared with other builds; a GPU's memory is not. A variant may fail only because other benches run beside
    it. So a bench that is alone runs those that failed again, and those that no other could run.

    Raises:
        WorkerError: when no worker can be started.
    """
    count, ended, left = _benches(device, len(given)), threading.Event(), deque(range(len(given)))

    def work(bench: LazyBench) -> None:
        while left and not ended.is_set() and sum(map(_failed, results.copy().values())) < enough:
            try:
                number = left.popleft()
            except IndexError:  # another took the last one
                return
            try:
                results[number] = run(bench, given[number])
            except WorkerError:
                left.append(number)  # others do it
                raise

    def help_first(bench: LazyBench) -> None:
        try:
            with bench:
                work(bench)
        except WorkerError as error:
            if not ended.is_set():
                session.progress.line(
                    f"{device.name}: one of the benches that verify was lost; the others go on: {error}"
                )

    with (
        BenchFiles(session, count, ended.is_set) as shared,
        LazyBench(session, device, exclusive=not family(device.family).on_host, shared=shared) as first,
        ThreadPoolExecutor(count) as threads,
    ):
        first.get()  # it must have the device for itself before others start
        others = [LazyBench(session, device, exclusive=False, shared=shared) for _ in range(count - 1)]
        helping = [threads.submit(help_first, bench) for bench in others]  # workers die with their thread
        try:
            with contextlib.suppress(*([WorkerError] if others else [])):
                work(first)
            for helper in helping:
                helper.result()
            if others:
                failed = [number for number, measurement in sorted(results.items()) if _failed(measurement)]
                left.extendleft(reversed(failed))
                for number in failed:
                    del results[number]
                work(first)
        except BaseException:
            ended.set()
            end_all(helping, lambda: list(map(LazyBench.interrupt, others)))
            raise


def _benches(device: Device, count: int) -> int:
    if family(device.family).on_host:
        return 1
    memory = int(device.identity.get("memory_gib", 0))
    return max(1, min(_MOST, usable_cores() // _CORES, memory // _GIB, count // _EACH))


class _Shipped(msgspec.Struct, frozen=True, kw_only=True):
    """A variant and the problems to verify it on. `contract`: its operator's digest. `repeat`: no race did."""

    operator: str
    contract: str
    variant: str
    label: str
    target: str
    checks: tuple[Check, ...]
    repeat: bool = True


def plan_checks(
    session: Session, directory: Path, chosen: Mapping[str, Sequence[Chosen]], generics: Mapping[str, Sequence[Variant]]
) -> None:
    """Write down what to verify every variant on after the link."""
    shipped: list[_Shipped] = []
    odd: dict[tuple[str, ...], list[Check]] = {}  # most variants have the same requirements as others
    for name, operator in session.operators.items():
        members = list(chosen.get(name, ()))
        variants = {e.candidate.id: e for e in generics[name]}
        variants |= {c: m.evidence.variants[c] for m in members for c in m.selection.kept if c not in variants}
        contract, made = operator_digest(operator), defaultdict[str, list[Measurement]](list)
        for m in itertools.chain.from_iterable(member.evidence.made() for member in members):
            made[m.candidate].append(m)
        for variant in variants.values():
            candidate = variant.candidate
            key = (name, candidate.target, *(r.key() for r in variant.requires))
            if key not in odd:
                devices = target_by_name(candidate.target).family
                policy, on_host = session.policy(devices), family(devices).on_host
                odd[key] = oddest_checks(session.checks.of(operator, variant.requires, policy, on_host))
            checks = (Check(problem=_problem(operator, variant, members)), *odd[key])
            shipped.append(
                _Shipped(
                    operator=name,
                    contract=contract,
                    variant=variant.name,
                    label=candidate.label,
                    target=candidate.target,
                    checks=checks,
                    repeat=not any(m.final and m.bitwise is not None for m in made[candidate.id]),
                )
            )
    write_changed(directory / _FILE, msgspec.json.encode(shipped))


def _problem(operator: Operator, variant: Variant, chosen: Sequence[Chosen]) -> Problem:
    """The cheapest problem of the workload that dispatch gives to a variant, or else that the variant serves."""
    devices = target_by_name(variant.candidate.target).family
    served = served_by(operator, variant, devices)
    won = [p for p in served if any(_picked(member, p) == variant.candidate.id for member in chosen)]
    if family(devices).on_host:
        won = [p for p in won if _is_quick(operator, p)]
    return min(won or served, key=lambda p: (operator.compulsory_bytes(p), p.id))


def _is_quick(operator: Operator, problem: Problem) -> bool:
    flops = operator.flops.evaluate(operator.facts(problem))
    return flops <= _HOST_FLOPS and operator.compulsory_bytes(problem) <= _HOST_BYTES


def _picked(chosen: Chosen, problem: Problem) -> str | None:
    """The variant that dispatch chooses for a measured problem; None for other problems."""
    if problem.id not in chosen.costs:
        return None
    facts = chosen.evidence.operator.facts(problem)
    return picked(chosen.selection, problem.id, facts, guards_of(chosen.evidence))


def verify_linked_library(directory: Path, library: Path) -> None:
    """Verify the variants of a linked library whose devices are here. A line says what was done and what was not.

    Args:
        directory: of the build, which holds the plan.
        library: the shared library.

    Raises:
        BuildError: when a variant fails. It names each failed variant, its problem and what to do.
    """
    plan, paths = read_plan(directory)
    try:
        text = (directory / _FILE).read_bytes()
        shipped = msgspec.json.decode(text, type=list[_Shipped])
    except (OSError, ValueError) as error:
        raise BuildError(f"{directory / _FILE} cannot be read", why=str(error), fix="build again") from error
    session = Session(plan, paths, Progress())
    try:
        groups = _by_device(session, shipped)
        away = Counter(s.target for s in shipped if session.device_for(target_by_name(s.target)) is None)
        for target, count in sorted(away.items()):
            session.progress.line(
                f"{library.name}: {count} variant{'s' * (count != 1)} for {target} not verified inside the library: "
                "no such device here"
            )
        digests = [hashlib.sha256(data).hexdigest() for data in (library.read_bytes(), text)]
        memory = _Memory(session, digest_of([*digests, plan.inputs, sorted(groups)]))
        if memory.known:
            session.progress.line(f"{library.name}: its variants were verified before on this machine")
        elif groups and _verify(session, directory, library, groups.values()):
            memory.add()
    finally:
        session.close()


def _by_device(session: Session, shipped: Sequence[_Shipped]) -> dict[str, tuple[Device, list[_Shipped]]]:
    """The variants that can run here, by the digest of their device."""
    groups: dict[str, tuple[Device, list[_Shipped]]] = {}
    for variant in shipped:
        device = session.device_for(target_by_name(variant.target))
        if device is not None:
            groups.setdefault(device.digest, (device, []))[1].append(variant)
    return groups


def _verify(
    session: Session, directory: Path, library: Path, groups: Collection[tuple[Device, Sequence[_Shipped]]]
) -> bool:
    """Verify what can run here. Returns whether that was everything."""
    begun = time.monotonic()
    right, whole, failed = 0, True, list[str]()
    for device, group in groups:
        if len(failed) >= _ENOUGH:
            break
        results: dict[int, Measurement] = {}
        try:
            _work_off(session, device, group, partial(_run, session, library), _ENOUGH - len(failed), results)
        except WorkerError as error:  # a replay needs no worker before this: it may lack what a worker needs
            whole = False
            session.progress.line(f"{library.name} is NOT verified on {device.name}: {error}")
        for number, measurement in sorted(results.items()):
            right += measurement.status == "ok"
            if measurement.bitwise is False and session.operators[group[number].operator].deterministic is None:
                variant = f"{group[number].variant} ({group[number].label})"
                session.progress.line(
                    f"{group[number].operator}: results of {variant} vary between equal calls; if that is meant, "
                    "declare deterministic=False"
                )
            if _unavailable(measurement):
                session.progress.line(f"{library.name}: not verified inside the library: {measurement.reason}")
            elif measurement.status != "ok":
                failed.append(_told(group[number], measurement))
    if failed:
        _refuse(directory, library, failed, sum(len(group) for _, group in groups))
    if right:
        seconds = time.monotonic() - begun
        session.progress.line(
            f"{library.name}: {right} variant{'s' * (right != 1)} verified inside the library in {seconds:.1f} s"
        )
    return whole


def _told(shipped: _Shipped, measurement: Measurement) -> str:
    variant = f"{shipped.operator}: {shipped.variant} ({shipped.label})"
    return f"{variant} on '{measurement.problem.id}': {measurement.status}: {measurement.reason}"


def _refuse(directory: Path, library: Path, failed: Sequence[str], count: int) -> NoReturn:
    again = ["aot-tune", "check-library", "--directory", str(directory), "--library", str(library)]
    least = "at least " * (len(failed) >= _ENOUGH)
    raise BuildError(
        f"{library.name}: {least}{len(failed)} of {count} variants fail inside the library",
        why="\n       ".join(failed),
        fix="build again from an empty build folder; if it fails again, the code that calls the variants is at fault. "
        f"To try again: {shlex.join(again)}",
    )


def _run(session: Session, library: Path, lazy: LazyBench, shipped: _Shipped) -> Measurement:
    operator, bench = session.operators[shipped.operator], lazy.get()
    if not isinstance(bench, Bench):
        raise WorkerError("a library is verified on devices of the machine that it is linked on, and on no others")
    prepared = [bench.prepare(operator, check) for check in shipped.checks]
    function = f"{session.plan.prefix}_{shipped.operator}"
    name = f"{shipped.operator}:{shipped.variant}"
    return bench.verify_linked(library, function, name, prepared, repeat=shipped.repeat)


class _Memory:
    """Remembers verified libraries: each is a file in the cache."""

    def __init__(self, session: Session, key: str) -> None:
        location = session.location
        self._folder = None if location.root is None else location.root / "linked"
        self._key, self._writable = key, location.mode in ("rw", "fresh")
        self._fresh = location.mode == "fresh" or session.options.mode == "tune"
        if location.root is not None:
            try:
                check_folder(location.root, trusted=location.trusted, writable=self._writable)
            except CacheError:  # a build without a cache goes on
                self._folder = None

    @property
    def known(self) -> bool:
        """Whether the library was verified before and that can be trusted."""
        return self._folder is not None and not self._fresh and (self._folder / self._key).is_file()

    def add(self) -> None:
        """Remember the library, and forget those verified longest ago."""
        if self._folder is None or not self._writable:
            return
        try:
            private_folder(self._folder)
            replace_file(self._folder / self._key, b"", self._folder.parent / TEMPORARIES)
            kept = sorted(self._folder.iterdir(), key=lambda f: f.stat().st_mtime, reverse=True)
            for old in kept[_REMEMBERED:]:
                old.unlink(missing_ok=True)
        except OSError:  # the library is verified again, or another build removes it too
            return
