"""The resources that a candidate's code uses: registers, spills, shared memory, stack."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["code_resources", "format_resources"]

_KEPT = ("registers", "spill_bytes", "shared", "dynamic_shared", "stack")


def code_resources(found: Mapping[str, int]) -> dict[str, int]:
    """The resources of an object that depend on its code only, not on where and when it was compiled."""
    return {name: found[name] for name in _KEPT if name in found}


def format_resources(found: Mapping[str, int]) -> str:
    """Resources in words. Zeros are left out, except for spills if registers are known."""
    parts = [f"{found['registers']} registers"] if found.get("registers") else []
    if found.get("spill_bytes"):
        parts.append(f"{found['spill_bytes']} bytes spilled")
    elif parts:
        parts.append("no spills")
    dynamic = found.get("dynamic_shared")
    static = found.get("shared", 0) - (dynamic or 0)
    if static or dynamic:
        shared = [f"{static} static"] if static else []
        shared += [f"{dynamic} dynamic"] if dynamic else []
        parts.append(f"{' + '.join(shared)} bytes of shared memory")
    if found.get("stack"):
        parts.append(f"{found['stack']} bytes of stack")
    return ", ".join(parts)
