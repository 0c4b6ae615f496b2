"""The linked library picks, for every problem of the workload, the variant that the report says."""

from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
from environments import Venv

from aot_tune.report.report_records import OperatorReport, Report
from aot_tune.spec import Operator, Problem
from aot_tune.spec.load_operators import load_operators

NAMES = ["gemm", "layer_norm", "rms_norm", "silu_mul", "softmax"]


def tensors(operator: Operator, problem: Problem) -> dict[str, Any]:
    """Arrays with the problem's shapes and strides; their values do not matter."""
    found = {}
    for tensor in operator.tensors:
        if operator.is_present(problem, tensor):
            shape, order = operator.shape(problem, tensor), problem.order.get(tensor.name, range(tensor.rank))
            array = np.empty([shape[axis] for axis in order], np.float32)
            found[tensor.name] = array.transpose(np.argsort(list(order)))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_calls_of_the_workload_get_what_the_report_says(venv: Venv, ops: ModuleType, name: str) -> None:
    package = venv.packages / "aot_tune"
    report = msgspec.json.decode((package / "share/aot_tune/ops/report.json").read_bytes(), type=Report)
    _, operator = load_operators([package / "templates"], [name])[name]
    best: OperatorReport = [o for o in report.operators if o.operator == name][-1]
    picked = {row.problem: row.picked for row in best.problems}
    assert set(picked) == {p.id for p in operator.workload_for("cpu")}
    for problem in operator.workload_for("cpu"):
        told = ops.explain(name, **tensors(operator, problem), **problem.attributes)
        assert told["variant"] == picked[problem.id], problem.id
        assert told["tuned"], problem.id
