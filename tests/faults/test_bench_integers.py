"""Sums of small integers must be right to the last bit: what hides in rounding elsewhere is found by them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compiled import CompiledBed

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.compile import native_targets, toolchain_for
from aot_tune.render import Renderer, candidate_for, requirements
from aot_tune.spec import Config, Kernel, Target, problem
from aot_tune.spec.load_operators import bundled_templates, load_operator
from aot_tune.support.errors import AotTuneError

pytestmark = pytest.mark.slow

TEMPLATES = bundled_templates()
NAMES = ("gemm", "batched_gemm")
OPERATORS = {n: load_operator(TEMPLATES / n) for n in NAMES}
KERNELS = [(n, k.name) for n in NAMES for k in OPERATORS[n].kernels if k.backend == "cxx"]

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

SOURCE = r"""
#include <cstddef>
#include <cstdint>
struct DLTensor {
    void* data; int32_t device_type, device_id, ndim; uint8_t code, bits; uint16_t lanes;
    int64_t *shape, *strides; uint64_t byte_offset;
};
#define EXPORT extern "C" __attribute__((visibility("default")))
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
        folder = tmp_path / "templates" / "product"
        folder.mkdir(parents=True)
        (folder / "operator.py").write_text(PRODUCT.replace("EXACT", exact))
        return compiled_bed(folder)

    return make


def test_sums_in_any_order_are_right(make_product: Callable[..., CompiledBed]) -> None:
    bed = make_product()
    for body in (PLAIN, BACKWARDS, SPLIT):
        one = bed.build(SOURCE.replace("BODY", body))
        assert bed.on_integers(one).error == 0, body
        measured = bed.wholly(one)
        assert measured.status == "ok", measured.reason


def test_terms_that_are_left_out_or_added_are_found(make_product: Callable[..., CompiledBed]) -> None:
    bed = make_product()
    for body in (DROPS_LAST, ONE_TOO_MANY, DROPS_TAIL, TWICE, HIDDEN):
        measured = bed.on_integers(bed.build(SOURCE.replace("BODY", body)))
        assert measured.status == "wrong-result", body
        told = r"want -?\d+\.0, tolerance 0; (\d+) of 481 elements are wrong .*small integers\)"
        found = re.search(told, measured.reason)
        assert found, measured.reason
        assert int(found[1]) > 200  # not by luck in one of them
        assert bed.on_integers(bed.build(SOURCE.replace("BODY", PLAIN))).status == "ok"


def test_what_hides_in_rounding_is_found_only_by_integers(
    make_product: Callable[..., CompiledBed], tmp_path: Path
) -> None:
    with_integers = make_product()
    measured = with_integers.wholly(with_integers.build(SOURCE.replace("BODY", HIDDEN)))
    assert measured.status == "wrong-result"
    assert "small integers" in measured.reason
    other = shutil.copytree(with_integers.folder, tmp_path / "without" / "product")
    (other / "operator.py").write_text(PRODUCT.replace("EXACT", "None"))
    without = CompiledBed(with_integers.bench, other)
    measured = without.wholly(without.build(SOURCE.replace("BODY", HIDDEN) + "// another object"))
    assert measured.status == "ok", measured.reason


def least_target(kernel: Kernel) -> tuple[Target, Config]:
    """The lowest level that a kernel has a config for, and the first of these; skips where the CPU lacks the level."""
    for target in toolchain_for("cxx").targets():
        config = next(iter(kernel.configs(target.facts)), None)
        if config is not None:
            if target.name not in {t.name for t in native_targets()}:
                pytest.skip(f"no CPU of level {target.name} here, which {kernel.name} needs")
            return target, config
    raise AssertionError(f"{kernel.name} has no config for any CPU")


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_bundled_products_are_exact_and_a_wrong_depth_is_found(compiled_bed: Any, name: str, kernel: str) -> None:
    bed, op = compiled_bed(TEMPLATES / name), OPERATORS[name]
    target, config = least_target(op.kernel(kernel))
    dtypes = op.dtype_choices(op.kernel(kernel))[0]
    candidate = candidate_for(op, op.kernel(kernel), dict(config), target, dtypes=dtypes)
    rendered = Renderer([TEMPLATES]).render(op, candidate, target)
    requires = requirements(op, candidate)
    flags: Any = toolchain_for("cxx").recipe(target)["flags"]
    machine = [flag for flag in flags if flag.startswith("-m")]
    measured = bed.on_integers(bed.build(rendered.source, rendered.symbol, machine), requires)
    assert (measured.status, measured.error) == ("ok", 0), measured.reason
    axis = "a->shape[1]" if name == "gemm" else "a->shape[2]"
    assert axis in rendered.source
    for wrong in (f"({axis} - 1)", f"({axis} + 1)"):
        one = bed.build(rendered.source.replace(axis, wrong), rendered.symbol, machine)
        measured = bed.on_integers(one, requires)
        if measured.status == "crashed":  # where no row is behind the last one
            assert wrong.endswith("+ 1)")
            assert "whose tensors end where memory that may be read ends" in measured.reason
        else:
            assert measured.status == "wrong-result", (wrong, measured)
            assert "small integers" in measured.reason


def test_a_declaration_that_does_not_hold_is_told(make_product: Callable[..., CompiledBed]) -> None:
    bed = make_product('IntegerSums(1, thinned="b")')  # says that no sum has more than one product
    check = Check(problem=problem(M=2, N=2, K=1_500_000), integers=True)
    with pytest.raises(
        AotTuneError, match=r"'out' has sums of up to \d+, but is exact only up to 16777216; mend the terms"
    ):
        bed.bench.prepare(bed.folder, bed.operator, check)
