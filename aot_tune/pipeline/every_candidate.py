"""Compiles every candidate without a device: the mode `compile` and the command `aot-tune compile`.

For each kernel of a library's targets it says what fits, spills and fails. One config of each Triton kernel runs in
Triton's interpreter. References run on a small problem, as a build for each family of targets runs them."""

from __future__ import annotations

import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import msgspec

from aot_tune.bench.devices.family import family
from aot_tune.bench.host.odd_problems import derived_checks
from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.protocol.messages import InterpreterAnswer, InterpreterRequest, TriedReference
from aot_tune.compile import Variant, families_of, toolchain_for
from aot_tune.pipeline.session import Session, session_of
from aot_tune.pipeline.wanted_kernels import is_named, kernels_for
from aot_tune.plan.compile_settings import PLAIN, CompileSettings
from aot_tune.plan.library_plan import Request
from aot_tune.render import Candidate, candidates_for, resolved
from aot_tune.report.compiled_kernels import CompiledKernel, FailureKind, Interpreted, compiled_lines, compiled_summary
from aot_tune.spec import Expr, Kernel, Operator, Target, all_of, dtype_index
from aot_tune.spec.load_operators import load_operators, roots_with_bundled
from aot_tune.support.errors import AotTuneError, BuildError
from aot_tune.support.progress import Progress
from aot_tune.support.run_program import python_module, run
from aot_tune.support.storage import scratch_folder
from aot_tune.triton.ask_declarations import ADDRESS_SPACE, child_environment

_SECONDS = 120.0
"""Seconds for one kernel, a few of which are imports."""

_AT_ONCE = 2000
"""How many candidates are rendered before they are compiled. Their sources are held in memory."""

_ROUNDS = (1, 4, sys.maxsize)
"""After how many candidates of a kernel and dtypes it is looked whether all failed alike. Then the others are left out.

Kernels take turns: what is wrong with each is known before any is compiled in all its configs."""

_PLACES = re.compile(r"\d+|'[^']*'|\"[^\"]*\"")
"""The parts in which errors of one kind differ: numbers, and names in quotes."""


def compile_operators(
    operators: Sequence[str],
    *,
    templates: Sequence[str] = (),
    options: Mapping[str, str],
    compiled_with: CompileSettings = PLAIN,
    configs: int = sys.maxsize,
    as_json: bool = False,
) -> bool:
    """Compile every candidate and print the results. Returns whether every kernel has one that compiles.

    Args:
        operators: names; all of the template roots if empty.
        templates: template roots; the bundled ones if empty.
        options: options of a build. They win over the environment.
        compiled_with: how sources are compiled, as CMake would say it.
        configs: how many configs of each kernel are compiled at most, the first ones.
        as_json: print the results as JSON to standard output, and all other lines to standard error.

    Raises:
        AotTuneError: for mistakes that are found before anything is compiled.
    """
    roots = roots_with_bundled(templates)
    folders = (f for t in templates if t != "bundled" for f in Path(t).iterdir() if (f / "operator.py").is_file())
    named = tuple(operators) or tuple(sorted({f.name for f in folders}))
    request = Request(
        name="compiled",
        prefix="compiled",
        header="compiled.h",
        templates=roots,
        options={**options, "AOT_TUNE_OPERATORS": ";".join(named), "AOT_TUNE_MODE": "compile", "AOT_TUNE_XLA_FFI": "0"},
        compile=compiled_with,
    )
    with session_of(request, Progress(sys.stderr if as_json else None), tells=True) as session:
        results = compile_every_candidate(session, configs)
        strict = session.options.strict
    if as_json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    return not any(k.is_lost or (strict and k.is_faulty) for k in results)


def _smallest_check(operator: Operator, requires: Sequence[Expr] = ()) -> Check | None:
    """The smallest of an operator's derived checks that guards let pass, without extents of 1 if possible."""
    served = [
        c
        for c in derived_checks(operator, requires, special=False)
        if not c.integers and all_of((*operator.legal, *requires), operator.facts(c.problem))
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

    Candidates in bf16 come last, and run in another dtype if the operator has one: the interpreter keeps bf16 elements
    as integers, and computes with these integers if a kernel does not widen them.
    """
    operator, kernel, target = tried.operator, tried.kernel, tried.target
    for variant in sorted(tried.fit, key=lambda e: ("bf16" in e.candidate.dtypes.values(), len(e.requires))):
        check = _smallest_check(operator, _widened(operator, variant)) or _smallest_check(operator, variant.requires)
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
        answer = _interpret(request, session, Path(name))
    verdict, text = answer.verdict, answer.text
    if verdict == "wrong" and any(operator.dtype(check.problem, t).name == "bf16" for t in operator.tensors):
        verdict, text = "not runnable", f"the interpreter computes with bf16 as with integers: {text}"
    label = variant.candidate.label
    return Interpreted(verdict=verdict, problem=check.problem.id, candidate=label, text=text)


def _widened(operator: Operator, variant: Variant) -> tuple[Expr, ...]:
    """The guards of a candidate in another dtype in place of bf16, where the operator has f32 or f16 too."""
    others = {v: next((d for d in ("f32", "f16") if d in choices), "") for v, choices in operator.dtypes.items()}
    wide = {v: others[v] for v, d in variant.candidate.dtypes.items() if d == "bf16" and others[v]}
    kept = (r for r in variant.requires if not {f"dtype.{v}" for v in wide} & r.facts())
    return (*kept, *(dtype_index(v) == operator.dtypes[v].index(d) for v, d in wide.items()))


def _interpret(request: InterpreterRequest, session: Session, scratch: Path) -> InterpreterAnswer:
    answer, why = _ask("interpreted_call", request, session, scratch, {"TRITON_INTERPRET": "1"})
    if why or not answer:
        return InterpreterAnswer(verdict="not runnable", text=why)
    return msgspec.json.decode(answer, type=InterpreterAnswer)


def _ask(
    module: str, request: object, session: Session, scratch: Path, environ: Mapping[str, str] = MappingProxyType({})
) -> tuple[bytes, str]:
    """The answer of a module of the worker to a request; and what ended its process early, else an empty text."""
    asked, answered = scratch / "request.json", scratch / "answer.json"
    asked.write_bytes(msgspec.json.encode(request))
    argv = python_module(f"aot_tune.bench.worker.{module}", str(asked), str(answered))
    environ = {**child_environment(session.environment, sys.path, scratch), **environ}
    done = run(argv, folder=scratch, environ=environ, timeout=_SECONDS, memory=ADDRESS_SPACE)
    answer, why = answered.read_bytes() if answered.is_file() else b"", ""
    if done.timed_out:
        why = f"it takes longer than {_SECONDS:g} s"
    elif done.code < 0:
        why = f"its process died of signal {-done.code}, as after an access to an invalid address"
    elif done.code or not answer:
        why = f"its process ended with status {done.code}: {' | '.join(done.output.strip().splitlines()[-2:])}"
    return answer, why


_ARRAYS: Mapping[str, Literal["numpy", "torch"]] = {"cpu": "numpy", "cuda": "torch"}
"""What a build gives references, by the family of what it measures on."""


def _try_references(session: Session, kernels: Sequence[_Tried]) -> Iterator[CompiledKernel]:
    """Run the references of the kernels' operators on a small problem each. Those that fail are returned."""
    wanted = dict.fromkeys((t.operator.name, _ARRAYS[t.target.family]) for t in kernels if t.target.family in _ARRAYS)
    tried = []
    for name, arrays in wanted:
        operator, family_name = session.operators[name], "cuda" if arrays == "torch" else "cpu"
        check = _smallest_check(operator)
        if check is not None:
            folder, seed = str(Path(operator.folder).resolve()), family(family_name).policy().seed
            tried.append((name, TriedReference(folder=folder, check=check, arrays=arrays, seed=seed)))
    if not tried:
        return
    with scratch_folder() as scratch:
        answer, why = _ask("tried_references", [t for _, t in tried], session, Path(scratch))
    faults = msgspec.json.decode(answer or b"[]", type=list[str])
    for (name, reference), fault in zip(tried, [*faults, why], strict=False):
        if fault:
            kind = FailureKind(
                status="reference-failed", candidate=reference.check.problem.id, name="", error=fault, count=1
            )
            yield CompiledKernel(
                operator=name, kernel="", target=reference.arrays, backend="reference", failures=(kind,)
            )


@dataclass
class _Tried:
    """A kernel on a target, and the results of its candidates."""

    operator: Operator
    kernel: Kernel
    target: Target
    fit: list[Variant] = field(default_factory=list)
    kinds: dict[tuple[str, str], FailureKind] = field(default_factory=dict)
    waiting: list[tuple[int, Candidate]] = field(default_factory=list)
    ended: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    left_out: int = 0
    no_reason: str = ""
    interpreted: Interpreted | None = None

    def rendered(self, session: Session, end: int) -> Iterator[Variant]:
        """The next candidates, up to this place among those of their dtypes. What cannot be rendered fails.

        Those of dtypes of which all before failed alike are left out.
        """
        waiting, self.waiting = self.waiting, [(i, c) for i, c in self.waiting if i >= end]
        hopeless = {d for d, kinds in self.ended.items() if len(kinds) == 1 and ("", "") not in kinds}
        for place, candidate in waiting:
            if place >= _ROUNDS[1] and _dtypes(candidate) in hopeless:
                self.left_out += place < end
            elif place < end:
                try:
                    yield session.rendered(self.operator, candidate, self.target)
                except AotTuneError as error:
                    self.fails("render-failed", _first_line(error), candidate)

    def fails(self, status: str, error: str, candidate: Candidate | None = None) -> None:
        """Count a failed candidate; None counts nothing."""
        kind = status, _PLACES.sub("", error)
        if candidate is not None:
            self.ended.setdefault(_dtypes(candidate), set()).add(kind)
        label, name = (candidate.label, candidate.name) if candidate is not None else (self.kernel.name, "")
        first = self.kinds.get(kind) or FailureKind(status=status, candidate=label, name=name, error=error, count=0)
        self.kinds[kind] = msgspec.structs.replace(first, count=first.count + 1)

    def takes(self, variant: Variant) -> None:
        """Count an object."""
        if variant.compiled:
            self.fit.append(variant)
            self.ended.setdefault(_dtypes(variant.candidate), set()).add(("", ""))
        else:
            self.fails(variant.made.status, variant.error, variant.candidate)


def _dtypes(candidate: Candidate) -> str:
    return " ".join(f"{v}={d}" for v, d in sorted(candidate.dtypes.items()))


def compile_every_candidate(session: Session, configs: int = sys.maxsize) -> list[CompiledKernel]:
    """Compile the candidates for the session's targets, and the generic kernels, and print each kernel's results.

    AOT_TUNE_FILTER leaves kernels out, and `configs` those behind a kernel's first. Of a kernel whose first candidates
    all fail alike, the others are not compiled. A Triton kernel's first config that compiles runs in the interpreter.
    """
    kernels = [_Tried(operator, kernel, target) for operator, kernel, target in _kernels(session)]
    for tried in kernels:
        _list_candidates(session, tried, configs)
    references = list(_try_references(session, kernels))
    for line in itertools.chain(*map(compiled_lines, references)):
        session.progress.line(line)
    for end in _ROUNDS:
        waiting: list[tuple[_Tried, Variant]] = []
        for tried in kernels:
            for variant in tried.rendered(session, end):
                waiting.append((tried, variant))
                if len(waiting) >= _AT_ONCE:
                    _compile(session, waiting)
                    waiting = []
        _compile(session, waiting)
    _interpret_kernels(session, kernels)
    results = [*map(_outcome, kernels), *_kernels_left_out(session)]
    for line in (*itertools.chain(*map(compiled_lines, results)), *compiled_summary([*results, *references])):
        session.progress.line(line)
    return [*results, *references]


def tell_failures(session: Session, results: Iterable[CompiledKernel]) -> None:
    """Mark operators with a kernel of which nothing compiles; in a strict build, those with any failure."""
    for result in results:
        if not result.is_lost and not (session.options.strict and result.is_faulty):
            continue
        fix = "correct it; `aot-tune compile` shows this without a build"
        if not result.is_lost:
            fix = "correct it, or compile without AOT_TUNE_STRICT: then one candidate that compiles is enough"
        what = "has no candidate that compiles" if result.is_lost else "has candidates that fail"
        what = f"kernel {result.kernel!r} {what} for {result.target}" if result.kernel else "its reference fails"
        error = BuildError(
            f"operator {result.operator!r}: {what}",
            why="\n       ".join(line.strip() for line in compiled_lines(result)[bool(result.kernel) :]),
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


def _list_candidates(session: Session, tried: _Tried, most: int) -> None:
    """List the candidates of a kernel's first configs, each with its place among those of its dtypes."""
    operator, kernel, target = tried.operator, tried.kernel, tried.target
    configs, seen, places = 0, set[str](), Counter[str]()
    try:
        generic = [v.candidate for v in session.of_generic(operator, kernel, target)] if kernel.generic else []
        for config in itertools.islice(kernel.configs(target.facts), 1 if kernel.generic else most):
            configs += 1
            for candidate in generic or candidates_for(operator, kernel, config, target):
                if candidate.id not in seen:
                    seen.add(candidate.id)
                    tried.waiting.append((places[_dtypes(candidate)], candidate))
                    places[_dtypes(candidate)] += 1
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
    if owners:
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
        left_out=tried.left_out,
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
    elif not kept.was_read(target.name):
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
