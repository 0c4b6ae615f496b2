"""Renders and compiles all candidates of a library's targets, and says for each kernel what fits, spills and fails."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from aot_tune.compile import Variant, families_of, toolchain_for
from aot_tune.pipeline.compiling.interpret import interpret_kernels
from aot_tune.pipeline.naming import candidate_name
from aot_tune.pipeline.session import Session
from aot_tune.plan.wanted_targets import generic_dtypes
from aot_tune.render import Candidate, candidates_for, generic_candidates, resolved
from aot_tune.report.compiled_kernels import CompiledKernel, FailureKind, Interpreted, compiled_lines, compiled_summary
from aot_tune.spec import Kernel, Operator, Target
from aot_tune.spec.load_operators import load_operators
from aot_tune.support.errors import AotTuneError, BuildError

__all__ = ["compile_every_candidate", "tell_failures"]

_AT_ONCE = 2000
"""How many candidates are rendered before they are compiled. Their sources are held in memory."""
_PLACES = re.compile(r"\d+|'[^']*'|\"[^\"]*\"")
"""The parts in which errors of one kind differ: numbers, and names in quotes."""


@dataclass
class _Tried:
    """A kernel on a target, and the results of its candidates."""

    operator: Operator
    kernel: Kernel
    target: Target
    fit: list[Variant] = field(default_factory=list)
    kinds: dict[tuple[str, str], FailureKind] = field(default_factory=dict)
    no_reason: str = ""

    def fails(self, status: str, error: str, candidate: Candidate | None = None) -> None:
        """Count a failed candidate; None counts nothing."""
        kind = status, _PLACES.sub("", error)
        label, name = (candidate.label, candidate_name(candidate)) if candidate is not None else (self.kernel.name, "")
        first = self.kinds.get(kind) or FailureKind(status=status, candidate=label, name=name, error=error, count=0)
        self.kinds[kind] = msgspec.structs.replace(first, count=first.count + 1)

    def takes(self, entry: Variant) -> None:
        """Count an object."""
        assert entry.object is not None
        if entry.compiled:
            self.fit.append(entry)
        else:
            self.fails(entry.object.status, entry.object.error, entry.candidate)


def compile_every_candidate(session: Session) -> list[CompiledKernel]:
    """Compile all candidates for the session's targets, and all generic kernels, and print each kernel's results.

    AOT_TUNE_FILTER leaves kernels out. A Triton kernel's first config that compiles runs in Triton's interpreter.
    """
    tried = [_Tried(operator, kernel, target) for operator, kernel, target in _kernels(session)]
    waiting: list[tuple[_Tried, Variant]] = []
    for one in tried:
        for entry in _rendered(session, one):
            waiting.append((one, entry))
            if len(waiting) >= _AT_ONCE:
                _compile(session, waiting)
                waiting = []
    _compile(session, waiting)
    functions = [(t.operator, t.kernel, t.target, t.fit) for t in tried if t.kernel.triton is not None and t.fit]
    interpreted = interpret_kernels(session, functions)
    found = [_outcome(one, interpreted.get((one.operator.name, one.kernel.name, one.target.name))) for one in tried]
    found += _kernels_left_out(session)
    for line in (*itertools.chain(*map(compiled_lines, found)), *compiled_summary(found)):
        session.progress.line(line)
    return found


def tell_failures(session: Session, found: Iterable[CompiledKernel]) -> None:
    """Mark operators that cannot be shipped: those with a kernel none of whose candidates compiles.

    In a strict build, these are also all operators with any failure.
    """
    for one in found:
        if not one.is_lost and not (session.options.strict and one.is_faulty):
            continue
        fix = "mend it; `aot-tune compile` shows this without a build"
        if not one.is_lost:
            fix = "mend it, or compile without AOT_TUNE_STRICT: then one candidate that compiles is enough"
        what = "has no candidate that compiles" if one.is_lost else "has candidates that fail"
        error = BuildError(
            f"operator {one.operator!r}: kernel {one.kernel!r} {what} for {one.target}",
            why="\n       ".join(line.strip() for line in compiled_lines(one)[1:]),
            fix=fix,
        )
        session.failures.add(one.operator, error)


def _kernels(session: Session) -> Iterator[tuple[Operator, Kernel, Target]]:
    """All kernels with the targets that they are compiled for. For generic ones these are their baseline targets."""
    for loaded in session.operators.values():
        operator = loaded.operator
        for kernel, baseline in session.generics(operator):
            if session.is_named(operator, kernel):
                yield operator, resolved(kernel, baseline.name), baseline
        for target in session.targets:
            for kernel in session.kernels_for(operator, target):
                if session.is_named(operator, kernel):
                    yield operator, kernel, target


def _rendered(session: Session, one: _Tried) -> Iterator[Variant]:
    """The candidates of a kernel that can be rendered. The others are noted as failures."""
    operator, kernel, target = one.operator, one.kernel, one.target
    configs, seen = 0, set[str]()
    try:
        for config in kernel.configs(target.facts):
            configs += 1
            choices = generic_dtypes(operator, kernel, target) if kernel.generic else []
            made = (
                (c for d in choices for c in generic_candidates(operator, kernel, config, target, d))
                if kernel.generic
                else candidates_for(operator, kernel, config, target)
            )
            for candidate in made:
                if candidate.id in seen:
                    continue
                seen.add(candidate.id)
                try:
                    yield session.rendered(operator, candidate, target)
                except AotTuneError as error:
                    one.fails("render-failed", _first_line(error), candidate)
            if kernel.generic:
                break  # it has one config
    except AotTuneError as error:  # of a constraint, or of what is passed to a function
        one.fails("no-candidate", _first_line(error))
    if not seen and not one.kinds:
        one.no_reason = (
            "it serves no problem of the workload"
            if configs
            else "only a device can tell a vendor library's algorithms"
            if kernel.algorithms is not None
            else f"its constraints say that it is not for {target.name}"
        )


def _first_line(error: AotTuneError) -> str:
    return error.what.partition("\n")[0]


def _compile(session: Session, waiting: Sequence[tuple[_Tried, Variant]]) -> None:
    owners = {entry.id: one for one, entry in waiting}
    session.compile([e for _, e in waiting], "compile", ready=lambda entry: owners[entry.id].takes(entry))


def _outcome(one: _Tried, interpreted: Interpreted | None) -> CompiledKernel:
    resources = [(e.object.resources, e.candidate.label) for e in one.fit if e.object is not None]
    spills = [(r.get("spill_bytes", 0), label) for r, label in resources if r.get("spill_bytes", 0) > 0]
    worst, where = max(spills, default=(0, ""))
    on_host = one.target.on_host
    return CompiledKernel(
        operator=one.operator.name,
        kernel=one.kernel.name,
        target=one.target.name,
        backend=one.kernel.backend,
        fit=len(one.fit),
        spilled=len(spills),
        spill_bytes=worst,
        spill_where=where,
        registers=max((r.get("registers", 0) for r, _ in resources), default=0),
        shared=max((r.get("shared", 0) for r, _ in resources), default=0),
        stack=0 if on_host else max((r.get("stack", 0) for r, _ in resources), default=0),
        failures=tuple(one.kinds.values()),
        interpreted=interpreted,
        no_reason=one.no_reason,
    )


def _kernels_left_out(session: Session) -> Iterator[CompiledKernel]:
    """Kernels that the session does not compile for its targets, though operators declare them.

    An unreadable Triton function is a failure, because nobody would hear of it otherwise. A kernel that is not
    for a target, or would never be called, is not a failure.
    """
    roots, plan = session.renderer.roots, session.plan
    for name, (_, declared) in load_operators(roots, plan.operators, plan.options.exclude_backends).items():
        operator = session.operators[name].operator
        for kernel in declared.kernels:
            served = families_of(toolchain_for(kernel.backend, session.environment))
            for target in session.baselines if kernel.generic else session.targets:
                if target.family in served and session.is_named(operator, kernel):
                    found = _kernel_left_out(session, operator, kernel, target)
                    if found is not None:
                        yield found


def _kernel_left_out(session: Session, operator: Operator, kernel: Kernel, target: Target) -> CompiledKernel | None:
    """Why a kernel is left out; None if it is not."""
    reason, failure = "", ""
    own = next((k for k in operator.kernels if k.name == kernel.name), None)
    if own is None:
        notes = [n for n in session.plan.notes if n.startswith("Triton kernels are left out")]
        failure = notes[0] if notes else f"{kernel.source} was not read"
    elif kernel.generic:
        return None
    elif not session.answers(operator, target):
        reason = f"the operator has no generic kernel for {target.family}, without which a library does not use it"
    elif own.triton is not None and target.name not in own.triton.inspections:
        reason = f"its constraints say that it is not for {target.name}"
    if not (reason or failure):
        return None
    kinds = (FailureKind(status="not-read", candidate=kernel.name, name="", error=failure, count=1),) if failure else ()
    return CompiledKernel(
        operator=operator.name,
        kernel=kernel.name,
        target=target.name,
        backend=kernel.backend,
        failures=kinds,
        no_reason=reason,
    )
