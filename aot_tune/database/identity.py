"""What a measurement depends on beside its object: the problem, and what the operator promises."""

from __future__ import annotations

from collections.abc import Mapping

from aot_tune.database.reference_source import own_sources, used_elsewhere
from aot_tune.spec import Compute, Drawn, Expr, Operator, Problem
from aot_tune.spec.tensors import DEFAULT_TOLERANCE
from aot_tune.support.digests import canonical_digest

__all__ = ["operator_digest", "problem_key"]


def problem_key(problem: Problem) -> str:
    """Equal for equal problems, whatever the order in which their dims were written."""
    return problem.key


def operator_digest(operator: Operator) -> str:
    """Digest of what decides inputs and checks: arguments, values, epilogue, tolerance, reference.

    Kernels, workload, baselines, documentation and `exact` are not part of it. So a new kernel, problem or way to
    verify does not affect other measurements. The reference counts with everything that it uses from modules of the
    project. A file of values counts by its digest.
    """
    tensors = [
        [t.name, [s.key() for s in t.shape], t.dtype_name, t.output, t.optional, t.cold, _plain(t.values)]
        + ([True] if t.finite else [])
        + (["inout"] if t.inout else [])
        + ([["may_alias", *t.may_alias]] if t.may_alias else [])
        for t in operator.tensors
    ]
    rounds = operator.roundings()
    scalars = [[s.name, s.dtype_name, s.default] + ([s.binds] if s.binds else []) for s in operator.scalars]
    attributes = [[a.name, a.choices] for a in operator.attributes]
    uses = used_elsewhere(operator.reference)
    return canonical_digest(
        {
            "name": operator.name,
            "dims": operator.dims,
            "dtypes": dict(operator.dtypes),
            "tensors": tensors,
            "scalars": scalars,
            "attributes": attributes,
            "epilogue": _plain(operator.epilogue),
            **({"fragments": {n: f.key() for n, f in operator.fragments.items()}} if operator.fragments else {}),
            "tolerance": DEFAULT_TOLERANCE if operator.tolerance is None else _plain(operator.tolerance),
            "reference": own_sources(operator.reference),
            **({"uses": uses} if uses else {}),
            **({"legal": [e.key() for e in operator.legal]} if operator.legal else {}),
            **({"deterministic": True} if operator.deterministic else {}),
            **({"intermediates": rounds} if set(rounds) != {"f32"} else {}),
        }
    )


def _plain(value: object) -> object:
    """Specification objects as plain data."""
    if value is None or isinstance(value, (int, float, str)):
        return value
    if isinstance(value, Expr):
        return value.key()
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in sorted(value.items())}
    if isinstance(value, Drawn):
        return ["Drawn", own_sources(value.function), used_elsewhere(value.function)]
    fields: Mapping[str, object] = {"key": value.key} if isinstance(value, Compute) else vars(value)
    return [type(value).__name__, {k: _plain(v) for k, v in sorted(fields.items())}]
