"""The facts by which `is_tuned` compares a call. A library treats two problems with equal facts as one."""

from __future__ import annotations

from aot_tune.link.emit.stride_classes import canonical_strides, stride_class
from aot_tune.spec import Operator, Problem

__all__ = ["TunedFacts", "tuned_facts"]

TunedFacts = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Dims, classes of strides (-1 for an absent tensor), choices of attributes and of dtypes."""


def tuned_facts(op: Operator, problem: Problem) -> TunedFacts:
    """The facts of a problem."""
    facts = op.facts(problem)
    classes = []
    for tensor in op.tensors:
        shape = op.shape(problem, tensor)
        here = op.is_present(problem, tensor)
        classes.append(stride_class(canonical_strides(shape, op.strides(problem, tensor))) if here else -1)
    return (
        tuple(problem.dims[d] for d in op.dims),
        tuple(classes),
        tuple(facts[f"attribute.{a.name}"] for a in op.attributes),
        tuple(facts[f"dtype.{v}"] for v in op.dtypes),
    )
