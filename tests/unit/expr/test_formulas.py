"""Formulas: what they are written with, what they are refused for, and what they are recognised by."""

import dataclasses
import math
import pickle
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aot_tune.bench.worker.rounded_arrays import RoundedArray
from aot_tune.database import operator_digest
from aot_tune.spec import (
    Activate,
    AddTensor,
    Attribute,
    Compute,
    Epilogue,
    Formula,
    Fragment,
    Kernel,
    Operator,
    Scalar,
    Tensor,
    dims,
    present,
    problem,
    stride,
)
from aot_tune.spec import elementwise as el
from aot_tune.spec.fragment_programs import bind_fragments, program_of
from aot_tune.support.errors import SpecError

M, N = dims("M N")
x = el.value()


def make(epilogue: Any = None, **fragments: Any) -> Operator:
    if isinstance(epilogue, Formula):
        epilogue = Epilogue("out", expression=epilogue)
    return Operator(
        name="made",
        dims=("M", "N"),
        tensors=(
            Tensor("x", (M, N), "T"),
            Tensor("bias", (N,), "T", optional=True),
            Tensor("counts", (M,), "i64"),
            Tensor("odd", (M,), "U"),
            Tensor("out", (M, N), "T", output=True),
        ),
        dtypes={"T": ("f32", "bf16"), "U": ("f32", "i32")},
        scalars=(Scalar("alpha", default=2.0), Scalar("shift", "i32", default=3)),
        attributes=(Attribute("activation", ("none", "relu", "gelu", "gelu_tanh", "silu")),),
        epilogue=epilogue
        if epilogue is None or isinstance(epilogue, Epilogue)
        else Epilogue("out", expression=epilogue),
        fragments=fragments,
        reference=lambda xp, call: {"out": call.epilogue(call.x)},
        flops=M * N,
        workload=(problem(M=3, N=5),),
        kernels=(Kernel("generic", "made/generic.cpp.j2", generic=True),),
    )


def call_of(op: Operator, xp: Any = np, convert: Any = np.asarray, **other: Any) -> SimpleNamespace:
    """Arguments of a call of 3 x 5, with the operator's formulas."""
    values = {"x": np.linspace(-3, 3, 15, dtype=np.float32).reshape(3, 5), "counts": np.array([7, 0, -2])}
    values |= {"bias": np.arange(5, dtype=np.float32)}
    arrays = {n: convert(a) for n, a in values.items()}
    given = {**arrays, "alpha": 2.0, "shift": 3, "activation": "none", **other}
    call = SimpleNamespace(**given)
    bind_fragments(op, op.workload[0], xp, call)
    return call


REFUSED = [
    (x + el.element("bais", 1), "there is no input 'bais'", "did you mean 'bias'"),
    (x + el.element("out", 0, 1), "there is no input 'out'", ""),
    (x + el.element("bias", 0, 1), r"element\(\"bias\", 0, 1\): 'bias' has 1 axes", "a place for each axis"),
    (x + el.element("bias", 2), "there is no index '2'", "axes of the output are 0 to 1"),
    (x + el.element("bias", 0), "'bias' has the extent N where the index 0 has M", "take another axis"),
    (x + el.element("bias", x), r"element\(\"bias\", value\(\)\): value\(\) is a float, wanted is an integer", "cast"),
    (x + el.element("odd", 0), "tensor 'odd' is of float and integer, by its dtype variable", "dtypes of one kind"),
    (x * el.scalar("alhpa"), "there is no scalar 'alhpa'", "did you mean 'alpha'"),
    (x * el.attribute("act"), "there is no attribute 'act'", "activation"),
    (el.where(el.choice("activation", "rule"), x, 0), "no choice of attribute 'activation' 'rule'", "relu"),
    (x + el.dim("K"), "there is no dim 'K'", ""),
    (x + el.index("q"), "there is no index 'q'", "axes of the output are 0 to 1"),
    (el.where(x, x, 0.0), r"where\(.*: value\(\) is a float, wanted is a boolean", "where"),
    (x + (x > 0), r"\(value\(\) > 0\) is a boolean, wanted is a float", "where"),
    (x * (el.index(0) / 2), r"\(index\(0\) / 2\): both are integers", "//"),
    (x // 2, r"value\(\) is a float, wanted is an integer", "cast"),
    (el.exp(x > 0) + x, "is a boolean, wanted is a float", "where"),
    (~x, r"not\(value\(\)\): value\(\) is a float, wanted is a boolean", "where"),
    (el.where((x > 0) == (x < 1), x, 0), "is a boolean, wanted is a float", "where"),
    (el.cast(x, "f8"), "numbers of a formula are not cast to 'f8'", "f32"),
    (el.cast(x > 0, "i32") + x, "is a boolean, wanted is a float", "where"),
    (el.element("bias", 1), r"element\(\"bias\", 1\) does not depend on value\(\)", r"write value\(\)"),
    (x > 0, r"\(value\(\) > 0\) is a boolean, wanted is a float", "where"),
    (Formula("median", (x,)), r"median\(value\(\)\) is not a formula", ""),
]


@pytest.mark.parametrize(("formula", "what", "fix"), REFUSED, ids=lambda v: v if isinstance(v, str) else "")
def test_what_contradicts_the_operator_is_refused(formula: Formula, what: str, fix: str) -> None:
    with pytest.raises(SpecError, match=what) as raised:
        make(formula)
    assert raised.value.what.startswith("operator 'made': the epilogue of 'out'")
    assert fix.replace("\\", "") in raised.value.fix


@pytest.mark.parametrize(
    ("fragment", "what"),
    [
        (Fragment("q k", x + el.element("bias", "j")), "fragment 'f': there is no index 'j'"),
        (Fragment({"q": M, "k": N}, x + el.element("bias", "q")), "'bias' has the extent N where the index q has M"),
        (Fragment("q k", x + el.element("bias", 1)), "there is no index '1'"),
        (Fragment("q M", x), "its index 'M' has the name of an argument or a dim"),
        (Fragment({"q": stride("x", 0)}, x), "the extent of 'q' uses 'stride.x.0', which is not a dim"),
        (x + 1, "fragment 'f' is "),
    ],
)
def test_a_fragment_that_contradicts_its_operator(fragment: Any, what: str) -> None:
    with pytest.raises(SpecError, match=what) as raised:
        make(f=fragment)
    assert raised.value.what.startswith("operator 'made': fragment 'f'")


def test_what_is_wrong_is_told_at_once() -> None:
    with pytest.raises(SpecError) as raised:
        make(x + el.scalar("beta"), f=Fragment("q", x + el.scalar("gamma")))
    assert "'beta'" in str(raised.value)
    assert "'gamma'" in str(raised.value)


def test_names_that_references_need_are_no_arguments() -> None:
    with pytest.raises(SpecError, match="a fragment is called 'epilogue'"):
        dataclasses.replace(make(x), fragments={"epilogue": Fragment("q", x)})
    taken = Scalar("fragment")
    with pytest.raises(SpecError, match="an argument is called 'fragment'"):
        dataclasses.replace(make(x), scalars=(*make().scalars, taken))
    assert dataclasses.replace(make(), scalars=(*make().scalars, taken)).scalars[-1] == taken


@pytest.mark.parametrize(
    ("write", "what"),
    [
        (lambda: x + "bias", "a formula cannot be 'bias', a str"),
        (lambda: x + None, "a formula cannot be 'None', a NoneType"),
        (lambda: el.element("bias", 1.5), None),
        (lambda: 1 if x > 0 else 2, "was used as a Python condition"),
        (lambda: x > 0 and x < 1, "was used as a Python condition"),
        (lambda: x**3, "to the power of 3 is not a formula"),
        (lambda: x + stride("x", 0), "a formula cannot use stride.x.0"),
        (lambda: Fragment("q q", x), "a fragment lists an index twice: q q"),
        (lambda: Fragment("1", x), "index of a fragment '1' is not a valid name"),
        (lambda: Epilogue("out", x * 2), "the epilogue of 'out' has the step (value() * 2), a Formula"),  # type: ignore[arg-type]
        (lambda: Epilogue("out", ("bias",)), "has the step bias, a str"),  # type: ignore[arg-type]
        (
            lambda: dataclasses.replace(make(x), fragments=(x,)),
            "fragments is (value(),), which is not a mapping of names",
        ),
        (lambda: Epilogue("out", expression="x"), "the epilogue of 'out' cannot be 'x', a str"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_formula_is_refused_where_it_is_written(write: Any, what: str | None) -> None:
    if what is None:
        assert isinstance(write(), Formula)  # a float in the place of an index is told with the operator
        return
    with pytest.raises(SpecError, match=re.escape(what)):
        write()


def test_a_formula_of_too_many_operations_is_refused() -> None:
    long = x
    for number in range(2100):
        long = long * el.scalar("alpha") + number
    with pytest.raises(SpecError, match="more than 2000 operations"):
        make(long)


def test_what_occurs_twice_is_one_step() -> None:
    twice = x
    for _ in range(60):
        twice = twice * twice + 1  # as a tree it would have 2^60 leaves
    assert len(twice.steps()) == 122
    assert len(twice.key()) < 4000
    assert len(program_of(make(twice), "epilogue").instructions) == 122


def test_expressions_of_the_call_and_numbers_are_formulas() -> None:
    op = make(
        el.where(present("bias") & (N > 4), x, 0) + (N - el.index(1)) * np.float32(0.5) + np.int64(2) - (M // 2),
        f=Fragment("i j", el.where(~present("bias"), x, x + 1)),
    )
    call = call_of(op)
    j = np.arange(5)
    assert np.allclose(op.reference(np, call)["out"], call.x + (5 - j) * 0.5 + 2 - 1)
    assert np.array_equal(call.fragment("f", call.x), call.x + 1)
    assert np.array_equal(call_of(op, bias=None).fragment("f", call.x), call.x)


def test_keys_are_equal_for_equal_formulas_alone() -> None:
    same = [x * el.sigmoid(x) + 1.0 for _ in range(2)]
    others = [
        x * el.sigmoid(x) + 1,
        x * el.sigmoid(x) + 2.0,
        el.sigmoid(x) * x + 1.0,
        x * el.sigmoid(x) - 1.0,
        x + 0.0,
        x + -0.0,
        el.element("bias", 1) + x,
        el.element("bias", el.index(1)) + x,
        x + math.inf,
    ]
    assert same[0].key() == same[1].key()
    assert len({f.key() for f in [*same, *others]}) == 1 + len(others)
    for one in [*same, *others]:
        assert Formula.of(one.data()).key() == one.key()
        assert pickle.loads(pickle.dumps(one)).key() == one.key()
    assert Epilogue("out", expression=same[0]) == Epilogue("out", (Compute(same[1]),))
    assert Epilogue("out", expression=same[0]) != Epilogue("out", expression=others[0])
    assert Fragment("q k", same[0]) == Fragment(("q", "k"), same[1])
    assert Fragment("q k", same[0]) != Fragment("k q", same[1])


def test_the_digest_of_an_operator_knows_its_formulas() -> None:
    digests = [operator_digest(make(x * el.sigmoid(x))) for _ in range(2)]
    assert digests[0] == digests[1]
    f = Fragment("q k", x * 2)
    others = [
        make(x * el.sigmoid(x) * 1.0),
        make(x * el.sigmoid(x), f=f),
        make(x * el.sigmoid(x), g=f),
        make(x * el.sigmoid(x), f=Fragment("q k", x * 3)),
        make(Epilogue("out", (Activate("activation"),))),
    ]
    assert len({*digests, *map(operator_digest, others)}) == 1 + len(others)


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "gelu_tanh", "silu"])
def test_declared_steps_and_formulas_are_one_epilogue(activation: str) -> None:
    steps = Epilogue("out", (AddTensor("bias", (1,)), Activate("activation"), Compute(x * el.scalar("alpha"))))
    call = call_of(make(steps), activation=activation)
    chosen = x + el.element("bias", 1)
    apply = {"none": lambda v: v, "relu": el.relu, "gelu": el.gelu, "gelu_tanh": el.gelu_tanh, "silu": el.silu}
    written = call_of(make(apply[activation](chosen) * el.scalar("alpha")), activation=activation)
    assert np.array_equal(call.epilogue(call.x), written.epilogue(call.x))
    assert np.array_equal(call.epilogue(call.x)[:, 0] == 0, call.x[:, 0] == 0) or activation == "relu"


def test_indices_may_be_given() -> None:
    op = make(x, f=Fragment("q k", x + el.element("counts", "q") * el.index("k")))
    call = call_of(op)
    rows = call.x[1:]
    got = call.fragment("f", rows, q=np.arange(1, 3)[:, None], k=np.arange(5))
    assert np.array_equal(got, call.fragment("f", call.x)[1:])
    assert call.fragment("f", np.float32(1.0), q=0, k=2) == 15
    with pytest.raises(ValueError, match="1 axes were given, but the indices are q, k"):
        call.fragment("f", call.x[0])
    with pytest.raises(SpecError, match="has no fragment 'g'"):
        call.fragment("g", call.x)


def test_elements_outside_of_a_tensor_and_of_absent_ones_are_0() -> None:
    op = make(x * 0 + el.element("bias", el.index(1) - 2) + 1)
    assert call_of(op).epilogue(np.ones((1, 9), np.float32)).tolist() == [[1, 1, 1, 2, 3, 4, 5, 1, 1]]
    assert call_of(op, bias=None).epilogue(np.ones((1, 2), np.float32)).tolist() == [[1, 1]]
    assert call_of(op, bias=np.zeros(0, np.float32)).epilogue(np.ones((1, 2), np.float32)).tolist() == [[1, 1]]


def test_torch_gives_the_same() -> None:
    torch = pytest.importorskip("torch")
    from aot_tune.bench.worker.cuda_truth import ArrayApi

    formula = (
        el.gelu(x + el.element("bias", 1)) * el.scalar("alpha") + el.cast(x, "bf16") - el.cast(x, "f16")
        + el.element("counts", 0) % 3 + el.index(1) // (el.index(0) - 1) + el.cast(el.cast(x * 10, "i32"), "f32")
        + el.where(el.choice("activation", "silu") | (x > 1), el.minimum(x, 2), el.rsqrt(el.maximum(x, 0.5)))
    )  # fmt: skip
    op = make(formula)
    mine = call_of(op)
    theirs = call_of(op, ArrayApi(), torch.from_numpy)
    for dtype in ("float32", "float64"):
        value = mine.x.astype(dtype)
        got = theirs.epilogue(torch.from_numpy(value)).numpy()
        assert got.dtype == dtype
        assert np.allclose(got, mine.epilogue(value), rtol=1e-6, atol=1e-6)


def test_yardsticks_round_what_formulas_compute() -> None:
    op = make(el.exp(el.cast(x, "bf16")) * el.scalar("alpha") + el.element("bias", 1))
    call = call_of(op)
    coarse = call.epilogue(RoundedArray.of(call.x, 7))
    assert isinstance(coarse, RoundedArray)
    bits = np.asarray(coarse).view(np.uint32)
    assert (bits & 0xFFFF == 0).all()
    fine = call.epilogue(call.x)
    assert 0 < np.abs(np.asarray(coarse) - fine).max() < 0.02 * np.abs(fine).max()
