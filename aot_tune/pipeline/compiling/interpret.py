"""Runs one config of each Triton kernel on a small check in Triton's interpreter, in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec

from aot_tune.bench.host.odd_problems import derived_checks
from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.protocol.messages import InterpreterAnswer, InterpreterRequest
from aot_tune.compile import Variant
from aot_tune.pipeline.session import Session
from aot_tune.report.compiled_kernels import Interpreted
from aot_tune.spec import Kernel, Operator, Target, all_of
from aot_tune.support.run_program import run
from aot_tune.support.storage import scratch_folder
from aot_tune.triton.read_declarations import ADDRESS_SPACE, child_environment

__all__ = ["Function", "Interpretations", "interpret_kernels", "smallest_check"]

_SECONDS = 120.0
"""Seconds for one kernel, a few of which are imports."""

Function = tuple[Operator, Kernel, Target, Sequence[Variant]]
"""A kernel, its target, and its candidates that compile."""
Interpretations = dict[tuple[str, str, str], Interpreted]
"""By operator, kernel and target."""


class _Job(NamedTuple):
    """A candidate, and the check that it runs on."""

    function: Function
    entry: Variant
    check: Check


def interpret_kernels(session: Session, functions: Sequence[Function]) -> Interpretations:
    """Run one config of each kernel. A function that several targets have runs once.

    A kernel that serves none of its operator's checks counts as not runnable.
    """
    jobs, found = dict[tuple[str, str, str], _Job](), Interpretations()
    first: dict[tuple[str, str], tuple[str, str, str]] = {}
    for function in functions:
        operator, kernel, target, _ = function
        key = operator.name, kernel.name, target.name
        if (operator.name, kernel.name) in first:
            continue
        first[operator.name, kernel.name] = key
        job = _job(function)
        if job is None:
            found[key] = Interpreted(verdict="not runnable", text="it serves none of the operator's derived checks")
        else:
            jobs[key] = job
    with ThreadPoolExecutor(max(1, session.jobs_of("triton").count)) as threads:
        for key, told in zip(jobs, threads.map(lambda job: _run(session, job), jobs.values()), strict=True):
            found[key] = told
            session.progress.count("compile: run in Triton's interpreter", len(found), len(first))
    return found


def _job(function: Function) -> _Job | None:
    """The candidate with the fewest requirements that serves a check.

    Candidates in bf16 come last: the interpreter keeps bf16 elements as integers, and computes with these integers if a
    kernel does not widen them.
    """
    operator, _, _, entries = function
    for entry in sorted(entries, key=lambda e: ("bf16" in e.candidate.dtypes.values(), len(e.requires))):
        check = smallest_check(operator, entry)
        if check is not None:
            return _Job(function, entry, check)
    return None


def smallest_check(operator: Operator, entry: Variant) -> Check | None:
    """The smallest of an operator's derived checks that a candidate serves, without extents of 1 if possible."""
    served = [
        c
        for c in derived_checks(operator, entry.requires, special=False)
        if not c.integers and all_of((*operator.legal, *entry.requires), operator.facts(c.problem))
    ]
    return min(
        served,
        key=lambda c: (1 in c.problem.dims.values(), operator.compulsory_bytes(c.problem), c.problem.id),
        default=None,
    )


def _run(session: Session, job: _Job) -> Interpreted:
    operator, kernel, target, _ = job.function
    request = InterpreterRequest(
        folder=str(Path(operator.folder).resolve()),
        kernel=kernel.name,
        target=target.name,
        config=dict(job.entry.candidate.config),
        check=job.check,
        inspections=session.plan.inspections,
        roots=[str(root) for root in session.renderer.roots],
        seed=session.policy_of(target.family).seed,
    )
    with scratch_folder() as name:
        answer = _ask(request, session, Path(name))
    where = job.check.problem.id, job.entry.candidate.label
    return Interpreted(verdict=answer.verdict, problem=where[0], candidate=where[1], text=answer.text)


def _ask(request: InterpreterRequest, session: Session, scratch: Path) -> InterpreterAnswer:
    asked, answered = scratch / "request.json", scratch / "answer.json"
    asked.write_bytes(msgspec.json.encode(request))
    argv = [sys.executable, "-m", "aot_tune.bench.worker.interpreted_call", str(asked), str(answered)]
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
