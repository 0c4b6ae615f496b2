"""Sums of small integers must be right to the last bit, and scalars must be used: what hides elsewhere is found."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compiled import PRELUDE, CompiledBed

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.compile import target_by_name
from aot_tune.render import Renderer, candidate_for, requirements
from aot_tune.spec import Expr, Operator, problem
from aot_tune.spec.load_operators import bundled_templates
from aot_tune.support.errors import AotTuneError

pytestmark = pytest.mark.slow

TEMPLATES = bundled_templates()

PRODUCT = '''
"""out = a @ b + bias, for candidates that are wrong in ways that are hard to see."""
from aot_tune.spec import IntegerSums, Kernel, Operator, Tensor, dims, problem

M, N, K = dims("M N K")


def reference(xp, call):
    return {"out": xp.matmul(call.a, call.b) + call.bias}


operator = Operator(
    name="product",
    dims=("M", "N", "K"),
    tensors=(Tensor("a", (M, K)), Tensor("b", (K, N)), Tensor("bias", (N,)), Tensor("out", (M, N), output=True)),
    reference=reference,
    exact=EXACT,
    flops=2 * M * N * K,
    workload=(problem(M=8, N=16, K=512),),
    kernels=(Kernel("generic", "product/generic.cpp.j2", generic=True),),
)
'''
DECLARED = 'IntegerSums(K, thinned="b")'

SOURCE = (
    PRELUDE
    + r"""
static float& at(const DLTensor* t, int64_t i, int64_t j = 0) {
    return static_cast<float*>(t->data)[i * t->strides[0] + (t->ndim > 1 ? j * t->strides[1] : 0)];
}
EXPORT int candidate_workspace(const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, size_t* size) {
    *size = 0; return 0;
}
EXPORT int candidate_launch(const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* out, void*,
                            size_t, void*) {
    const int64_t depth = a->shape[1];
    for (int64_t i = 0; i < out->shape[0]; ++i)
        for (int64_t j = 0; j < out->shape[1]; ++j) {
            auto term = [&](int64_t k) { return at(a, i, k) * at(b, k, j); };
            float sum = 0;
            BODY
            at(out, i, j) = sum + at(bias, j);
        }
    return 0;
}
"""
)
PLAIN = "for (int64_t k = 0; k < depth; ++k) sum += term(k);"
BACKWARDS = "for (int64_t k = depth; k-- > 0;) sum += term(k);"
SPLIT = """
    float parts[4] = {};
    for (int64_t k = 0; k < depth; ++k) parts[k % 4] += term(k);
    sum = (parts[3] + parts[1]) + (parts[2] + parts[0]);"""
DROPS_LAST = PLAIN.replace("k < depth", "k < depth - 1")
ONE_TOO_MANY = PLAIN.replace("k < depth", "k <= depth")
DROPS_TAIL = PLAIN.replace("k < depth", "k < depth / 16 * 16")
TWICE = PLAIN + "sum += depth > 700 ? term(512) : 0;"
HIDDEN = PLAIN + "if (depth > 600) sum -= 1e-5f * term(depth - 1);"  # less than what rounding a long sum may cost


@pytest.fixture
def make_product(compiled_bed: Any, tmp_path: Path) -> Callable[..., CompiledBed]:
    def make(exact: str = DECLARED) -> CompiledBed:
        folder = tmp_path / str(len(list(tmp_path.iterdir()))) / "product"
        folder.mkdir(parents=True)
        (folder / "operator.py").write_text(PRODUCT.replace("EXACT", exact))
        return compiled_bed(folder)

    return make


def test_sums_in_any_order_are_right_and_terms_that_are_left_out_or_added_are_found(
    make_product: Callable[..., CompiledBed],
) -> None:
    bed = make_product()
    for body in (PLAIN, BACKWARDS, SPLIT):
        assert bed.on_integers(bed.build(SOURCE.replace("BODY", body))).error == 0, body
    measured = bed.wholly(bed.build(SOURCE.replace("BODY", SPLIT)))
    assert measured.status == "ok", measured.reason
    for body in (DROPS_LAST, ONE_TOO_MANY, DROPS_TAIL, TWICE, HIDDEN):
        measured = bed.on_integers(bed.build(SOURCE.replace("BODY", body)))
        assert measured.status == "wrong-result", body
        told = r"want -?\d+\.0, tolerance 0; (\d+) of 481 elements are wrong .*small integers\)"
        found = re.search(told, measured.reason)
        assert found, measured.reason
        assert int(found[1]) > 200  # not by luck in one of them
    assert bed.on_integers(bed.build(SOURCE.replace("BODY", PLAIN))).status == "ok"


def test_what_hides_in_rounding_is_found_only_by_integers(make_product: Callable[..., CompiledBed]) -> None:
    for exact, status in ((DECLARED, "wrong-result"), ("None", "ok")):
        bed = make_product(exact)
        measured = bed.wholly(bed.build(SOURCE.replace("BODY", HIDDEN)))
        assert measured.status == status, measured.reason
        assert ("small integers" in measured.reason) == (status != "ok")


def rendered(operator: Operator) -> tuple[Any, tuple[Expr, ...]]:
    """The generic kernel for the lowest level of CPUs, and what it requires."""
    target = target_by_name("cpu-x86-64")
    candidate = candidate_for(operator, operator.kernel("generic"), {}, target)
    return Renderer([TEMPLATES]).render(operator, candidate, target), requirements(operator, candidate)


@pytest.mark.parametrize(("name", "axis"), [("gemm", 1), ("batched_gemm", 2)])
def test_bundled_products_are_exact_and_a_wrong_depth_is_found(compiled_bed: Any, name: str, axis: int) -> None:
    bed = compiled_bed(TEMPLATES / name)
    one, requires = rendered(bed.operator)
    measured = bed.on_integers(bed.build(one.source, one.symbol), requires)
    assert (measured.status, measured.error) == ("ok", 0), measured.reason
    depth = f"a->shape[{axis}]"
    assert depth in one.source
    for wrong in (f"({depth} - 1)", f"({depth} + 1)"):
        measured = bed.on_integers(bed.build(one.source.replace(depth, wrong), one.symbol), requires)
        if measured.status == "crashed":  # where no row is behind the last one
            assert wrong.endswith("+ 1)")
            assert "whose tensors end where memory that may be read ends" in measured.reason
        else:
            assert measured.status == "wrong-result", (wrong, measured)
            assert "small integers" in measured.reason


LATCHED = """[&] {
  static double kept; static int64_t rows, columns;
  if (rows != x->shape[0] || columns != x->shape[1]) kept = static_cast<double>(eps);
  rows = x->shape[0]; columns = x->shape[1];
  return kept;
}()"""
"""The first epsilon of calls of a shape."""


def test_an_epsilon_that_is_left_out_or_remembered_is_found(compiled_bed: Any) -> None:
    """Also where the default makes no difference. FAULTS.md, row 76, has what is remembered."""
    bed = compiled_bed(TEMPLATES / "layer_norm")
    one, requires = rendered(bed.operator)
    assert bed.wholly(bed.build(one.source, one.symbol), requires).status == "ok"
    passed = "static_cast<double>(eps)"
    assert passed in one.source
    measured = bed.wholly(bed.build(one.source.replace(passed, "1e-5"), one.symbol), requires)
    assert measured.status == "wrong-result"
    assert ", eps 0.25" in measured.reason
    assert bed.wholly(bed.build(one.source.replace(passed, LATCHED), one.symbol), requires).status == "wrong-result"


SCALED = """
from aot_tune.spec import Kernel, Operator, Scalar, Tensor, dims, problem

R, = dims("R")


def reference(xp, call):
    return {"y": call.x * call.scale + 1.0 / call.width}


operator = Operator(
    name="scaled",
    dims=("R",),
    tensors=(Tensor("x", (R,)), Tensor("y", (R,), output=True)),
    scalars=(Scalar("scale", default=0.5, other=2.0), Scalar("width", default=4.0)),
    reference=reference,
    flops=R,
    workload=(problem(R=64),),
    kernels=(Kernel("generic", "scaled/generic.cpp.j2", generic=True),),
)
"""
SCALES = (
    ("scale", "ok", ""),
    ("static_cast<float>(static_cast<_Float16>(scale))", "wrong-result", r"scale 2\.0188, width 4\.0376\)$"),
    ("scale < 0 ? -scale : scale", "wrong-result", r"scale -2\.0188; if no call passes that, declare .* with least="),
    ("scale == 0 ? 1 : scale", "wrong-result", r"scale 0; if no call"),
    ("scale > 1000 ? 1000 : scale", "wrong-result", r"scale 2018\.8\)$"),
)
"""What a candidate takes for its scalar, and what must be said of it."""


def test_row_78_scalars_that_16_bits_do_not_hold_negative_ones_0_and_large_ones(
    compiled_bed: Any, tmp_path: Path
) -> None:
    """Where the reference has no result, as for a width of 0, any will do."""
    (tmp_path / "scaled").mkdir()
    (tmp_path / "scaled" / "operator.py").write_text(SCALED)
    bed = compiled_bed(tmp_path / "scaled")
    for taken, status, told in SCALES:
        source = f"""{PRELUDE}
EXPORT int candidate_workspace(const DLTensor*, const DLTensor*, float, float, size_t* size) {{ *size = 0; return 0; }}
EXPORT int candidate_launch(const DLTensor* x, const DLTensor* y, float scale, float width, void*, size_t, void*) {{
    for (int64_t i = 0; i < x->shape[0]; ++i)
        static_cast<float*>(y->data)[i * y->strides[0]] =
            static_cast<float*>(x->data)[i * x->strides[0]] * ({taken}) + 1 / width;
    return 0;
}}"""
        measured = bed.wholly(bed.build(source))
        assert (taken, measured.status) == (taken, status), measured.reason
        assert re.search(told, measured.reason), measured.reason


def test_a_declaration_that_does_not_hold_is_told(make_product: Callable[..., CompiledBed]) -> None:
    bed = make_product('IntegerSums(1, thinned="b")')  # says that no sum has more than one product
    check = Check(problem=problem(M=2, N=2, K=1_500_000), integers=True)
    with pytest.raises(
        AotTuneError, match=r"'out' has sums of up to \d+, but is exact only up to 16777216; correct the terms"
    ):
        bed.bench.prepare(bed.operator, check)
