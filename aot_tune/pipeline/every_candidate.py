"""Compiles every candidate without a device: the mode `compile` and the command `aot-tune compile`.

For each kernel of a library's targets it says what fits, spills and fails. One config of each Triton kernel runs in
Triton's interpreter."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from aot_tune.bench.devices.family import family
from aot_tune.bench.host.odd_problems import derived_checks
from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.protocol.messages import InterpreterAnswer, InterpreterRequest
from aot_tune.compile import Variant, families_of, toolchain_for
from aot_tune.pipeline.session import Session, session_of
from aot_tune.pipeline.wanted_kernels import is_named, kernels_for
from aot_tune.plan.compile_settings import PLAIN, CompileSettings
from aot_tune.plan.library_plan import Request
from aot_tune.plan.wanted_targets import generic_dtypes
from aot_tune.render import Candidate, candidates_for, generic_candidates, resolved
from aot_tune.report.compiled_kernels import CompiledKernel, FailureKind, Interpreted, compiled_lines, compiled_summary
from aot_tune.spec import Kernel, Operator, Target, all_of
from aot_tune.spec.load_operators import load_operators, roots_with_bundled
from aot_tune.support.errors import AotTuneError, BuildError
from aot_tune.support.progress import Progress
from aot_tune.support.run_program import python_module, run
from aot_tune.support.storage import scratch_folder
from aot_tune.triton.ask_declarations import ADDRESS_SPACE, child_environment

__all__ = ["compile_every_candidate", "compile_operators", "tell_failures"]

_SECONDS = 120.0
"""Seconds for one kernel, a few of which are imports."""

_AT_ONCE = 2000
"""How many candidates are rendered before they are compiled. Their sources are held in memory."""

_PLACES = re.compile(r"\d+|'[^']*'|\"[^\"]*\"")
"""The parts in which errors of one kind differ: numbers, and names in quotes."""


def compile_operators(
    operators: Sequence[str],
    *,
    templates: Sequence[str] = (),
    options: Mapping[str, str],
    compiled_with: CompileSettings = PLAIN,
    as_json: bool = False,
) -> bool:
    """Compile every candidate and print the results. Returns whether every kernel has one that compiles.

    Args:
        operators: names; all of the template roots if empty.
        templates: template roots; the bundled ones if empty.
        options: options of a build. They win over the environment.
        compiled_with: how sources are compiled, as CMake would say it.
        as_json: print the results as JSON to standard output, and all other lines to standard error.

    Raises:
        AotTuneError: for mistakes that are found before anything is compiled.
    """
    roots = roots_with_bundled(templates)
    named = tuple(operators) or tuple(sorted(_own_operators(templates)))
    request = Request(
        name="compiled",
        prefix="compiled",
        header="compiled.h",
        operators=named,
        templates=roots,
        options={**options, "AOT_TUNE_MODE": "compile"},
        compile=compiled_with,
    )
    with session_of(request, Progress(sys.stderr if as_json else None), tells=True) as session:
        results = compile_every_candidate(session)
        strict = session.options.strict
    if as_json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    return not any(k.is_lost or (strict and k.is_faulty) for k in results)


def _own_operators(templates: Sequence[str]) -> set[str]:
    """The operators of a project's own roots. The bundled root only serves templates that include its files."""
    return {f.name for t in templates if t != "bundled" for f in Path(t).iterdir() if (f / "operator.py").is_file()}


def _smallest_check(operator: Operator, variant: Variant) -> Check | None:
    """The smallest of an operator's derived checks that a candidate serves, without extents of 1 if possible."""
    served = [
        c
        for c in derived_checks(operator, variant.requires, special=False)
        if not c.integers and all_of((*operator.legal, *variant.requires), operator.facts(c.problem))
    ]
    return min(
        served,
        key=lambda c: (
            1 in c.problem.dims.values(),
            bool(c.problem.strides),
            operator.compulsory_bytes(c.problem),
            c.problem.id,
        ),
        default=None,
    )


def _interpret_kernels(session: Session, kernels: Sequence[_Tried]) -> None:
    """Run one config of each Triton function. A function that several targets have runs once."""
    first: dict[tuple[str, str], _Tried] = {}
    for tried in kernels:
        if tried.kernel.triton is not None and tried.fit:
            first.setdefault((tried.operator.name, tried.kernel.name), tried)
    with ThreadPoolExecutor(max(1, session.jobs_of("triton").count)) as threads:
        verdicts = threads.map(partial(_interpreted, session), first.values())
        for number, (tried, verdict) in enumerate(zip(first.values(), verdicts, strict=True), 1):
            tried.interpreted = verdict
            session.progress.count("compile: run in Triton's interpreter", number, len(first))


def _interpreted(session: Session, tried: _Tried) -> Interpreted:
    """What the candidate with the fewest requirements that serves a check does with it.

    Candidates in bf16 come last: the interpreter keeps bf16 elements as integers, and computes with these integers if a
    kernel does not widen them.
    """
    operator, kernel, target = tried.operator, tried.kernel, tried.target
    for variant in sorted(tried.fit, key=lambda e: ("bf16" in e.candidate.dtypes.values(), len(e.requires))):
        check = _smallest_check(operator, variant)
        if check is not None:
            break
    else:
        return Interpreted(verdict="not runnable", text="it serves none of the operator's derived checks")
    request = InterpreterRequest(
        folder=str(Path(operator.folder).resolve()),
        kernel=kernel.name,
        target=target.name,
        config=dict(variant.candidate.config),
        check=check,
        inspections=session.plan.inspections,
        roots=[str(root) for root in session.renderer.roots],
        seed=family(target.family).policy().seed,
    )
    with scratch_folder() as name:
        answer = _ask(request, session, Path(name))
    label = variant.candidate.label
    return Interpreted(verdict=answer.verdict, problem=check.problem.id, candidate=label, text=answer.text)


def _ask(request: InterpreterRequest, session: Session, scratch: Path) -> InterpreterAnswer:
    asked, answered = scratch / "request.json", scratch / "answer.json"
    asked.write_bytes(msgspec.json.encode(request))
    argv = python_module("aot_tune.bench.worker.interpreted_call", str(asked), str(answered))
    environ = child_environment(session.environment, sys.path, scratch) | {"TRITON_INTERPRET": "1"}
    done = run(argv, folder=scratch, environ=environ, timeout=_SECONDS, memory=ADDRESS_SPACE)
    if done.timed_out:
        return InterpreterAnswer(verdict="not runnable", text=f"it takes longer than {_SECONDS:g} s")
    if done.code < 0:
        text = f"its process died of signal {-done.code}, as after an access to an invalid address"
        return InterpreterAnswer(verdict="not runnable", text=text)
    if done.code or not answered.is_file():
        last = " | ".join(done.output.strip().splitlines()[-2:])
        return InterpreterAnswer(verdict="not runnable", text=f"its process ended with status {done.code}: {last}")
    return msgspec.json.decode(answered.read_bytes(), type=InterpreterAnswer)


@dataclass
class _Tried:
    """A kernel on a target, and the results of its candidates."""

    operator: Operator
    kernel: Kernel
    target: Target
    fit: list[Variant] = field(default_factory=list)
    kinds: dict[tuple[str, str], FailureKind] = field(default_factory=dict)
    no_reason: str = ""
    interpreted: Interpreted | None = None

    def fails(self, status: str, error: str, candidate: Candidate | None = None) -> None:
        """Count a failed candidate; None counts nothing."""
        kind = status, _PLACES.sub("", error)
        label, name = (candidate.label, candidate.name) if candidate is not None else (self.kernel.name, "")
        first = self.kinds.get(kind) or FailureKind(status=status, candidate=label, name=name, error=error, count=0)
        self.kinds[kind] = msgspec.structs.replace(first, count=first.count + 1)

    def takes(self, variant: Variant) -> None:
        """Count an object."""
        if variant.compiled:
            self.fit.append(variant)
        else:
            self.fails(variant.made.status, variant.error, variant.candidate)


def compile_every_candidate(session: Session) -> list[CompiledKernel]:
    """Compile all candidates for the session's targets, and all generic kernels, and print each kernel's results.

    AOT_TUNE_FILTER leaves kernels out. A Triton kernel's first config that compiles runs in Triton's interpreter.
    """
    kernels = [_Tried(operator, kernel, target) for operator, kernel, target in _kernels(session)]
    waiting: list[tuple[_Tried, Variant]] = []
    for tried in kernels:
        for variant in _rendered(session, tried):
            waiting.append((tried, variant))
            if len(waiting) >= _AT_ONCE:
                _compile(session, waiting)
                waiting = []
    _compile(session, waiting)
    _interpret_kernels(session, kernels)
    results = [*map(_outcome, kernels), *_kernels_left_out(session)]
    for line in (*itertools.chain(*map(compiled_lines, results)), *compiled_summary(results)):
        session.progress.line(line)
    return results


def tell_failures(session: Session, results: Iterable[CompiledKernel]) -> None:
    """Mark operators that cannot be shipped: those with a kernel none of whose candidates compiles.

    In a strict build, these are also all operators with any failure.
    """
    for result in results:
        if not result.is_lost and not (session.options.strict and result.is_faulty):
            continue
        fix = "correct it; `aot-tune compile` shows this without a build"
        if not result.is_lost:
            fix = "correct it, or compile without AOT_TUNE_STRICT: then one candidate that compiles is enough"
        what = "has no candidate that compiles" if result.is_lost else "has candidates that fail"
        error = BuildError(
            f"operator {result.operator!r}: kernel {result.kernel!r} {what} for {result.target}",
            why="\n       ".join(line.strip() for line in compiled_lines(result)[1:]),
            fix=fix,
        )
        session.failures.add(result.operator, error)


def _kernels(session: Session) -> Iterator[tuple[Operator, Kernel, Target]]:
    """All kernels with the targets that they are compiled for. For generic ones these are their baseline targets."""
    for operator in session.operators.values():
        for kernel, baseline in session.generics(operator):
            if is_named(session, operator, kernel):
                yield operator, resolved(kernel, baseline.name), baseline
        for target in session.targets:
            for kernel in kernels_for(session, operator, target):
                if is_named(session, operator, kernel):
                    yield operator, kernel, target


def _rendered(session: Session, tried: _Tried) -> Iterator[Variant]:
    """The candidates of a kernel that can be rendered. The others are noted as failures."""
    operator, kernel, target = tried.operator, tried.kernel, tried.target
    configs, seen = 0, set[str]()
    try:
        for config in kernel.configs(target.facts):
            configs += 1
            choices = generic_dtypes(operator, kernel, target) if kernel.generic else []
            candidates = (
                (c for d in choices for c in generic_candidates(operator, kernel, config, target, d))
                if kernel.generic
                else candidates_for(operator, kernel, config, target)
            )
            for candidate in candidates:
                if candidate.id in seen:
                    continue
                seen.add(candidate.id)
                try:
                    yield session.rendered(operator, candidate, target)
                except AotTuneError as error:
                    tried.fails("render-failed", _first_line(error), candidate)
            if kernel.generic:
                break  # it has one config
    except AotTuneError as error:  # of a constraint, or of what is passed to a function
        tried.fails("no-candidate", _first_line(error))
    if not seen and not tried.kinds:
        tried.no_reason = (
            "it serves no problem of the workload"
            if configs
            else "only a device can tell a vendor library's algorithms"
            if kernel.algorithms is not None
            else f"its constraints say that it is not for {target.name}"
        )


def _first_line(error: AotTuneError) -> str:
    return error.what.partition("\n")[0]


def _compile(session: Session, waiting: Sequence[tuple[_Tried, Variant]]) -> None:
    owners = {variant.id: tried for tried, variant in waiting}
    session.compile([e for _, e in waiting], "compile", ready=lambda variant: owners[variant.id].takes(variant))


def _outcome(tried: _Tried) -> CompiledKernel:
    resources = [(e.made.resources, e.candidate.label) for e in tried.fit]
    spills = [(r.get("spill_bytes", 0), label) for r, label in resources if r.get("spill_bytes", 0) > 0]
    worst, where = max(spills, default=(0, ""))
    on_host = tried.target.on_host
    return CompiledKernel(
        operator=tried.operator.name,
        kernel=tried.kernel.name,
        target=tried.target.name,
        backend=tried.kernel.backend,
        fit=len(tried.fit),
        spilled=len(spills),
        spill_bytes=worst,
        spill_where=where,
        registers=max((r.get("registers", 0) for r, _ in resources), default=0),
        shared=max((r.get("shared", 0) for r, _ in resources), default=0),
        stack=0 if on_host else max((r.get("stack", 0) for r, _ in resources), default=0),
        failures=tuple(tried.kinds.values()),
        interpreted=tried.interpreted,
        no_reason=tried.no_reason,
    )


def _kernels_left_out(session: Session) -> Iterator[CompiledKernel]:
    """Kernels that the session does not compile for its targets, though operators declare them.

    An unreadable Triton function is a failure, because nobody would hear of it otherwise. A kernel that is not
    for a target, or would never be called, is not a failure.
    """
    roots, plan = session.renderer.roots, session.plan
    for name, (_, declared) in load_operators(roots, plan.operators, plan.options.exclude_backends).items():
        operator = session.operators[name]
        for kernel in declared.kernels:
            served = families_of(toolchain_for(kernel.backend, session.environment))
            for target in session.baselines if kernel.generic else session.targets:
                if target.family in served and is_named(session, operator, kernel):
                    left_out = _kernel_left_out(session, operator, kernel, target)
                    if left_out is not None:
                        yield left_out


def _kernel_left_out(session: Session, operator: Operator, kernel: Kernel, target: Target) -> CompiledKernel | None:
    """Why a kernel is left out; None if it is not."""
    reason, failure = "", ""
    kept = next((k for k in operator.kernels if k.name == kernel.name), None)
    if kept is None:
        notes = [n for n in session.plan.notes if n.startswith("Triton kernels are left out")]
        failure = notes[0] if notes else f"{kernel.source} was not read"
    elif kernel.generic:
        return None
    elif not session.answers(operator, target):
        reason = f"the operator has no generic kernel for {target.family}, without which a library does not use it"
    elif kept.triton is not None and target.name not in kept.triton.inspections:
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
