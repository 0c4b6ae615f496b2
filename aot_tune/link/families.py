"""What link must know of each family of devices. Families that are not listed get the defaults."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FAMILIES", "FamilyFacts", "family_facts", "family_of"]


@dataclass(frozen=True, kw_only=True)
class FamilyFacts:
    """Facts of a family of devices.

    Args:
        on_host: a call runs on the CPU, and enters no device.
        preloads: its variants have the function `<symbol>_preload`.
        initialisers: functions by which an object may register its kernels when the library is loaded.
        late: prefixes of the names of libraries that are linked statically, or found at a call.
    """

    on_host: bool = False
    preloads: bool = False
    initialisers: int = 0
    late: tuple[str, ...] = ()


FAMILIES = {
    "cpu": FamilyFacts(on_host=True),
    "cuda": FamilyFacts(
        preloads=True,
        initialisers=1,
        late=("libcuda.", "libcudart.", "libcublas", "libnvrtc", "libnvJitLink", "libnvidia-"),
    ),
    "hip": FamilyFacts(preloads=True, late=("libamdhip64.",)),
}


def family_of(target: str) -> str:
    """The family of devices in a target's name: `cpu` of `cpu-x86-64-v4`."""
    return target.split("-", 1)[0]


def family_facts(target: str) -> FamilyFacts:
    """The facts of the family of a target's name."""
    return FAMILIES.get(family_of(target), FamilyFacts())
