"""From evidence to files: what a tree is told of calls that no problem is for, and what counts as linking."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from aot_tune.link import SeenCalls
from aot_tune.pipeline.shipping.finish import seen_calls, without_epilogue
from aot_tune.pipeline.surveyed_times import SurveyedTimes
from aot_tune.spec import problem
from aot_tune.spec.load_operators import bundled_templates, load_operator

TEMPLATES = bundled_templates()


def test_products_are_known_by_the_nearest_with_an_epilogue() -> None:
    gemm = load_operator(TEMPLATES / "gemm")
    rows = {"order": {"b": (1, 0)}, "dtypes": {"T": "f16"}}
    tf32 = {"math": "tf32"}
    residual = problem(M=1, N=8, K=8, present=["residual"], **rows)
    both = problem(M=1, N=8, K=8, present=["bias", "residual"], **rows)
    gelu = problem(M=2, N=8, K=8, present=["bias"], attributes={"activation": "gelu"} | tf32)
    known = [problem(M=3, N=8, K=8), problem(M=3, N=8, K=8, present=["bias"])]
    assert without_epilogue(gemm, [both, residual, gelu, *known]) == [
        (problem(M=1, N=8, K=8, **rows), residual),
        (problem(M=2, N=8, K=8, attributes=tf32), gelu),  # the arithmetic is no part of the epilogue
    ]


def test_what_times_are_known_of_is_told_by_kinds() -> None:
    """That is, by dtypes and by the attributes that are a mode; shapes of a survey count where dispatch is by it."""
    gemm = load_operator(TEMPLATES / "gemm")
    tuned = [problem(M=4, N=8, K=64), problem(M=2, N=16, K=64, attributes={"activation": "gelu"}, present=["bias"])]
    tuned += [problem(M=3, N=8, K=8, dtypes={"T": "bf16"}), problem(M=3, N=8, K=9, attributes={"math": "tf32"})]
    shapes = {p.id: p for p in (problem(M=100, N=1, K=64), problem(M=5, N=8, K=1, dtypes={"T": "bf16"}))}
    evidence = cast("Any", SimpleNamespace(operator=gemm, surveyed=SurveyedTimes(problems=shapes)))
    f32, tf32, bf16 = ((("dtype.T", t), ("attribute.math", m)) for t, m in ((0, 0), (0, 1), (1, 0)))
    assert seen_calls(evidence, tuned, surveyed=False) == (
        SeenCalls(facts=f32, dims={"M": (2, 4), "N": (8, 16), "K": (64, 64)}),
        SeenCalls(facts=tf32, dims={"M": (3, 3), "N": (8, 8), "K": (9, 9)}),
        SeenCalls(facts=bf16, dims={"M": (3, 3), "N": (8, 8), "K": (8, 8)}),
    )
    assert seen_calls(evidence, tuned, surveyed=True) == (
        SeenCalls(facts=f32, dims={"M": (2, 100), "N": (1, 16), "K": (64, 64)}),
        SeenCalls(facts=tf32, dims={"M": (3, 3), "N": (8, 8), "K": (9, 9)}),
        SeenCalls(facts=bf16, dims={"M": (3, 5), "N": (8, 8), "K": (1, 8)}),
    )
