"""Kernels that operators declare but that are not compiled, each with the reason."""

from __future__ import annotations

from collections.abc import Iterator

from aot_tune.compile import families_of, toolchain_for
from aot_tune.pipeline.session import Session
from aot_tune.report import CompiledKernel, FailureKind
from aot_tune.spec import Kernel, Operator, Target
from aot_tune.spec.load_operators import load_operators

__all__ = ["kernels_left_out"]


def kernels_left_out(session: Session) -> Iterator[CompiledKernel]:
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
                    found = _of(session, operator, kernel, target)
                    if found is not None:
                        yield found


def _of(session: Session, operator: Operator, kernel: Kernel, target: Target) -> CompiledKernel | None:
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
