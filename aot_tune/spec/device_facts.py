"""Facts that only a launch knows. A target is an architecture, and its devices differ in multiprocessors."""

from __future__ import annotations

from collections.abc import Iterable

from aot_tune.support.errors import SpecError

__all__ = ["ELSEWHERE", "WHY", "refuse_device_facts"]

WHY = "a target is an architecture, and its devices differ in that: only a launch knows it"
ELSEWHERE = (
    'use device("multiprocessors") in a grid, a Buffer or an ordinary argument of a function of Triton or CUDA C++, '
    "and count_multiprocessors of common/launch.cuh.j2 in a template"
)


def refuse_device_facts(facts: Iterable[str], place: str) -> None:
    """Raise SpecError for a fact that only a device has. `place` begins the message."""
    for fact in sorted(facts):
        if fact.startswith("device."):
            raise SpecError(f'{place} uses device("{fact.removeprefix("device.")}")', why=WHY, fix=ELSEWHERE)
