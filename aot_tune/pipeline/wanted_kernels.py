"""Which kernels and problems a build tries: as its options say, and none that would take out of proportion long."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from aot_tune.compile import families_of, toolchain_for
from aot_tune.pipeline.known_times import processors_of
from aot_tune.pipeline.session import Session
from aot_tune.render import resolved
from aot_tune.spec import Kernel, Operator, Problem, Target

_A_FLOP, _A_BYTE, _THREADS = 1e-9, 1.4e-7, 2
"""Seconds for a FLOP and for a byte of a problem on two threads: reference in float64, checks, screens and races.

The slowest problems of gemm and of silu_mul took this long in a build without records."""
_LONG, _TIMES = 60.0, 8.0
"""A problem is out of proportion if it takes over a minute, and so many times as long as the others in the mean."""


def kernels_for(session: Session, operator: Operator, target: Target) -> list[Kernel]:
    """The kernels, without generic ones, that have a toolchain for a target's family.

    If no generic variant would serve the calls that they refuse, there are none. Triton functions that were not
    read for the target are left out, because their constraints exclude it.
    """
    kernels: list[Kernel] = []
    if not session.answers(operator, target):
        return kernels
    for kernel in operator.kernels:
        chain = toolchain_for(kernel.backend, session.environment)
        if kernel.was_read(target.name) and not kernel.generic and target.family in families_of(chain):
            kernels.append(resolved(kernel, target.name))
    return kernels


def tunes(session: Session, operator: Operator, target: Target) -> bool:
    """Whether there is something to measure: AOT_TUNE_FILTER may name only other kernels."""
    wanted = [k for k in kernels_for(session, operator, target) if is_named(session, operator, k)]
    return bool(wanted) or session.options.filter == "*" or not session.answers(operator, target)


def is_named(session: Session, operator: Operator, kernel: Kernel) -> bool:
    """Whether AOT_TUNE_FILTER lets a kernel be tuned."""
    return fnmatchcase(f"{operator.name}/{kernel.name}", session.options.filter)


def left_to_others(session: Session, operator: Operator, target: Target, *, here: bool = True) -> Mapping[str, float]:
    """Expected seconds, by id, of problems too long to measure: `here`, or else on a machine of two threads."""
    if not target.on_host or session.options.effort in ("thorough", "exhaustive"):
        return {}
    devices = session.devices_for(target) if here else []
    threads = processors_of(devices[0]) if devices else _THREADS
    return out_of_proportion(operator, operator.workload_for(target.family), threads)


def out_of_proportion(operator: Operator, problems: Sequence[Problem], threads: int = _THREADS) -> Mapping[str, float]:
    """The expected seconds of the problems that are out of proportion to the others, by id. Alone, none is."""
    seconds = {p.id: _seconds(operator, p) * _THREADS / max(threads, _THREADS) for p in problems}
    others = [s for s in seconds.values() if s <= _LONG]
    usual = statistics.fmean(others) if others else max(seconds.values(), default=0.0)
    return {p: s for p, s in seconds.items() if s > max(_LONG, _TIMES * usual)}


def _seconds(operator: Operator, problem: Problem) -> float:
    return _A_FLOP * operator.flops.evaluate(operator.facts(problem)) + _A_BYTE * operator.compulsory_bytes(problem)
