"""Problems that would take a CPU out of proportion long to measure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from aot_tune.pipeline.known_times import processors_of
from aot_tune.pipeline.session import Session
from aot_tune.spec import Operator, Problem, Target

__all__ = ["left_to_others", "out_of_proportion"]

_A_FLOP, _A_BYTE, _THREADS = 1e-9, 1.4e-7, 2
"""Seconds for a FLOP and for a byte of a problem on two threads: reference in float64, checks, screens and races.

The slowest problems of gemm and of silu_mul took this long in a build without records."""
_LONG, _TIMES = 60.0, 8.0
"""A problem is out of proportion if it takes over a minute, and so many times as long as the others in the mean."""


def left_to_others(session: Session, operator: Operator, target: Target, *, here: bool = True) -> Mapping[str, float]:
    """The expected seconds of problems that this build does not measure, by id. The nearest others decide there.

    `here`: on this machine. If not, a machine of two threads may have left them out.
    """
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
