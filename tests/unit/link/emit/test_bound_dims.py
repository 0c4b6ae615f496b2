"""Dims that an output's shape, an integer or an extent to be solved tells, and dtypes that an output alone has."""

from __future__ import annotations

import dataclasses
from types import ModuleType

import linked
import numpy as np
import pytest

from aot_tune.bench.host.odd_problems import derived_checks
from aot_tune.link import LibrarySpec, OperatorTable
from aot_tune.spec import Kernel, Operator, Scalar, Tensor, ceildiv, dims, problem
from aot_tune.support.errors import SpecError

M, N, K, B = dims("M N K B")

TAIL = """
#define PUBLIC extern "C" __attribute__((visibility("default"))) int32_t
PUBLIC SYMBOL_workspace(ARGS, size_t* size) { return *size = 0, 0; }
PUBLIC SYMBOL_launch(ARGS, void*, size_t, void*) {
  int64_t count = 1;
  for (int i = 0; i < out->ndim; ++i) count *= out->shape[i];
  for (int64_t i = 0; i < count; ++i) {
    if (out->dtype.bits == 32) static_cast<float*>(out->data)[i] = VALUE;
    if (out->dtype.bits == 64) static_cast<double*>(out->data)[i] = VALUE;
  }
  return 0;
}
"""


def _reference(_xp: object, _call: object) -> dict[str, object]:
    raise AssertionError("link computes nothing")


def _operator(name: str, **fields: object) -> Operator:
    shape: dict[str, int] = dict.fromkeys(fields["dims"], 4)  # type: ignore[call-overload]
    return Operator(
        name=name,
        reference=_reference,
        flops=1,
        workload=(problem(**shape),),
        kernels=(Kernel("plain", f"{name}/plain.cpp.j2", generic=True),),
        **fields,  # type: ignore[arg-type]
    )


OPERATORS = {
    "const DLTensor *x, const DLTensor *out, int64_t top_k": _operator(
        "top",
        dims=("M", "N", "K"),
        tensors=(Tensor("x", (M, N)), Tensor("out", (M, K), output=True)),
        scalars=(Scalar("top_k", "i64", binds="K"),),
        legal=(K <= N,),
    ),
    "const DLTensor *x, const DLTensor *scales, const DLTensor *out": _operator(
        "halves",
        dims=("M", "N"),
        tensors=(
            Tensor("x", (M, 2 * N)),
            Tensor("scales", (M, ceildiv(N, 128) + 1)),
            Tensor("out", (M, N), output=True),
        ),
    ),
    "const DLTensor *x, const DLTensor *out": _operator(
        "resize",
        dims=("M", "N"),
        tensors=(Tensor("x", (M,)), Tensor("out", (N,), output=True)),
    ),
    "const DLTensor *out, int32_t n": _operator(
        "fill",
        dims=("N",),
        tensors=(Tensor("out", (N + 1,), output=True),),
        scalars=(Scalar("n", "i32", binds="N"),),
    ),
    "const DLTensor *x, const DLTensor *out, const DLTensor *other": _operator(
        "cast",
        dims=("N",),
        tensors=(Tensor("x", (N,)), Tensor("out", (N,), "T", output=True), Tensor("other", (N,), "T", output=True)),
        dtypes={"T": ("f32", "f64")},
    ),
    "const DLTensor *x, const DLTensor *out, int64_t N": _operator(
        "both",
        dims=("N",),
        tensors=(Tensor("x", (N,)), Tensor("out", (N,), output=True)),
        scalars=(Scalar("N", "i64", binds="N"),),
    ),
    "const DLTensor *x, const DLTensor *out, uint8_t few, uint32_t many, int16_t some": _operator(
        "kinds",
        dims=("M", "N", "K", "B"),
        tensors=(Tensor("x", (M,)), Tensor("out", (N, K, B), output=True)),
        scalars=(
            Scalar("few", "u8", binds="N"),
            Scalar("many", "u32", binds="K"),
            Scalar("some", "i16", default=2, binds="B"),
        ),
    ),
    "const DLTensor *x, const DLTensor *w, const DLTensor *out": _operator(
        "blocks",
        dims=("M", "K", "B"),
        tensors=(Tensor("x", (M, K)), Tensor("w", (M * (B + 1) - K,)), Tensor("out", (M, B), output=True)),
    ),
}
VALUES = {"top": "top_k", "fill": "n", "both": "N"}


@pytest.fixture(scope="module")
def ops(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """A library whose operators fill `out` with their integer, or with 7."""
    folder = tmp_path_factory.mktemp("bound")
    tables = []
    for arguments, operator in OPERATORS.items():
        head = f"#define ARGS {arguments}\n#define VALUE {VALUES.get(operator.name, '7')}\n"
        name = f"plain_{operator.name}"
        choices = [{}] if not operator.dtypes else [{"T": t} for t in operator.dtypes["T"]]
        variants = []
        for dtypes in choices:
            made = linked.variant(
                folder, linked.PRELUDE + head + TAIL, "_".join([name, *dtypes.values()]), generic=True
            )
            variants.append(dataclasses.replace(made, dtypes=dtypes))
        tables.append(OperatorTable(operator=operator, variants=tuple(variants)))
    return linked.load_module(linked.link_library(LibrarySpec(output="bound", operators=tuple(tables)), folder).module)


def zeros(*shape: int, dtype: str = "f4") -> np.ndarray:
    return np.zeros(shape, dtype)


def test_an_integer_tells_a_dim(ops: ModuleType) -> None:
    out = ops.top(zeros(2, 5), top_k=3)
    assert out.tolist() == [[3] * 3] * 2
    assert ops.top(zeros(2, 5), top_k=0).shape == (2, 0)
    given = zeros(2, 4)
    assert ops.top(zeros(2, 5), top_k=4, out=given) is given


def test_repeated_calls_do_not_take_another_integer_for_the_same(ops: ModuleType) -> None:
    x, out = zeros(2, 5), zeros(2, 3)
    for _ in range(5):
        ops.top(x, top_k=3, out=out)
    with pytest.raises(ops.ArgumentValueError, match=r"'out': axis 1 has extent 3, wanted K = 2 as in \[M, K\]"):
        ops.top(x, top_k=2, out=out)


def test_an_integer_that_is_no_extent(ops: ModuleType) -> None:
    with pytest.raises(ops.ArgumentValueError, match=r"top: 'top_k' is -1, wanted an extent of the dim K: 0 or more"):
        ops.top(zeros(2, 5), top_k=-1)
    with pytest.raises(ops.ArgumentValueError, match=r"\(K <= N\) must hold"):
        ops.top(zeros(2, 5), top_k=6)
    with pytest.raises(TypeError, match=r"top\(\) needs 'top_k'; it is called as top\(x, \*, top_k, out=None"):
        ops.top(zeros(2, 5))


def test_an_integer_and_a_tensor_must_agree(ops: ModuleType) -> None:
    assert ops.both(zeros(3), N=3).tolist() == [3] * 3
    with pytest.raises(ops.ArgumentValueError, match=r"both: 'N' is 4, but the dim N is 3 in the tensors; wanted one"):
        ops.both(zeros(3), N=4)


def test_an_extent_is_solved_for_a_dim(ops: ModuleType) -> None:
    assert ops.halves(zeros(2, 260), zeros(2, 3)).shape == (2, 130)
    with pytest.raises(ops.ArgumentValueError, match=r"'x': axis 1 has extent 7, which is \(2 \* N\) for no N, as in"):
        ops.halves(zeros(2, 7), zeros(2, 2))
    with pytest.raises(ops.ArgumentValueError, match=r"'scales': axis 1 has extent 2, wanted .* = 3"):
        ops.halves(zeros(2, 260), zeros(2, 2))


def test_an_extent_is_solved_with_other_dims(ops: ModuleType) -> None:
    """M * (B + 1) - K, with M = 4 and K = 2."""
    assert ops.blocks(zeros(4, 2), zeros(4 * 6 - 2)).shape == (4, 5)
    for length in (4 * 6 - 1, 1):
        with pytest.raises(ops.ArgumentValueError, match=rf"'w': axis 0 has extent {length}, which is .* for no B"):
            ops.blocks(zeros(4, 2), zeros(length))
    with pytest.raises(ops.ArgumentValueError, match="for no B"):  # where M is 0
        ops.blocks(zeros(0, 2), zeros(3))


def test_an_output_that_tells_a_dim_is_to_be_passed(ops: ModuleType) -> None:
    out = zeros(9)
    assert ops.resize(zeros(3), out=out).tolist() == [7] * 9
    for given in ({}, {"out": None}):
        with pytest.raises(ops.ArgumentTypeError, match=r"resize\(\) needs the output 'out': its shape, dtype"):
            ops.resize(zeros(3), **given)
    assert ops.resize.__text_signature__ == "($module, x, *, out, stream=None, workspace=None)"
    assert "out: f32 [N], to be passed; it tells N." in ops.resize.__doc__


def test_without_inputs_an_output_is_to_be_passed(ops: ModuleType) -> None:
    assert ops.fill(n=2, out=zeros(3)).tolist() == [2] * 3
    assert ops.fill(n=0, out=zeros(1)).tolist() == [0]
    with pytest.raises(ops.ArgumentTypeError, match="needs the output 'out'"):
        ops.fill(n=2)


def test_an_output_tells_a_dtype(ops: ModuleType) -> None:
    for dtype in ("f4", "f8"):
        out, other = ops.cast(zeros(3), out=zeros(3, dtype=dtype))
        assert (out.dtype, other.dtype) == (dtype, dtype)
        assert out.tolist() == [7] * 3
    with pytest.raises(ops.ArgumentTypeError, match="needs the output 'out'"):
        ops.cast(zeros(3), other=zeros(3))
    with pytest.raises(ops.ArgumentTypeError, match=r"'other' has dtype f64, but 'out' has f32"):
        ops.cast(zeros(3), out=zeros(3), other=zeros(3, dtype="f8"))
    with pytest.raises(ops.ArgumentTypeError, match=r"'out' has dtype i32, wanted f32 or f64"):
        ops.cast(zeros(3), out=zeros(3, dtype="i4"))


def test_integers_of_other_widths(ops: ModuleType) -> None:
    assert ops.kinds(zeros(1), few=200, many=3).shape == (200, 3, 2)
    told = {"M": 1, "N": 200, "K": 70000, "B": 2}
    assert ops.explain("kinds", M=1, N=200, K=70000, B=2)["dims"] == told
    assert ops.explain("kinds", M=1, few=200, many=70000, some=2)["dims"] == told
    with pytest.raises(ops.ArgumentValueError, match="'out': axis 0 has extent 300, wanted N = 44"):
        ops.explain("kinds", M=1, N=300, K=1, B=1)
    with pytest.raises(ops.ArgumentValueError, match="'some' is -1, wanted an extent of the dim B"):
        ops.kinds(zeros(1), few=1, many=1, some=-1)


def test_problems_are_of_dims_that_their_integers_hold() -> None:
    operator = next(o for o in OPERATORS.values() if o.name == "kinds")
    checks = derived_checks(operator)
    assert checks
    assert max(c.problem.dims["N"] for c in checks) <= 255 < max(c.problem.dims["K"] for c in checks)
    with pytest.raises(SpecError, match=r"\(N <= 255\) does not hold on problem"):
        dataclasses.replace(operator, workload=(problem(M=1, N=256, K=1, B=1),))


def test_problems_are_stated_by_their_dims(ops: ModuleType) -> None:
    told = ops.explain("top", M=2, N=5, K=3)
    assert told["dims"] == {"M": 2, "N": 5, "K": 3}
    assert ops.explain("top", M=2, N=5, top_k=3)["dims"] == told["dims"]
    assert ops.explain("top", zeros(2, 5), top_k=3)["dims"] == told["dims"]
    assert ops.explain("halves", M=2, N=130)["dims"] == {"M": 2, "N": 130}
    assert ops.explain("cast", N=3, T="f64")["dtypes"] == {"T": "f64"}
    assert ops.is_tuned("resize", M=2, N=5) is False
    for ask in (ops.explain, ops.is_tuned):
        with pytest.raises(ops.ArgumentTypeError, match="needs the output 'out'"):
            ask("resize", zeros(3))


def test_a_dim_of_0_that_no_input_tells_is_explained(ops: ModuleType) -> None:
    assert "or a dim is 0 (N)" in ops.explain("fill", out=zeros(1), n=0)["why"]
