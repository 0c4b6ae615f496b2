"""A candidate: one config of a kernel, for a target, with the dims that it is specialised on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property

import msgspec

from aot_tune.spec import ConfigValue, Expr, Kernel, Operator, Problem, Target, dim, dtype_index

__all__ = ["Candidate", "candidate_for", "canonical_digest", "requirements"]


def canonical_digest(value: object) -> str:
    """SHA-256 of the canonical JSON of plain data: independent of the order of keys, the process and the machine."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()


class Candidate(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Identity of what is rendered and compiled; `pins` are dims that are constants in it, `dtypes` its choices."""

    operator: str
    kernel: str
    backend: str
    target: str
    config: dict[str, ConfigValue] = {}
    pins: dict[str, int] = {}
    generic: bool = False
    dtypes: dict[str, str] = {}

    @cached_property
    def id(self) -> str:
        """16 hex digits, stable across processes and machines."""
        return canonical_digest(self)[:16]

    @property
    def label(self) -> str:
        """Kernel and config for people: `packed MR=6 NR=16`."""
        values = [f"{k}={int(v) if isinstance(v, bool) else v}" for k, v in self.config.items()]
        pins = [f"{d}:={n}" for d, n in self.pins.items()]
        return " ".join([self.kernel, *self.dtypes.values(), *values, *pins])


def candidate_for(
    operator: Operator,
    kernel: Kernel,
    config: dict[str, ConfigValue],
    target: Target,
    problem: Problem | None = None,
    dtypes: Mapping[str, str] | None = None,
) -> Candidate:
    """The candidate of a config for a target; where the config pins dims, they are those of `problem`.

    `dtypes` are values of the operator's dtype variables; the first that the kernel serves where they are not given.
    """
    pins: dict[str, int] = {}
    for parameter, pinned in kernel.pins.items():
        if config.get(parameter) and problem is not None:
            pins |= {name: problem.dims[name] for name in pinned}
    return Candidate(
        operator=operator.name,
        kernel=kernel.name,
        backend=kernel.backend,
        target=target.name,
        config=config,
        pins=dict(sorted(pins.items())),
        generic=kernel.generic,
        dtypes=dict(dtypes) if dtypes is not None else operator.dtype_choices(kernel)[0],
    )


def requirements(operator: Operator, candidate: Candidate) -> tuple[Expr, ...]:
    """The guards of a candidate: its dtypes, its kernel's, and that pinned dims have their values."""
    dtypes = tuple(dtype_index(v) == operator.dtypes[v].index(d) for v, d in candidate.dtypes.items())
    pins = tuple(dim(name) == extent for name, extent in candidate.pins.items())
    return (*dtypes, *operator.kernel(candidate.kernel).requires, *pins)
