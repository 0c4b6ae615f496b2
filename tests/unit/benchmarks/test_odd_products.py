"""The benchmark of odd products: what it asks for, and what it tells, as far as it needs no GPU."""

from __future__ import annotations

import sys

import pytest
from places import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))

import odd_products

from aot_tune.spec import all_of
from aot_tune.spec.config_guards import may_serve
from aot_tune.spec.load_operators import bundled_templates, load_operator

OPERATORS = {name: load_operator(bundled_templates() / name) for name in ("gemm", "batched_gemm")}


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "tf32"])
@pytest.mark.parametrize("group", odd_products.GROUPS)
def test_every_case_is_a_call_of_its_operator(group: str, dtype: str) -> None:
    found = list(odd_products.cases(group, dtype))
    assert len({one.id for _, one in found}) == len(found) >= 5
    for name, one in found:
        facts = OPERATORS[name].facts(one)
        assert one.dtypes == {"T": "f32" if dtype == "tf32" else dtype}
        assert facts["attribute.math"] == (dtype == "tf32")
        if group in ("unaligned", "strided"):  # nothing but what fills in is for it, and the generic variant
            vendors = OPERATORS[name].kernel("cublaslt")
            assert not all_of(vendors.requires, facts)
            assert may_serve(OPERATORS[name].kernel("cublaslt_any"), facts, worthwhile=True)


def test_ratios_are_of_rounds_in_pairs_and_errors_are_counted() -> None:
    rows = [
        {"problem": "one", "us": {"ours": [1.0, 2.0, 4.0], "torch": [2.0, 4.0, 8.0]}, "kernel": "fast"},
        {"problem": "two", "us": {"ours": [2.0], "torch": [1.0]}},
        {"problem": "three", "error": "it is wrong"},
    ]
    lines = odd_products.told("odd", rows)
    assert "| one | 2.0 | 4.0 | 2.00 | fast |" in lines
    assert "| three | it is wrong | | | |" in lines
    assert "1.00 x torch in the mean of 2, 0.50 the least; 1 errors." in lines
