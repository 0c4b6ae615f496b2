"""Right kernels as people write them pass with at most one declared word, and a refusal names that word."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compiled import PRELUDE, CompiledBed

pytestmark = pytest.mark.slow

HEAD = (
    PRELUDE
    + r"""
#include <cmath>
typedef _Float16 half;
template <typename T>
static T& at(const DLTensor* t, int64_t i, int64_t j = 0) {
    return static_cast<T*>(t->data)[i * t->strides[0] + (t->ndim > 1 ? j * t->strides[1] : 0)];
}
EXPORT int candidate_workspace(TENSORS, size_t* size) { *size = 0; return 0; }
EXPORT int candidate_launch(NAMED, void*, size_t, void*) {
    BODY
    return 0;
}
"""
)

OPERATOR = """
from aot_tune.spec import Kernel, Operator, Tensor, dims, off_by, problem, uniform

{reference}

operator = Operator(
    name="{name}",
    dims={dims!r},
    tensors={tensors},
    reference=reference,
    flops=R,
    workload=(problem({problem}),),
    kernels=(Kernel("generic", "{name}/generic.cpp.j2", generic=True),),
    {declared}
)
"""

QUANTISE = {
    "name": "quantise",
    "dims": ("R", "D"),
    "tensors": '(Tensor("x", (R, D), "f16"), Tensor("scale", (R,), values=uniform(0.01, 0.02)), '
    'Tensor("q", (R, D), "i8", output=True))',
    "problem": "R=18, D=536",
    "reference": """
R, D = dims("R D")
def reference(xp, call):
    return {"q": xp.clip(xp.round(call.x / call.scale[:, None]), -127, 127)}
""",
}
QUANTISE_BODY = """
    for (int64_t r = 0; r < q->shape[0]; ++r) {
        float inverse = 1.00002f / at<float>(scale, r);
        for (int64_t d = 0; d < q->shape[1]; ++d)
            at<int8_t>(q, r, d) = std::fmin(std::fmax(ROUND(at<half>(x, r, d) * inverse), -127.f), 127.f);
    }"""

INSIDE = {
    "name": "inside",
    "dims": ("R",),
    "tensors": '(Tensor("p", (R,)FINITE), Tensor("low", (R,)FINITE), Tensor("hit", (R,), "bool", output=True))',
    "problem": "R=500",
    "reference": """
R, = dims("R")
def reference(xp, call):
    return {"hit": (call.p > call.low) & (call.p < call.low + 1.0)}
""",
}
INSIDE_BODY = """
    for (int64_t r = 0; r < hit->shape[0]; ++r)
        at<bool>(hit, r) = !(at<float>(p, r) <= at<float>(low, r) || at<float>(p, r) >= at<float>(low, r) + 1.0f);
    """


Make = Callable[..., tuple[CompiledBed, Any]]


def source(bed: CompiledBed, body: str) -> str:
    """A candidate of an operator that does this."""
    names = [t.name for t in bed.operator.tensors]
    text = HEAD.replace("TENSORS", ", ".join("const DLTensor*" for _ in names))
    return text.replace("NAMED", ", ".join(f"const DLTensor* {n}" for n in names)).replace("BODY", body)


@pytest.fixture
def make(compiled_bed: Any, tmp_path: Path) -> Make:
    def make(kind: dict[str, Any], body: str, declared: str = "", finite: str = "") -> tuple[CompiledBed, Any]:
        folder = tmp_path / str(len(list(tmp_path.iterdir()))) / str(kind["name"])
        folder.mkdir(parents=True)
        tensors = str(kind["tensors"]).replace("FINITE", finite)
        (folder / "operator.py").write_text(OPERATOR.format(**{**kind, "tensors": tensors}, declared=declared))
        bed = compiled_bed(folder)
        return bed, bed.build(source(bed, body))

    return make


def test_a_quantiser_may_be_off_by_one_in_a_few_elements(make: Make) -> None:
    body, declared = QUANTISE_BODY.replace("ROUND", "std::nearbyint"), "tolerance=off_by(1, share=0.01),"
    bed, one = make(QUANTISE, body)
    refused = bed.wholly(one)
    assert refused.status == "wrong-result"
    advice = r"; if a right kernel is as far off, declare tolerance=\{\"q\": (off_by\(1, share=.*?\))\}"
    assert re.search(advice, refused.reason), refused.reason
    bed, one = make(QUANTISE, body, declared)
    assert bed.wholly(one).status == "ok"
    refused = bed.wholly(bed.build(source(bed, QUANTISE_BODY.replace("ROUND", "std::trunc"))))
    assert refused.status == "wrong-result"
    assert re.search(r"elements \(\d\d\.\d+%\) are off, but only 1\.00% may be", refused.reason), refused.reason


def test_coordinates_are_finite_where_they_are_declared_so(make: Make) -> None:
    bed, one = make(INSIDE, INSIDE_BODY)
    refused = bed.wholly(one)
    assert refused.status == "wrong-result"
    assert "NaN and infinities in 'p'; if no call has any there, declare 'p' with finite=True" in refused.reason
    bed, one = make(INSIDE, INSIDE_BODY, finite=", finite=True")
    assert bed.wholly(one).status == "ok"
