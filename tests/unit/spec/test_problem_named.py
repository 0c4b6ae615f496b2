"""Problems are found by their ids."""

from __future__ import annotations

import pytest

from aot_tune.bench.host.odd_problems import derived_checks
from aot_tune.spec import Operator
from aot_tune.spec.load_operators import bundled_templates, load_operators
from aot_tune.spec.problem_named import problem_named
from aot_tune.support.errors import OptionError

OPERATORS = {name: op for name, (_, op) in load_operators([bundled_templates()]).items()}


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_every_problem_is_found_by_its_id(operator: Operator) -> None:
    problems = [*operator.workload_for("cpu"), *operator.workload_for("cuda")]
    problems += [check.problem for check in derived_checks(operator)]
    assert any(p.strides for p in problems)
    for one in problems:
        found = problem_named(operator, one.id)
        assert found.id == one.id
        assert operator.facts(found) == operator.facts(one)


@pytest.mark.parametrize(
    "text",
    [
        "M=1 N=2",
        "M=1 N=2 K=3 Q=4",
        "M=1 N=2 K=x",
        "M=1 N=2 K=3 +nothing",
        "M=1 N=2 K=3 c:(1,2)",
        "M=1 N=2 K=3 a@b",
        "?",
    ],
)
def test_what_is_no_problem_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"not a (problem|part of a problem) of operator 'gemm'"):
        problem_named(OPERATORS["gemm"], text)
