"""Problems are found by their ids."""

from __future__ import annotations

import pytest
from bundled import OPERATORS

from aot_tune.bench.host.odd_problems import derived_checks
from aot_tune.spec.workload import problem_named
from aot_tune.support.errors import OptionError


def test_every_problem_is_found_by_its_id() -> None:
    for operator in OPERATORS.values():
        problems = [*operator.workload_for("cpu"), *operator.workload_for("cuda")]
        problems += [check.problem for check in derived_checks(operator)]
        assert any(p.strides for p in problems)
        for one in problems:
            found = problem_named(operator, one.id)
            assert found.id == one.id
            assert operator.facts(found) == operator.facts(one)


def test_what_is_no_problem_is_refused() -> None:
    gemm = OPERATORS["gemm"]
    for text in ("M=1 N=2", "?", *(f"M=1 N=2 K={more}" for more in ("3 Q=4", "x", "3 +nothing", "3 c:(1,2)", "3 a@b"))):
        with pytest.raises(OptionError, match=r"not a (problem|part of a problem) of operator 'gemm'"):
            problem_named(gemm, text)
