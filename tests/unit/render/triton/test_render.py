"""Sources of Triton candidates: the recipe by the rules of the JIT's binder, and messages for what cannot be passed."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
import triton_launch as tl
from places import GOLDEN as ALL_GOLDEN

from aot_tune.render import Rendered, resolved
from aot_tune.render.triton.recipe import Recipe, read_recipes
from aot_tune.spec import (
    Buffer,
    Declarations,
    Descriptor,
    KernelParameter,
    Parameter,
    Scalar,
    Tensor,
    TritonFunction,
    ceildiv,
    device,
    parameter,
    stride,
)
from aot_tune.spec import target as target_fact
from aot_tune.support.errors import RenderError, SpecError

GOLDEN = ALL_GOLDEN / "triton"
ANY_TENSORS = (
    Tensor("x", (tl.M, tl.N), "T"),
    Tensor("bias", (tl.N,), "f32", optional=True),
    Tensor("out", (tl.M, tl.N), "T", output=True),
)


OWN_DEFAULT = KernelParameter(name="n", has_default=True, default={"own": "float32"})


def function(arguments: dict[str, Any] | None = None, **more: Any) -> TritonFunction:
    return TritonFunction("scale.py:scale_kernel", arguments or {}, **{"grid": (tl.M,), **more})


def recipe(
    arguments: dict[str, Any], text: str | tuple[KernelParameter, ...], operator: Any = None, **more: Any
) -> Recipe:
    declared = tl.parameters(text) if isinstance(text, str) else text
    op = tl.operator(function(arguments, **more), declared, **(operator or {}))
    return read_recipes(tl.rendered(op).source)[0]


@pytest.mark.parametrize(
    ("value", "flags", "wanted"),
    [
        (1, {}, ("constexpr", 1, False)),
        (1, {"special": False}, ("i32", None, False)),
        (1, {"annotation": "i32"}, ("i32", None, False)),
        (0, {}, ("i32", None, True)),
        (32, {}, ("i32", None, True)),
        (32, {"align": False}, ("i32", None, False)),
        (32, {"special": False}, ("i32", None, False)),
        (32, {"annotation": "i64"}, ("i64", None, True)),
        (32, {"annotation": "fp32"}, ("fp32", None, False)),
        (33, {}, ("i32", None, False)),
        (2**31, {}, ("i64", None, True)),
        (-(2**31), {}, ("i32", None, True)),
        (True, {}, ("u1", None, False)),
        (0.5, {}, ("fp32", None, False)),
        (0.5, {"annotation": "fp64"}, ("fp64", None, False)),
        (None, {}, ("constexpr", None, False)),
        (7, {"constexpr": True}, ("constexpr", 7, False)),
        ("sum", {"constexpr": True}, ("constexpr", "sum", False)),
        (False, {"constexpr": True}, ("constexpr", False, False)),
    ],
)
def test_constants_are_as_the_jit_passes_them(value: Any, flags: dict[str, Any], wanted: tuple[Any, ...]) -> None:
    got = recipe({"value": value}, (KernelParameter(name="value", **flags),))
    kind, constant, divisible = wanted
    assert got.signature == {"value": kind}
    assert got.constexprs == ({"value": constant} if kind == "constexpr" else {})
    assert got.divisible == (["value"] if divisible else [])


def test_the_source_depends_on_what_the_kernel_is_compiled_from_and_on_its_guards() -> None:
    def digest(arguments: Any, text: str = "x n", **more: Any) -> str:
        return tl.rendered(tl.operator(function(arguments), tl.parameters(text)), **more).digest

    base = {"n": tl.M}
    digests = [
        digest(base),
        digest(base, pins={"n%16": 0}),
        digest(base, pins={"n": 1}),
        digest(base, pins={"n.bits": 64}),
        digest(base, pins={"x%16": 0}),
        digest({"n": tl.N}),
        digest(base, config={"num_warps": 8}),
        digest({"n": 5}),
    ]
    assert len(set(digests)) == len(digests)
    assert digest(base) == digests[0]


def test_where_a_function_lies_does_not_count() -> None:
    def rendered(reference: str) -> Rendered:
        moved = replace(function({"n": tl.M}), function=reference)
        return tl.rendered(tl.operator(moved, tl.parameters("x n")))

    here, there, other = map(rendered, ("a/here.py:f", "package.there:f", "a/here.py:g"))
    assert here.source != there.source
    assert (here.digest, here.symbol) == (there.digest, there.symbol)
    assert here.digest != other.digest


@pytest.mark.parametrize(
    ("arguments", "text", "more", "message"),
    [
        ({"n": 2**70}, "n", {}, r"argument 'n' is '1180591620717411303424'(.|\n)*numbers of 64 bits"),
        ({}, (OWN_DEFAULT,), {}, r"argument 'n' is (.|\n)*tl\.constexpr"),
        ({"n": "x"}, "n!", {}, r"the constexpr argument 'n' is passed the tensor 'x'(.|\n)*DTypeOf"),
        ({"n": "x"}, "n:i32", {}, r"the argument 'n' is annotated 'i32' and passed the tensor 'x'"),
        ({"n": tl.M}, "n!", {}, r"the constexpr argument 'n' is M, which has no value here"),
        ({"n": tl.M}, "n:fp8", {}, r"argument 'n' has the type 'fp8'"),
        ({"n": 300}, "n:i8", {}, r"argument 'n': the constant 300 does not fit the type i8"),
        ({"n": float("inf")}, "n:i8", {}, r"argument 'n': the constant inf does not fit the type i8"),
        ({"n": 0.5}, "n:i32", {}, r"argument 'n': the constant 0.5 does not fit the type i32"),
        ({"n": "rate"}, "n:i32", {}, r"argument 'n': the scalar 'rate' is a float, not i32"),
        ({"d": Descriptor("x", (8,))}, "d", {}, r"descriptor of 'x' has a block of 1 axes, and the tensor has 2"),
        ({"d": Descriptor("x", (8, tl.M))}, "d", {}, r"the block of argument 'd' is M, which has no value here"),
        ({"d": Descriptor("x", (8, 8), "ones")}, "d", {}, r"padding 'ones'(.|\n)*'zero' or 'nan'"),
        ({"d": Descriptor("x", (8, 8), order=(0, 2))}, "d", {}, r"order \(0, 2\)(.|\n)*each of its 2 axes once"),
        ({"d": Descriptor("bias", (8,))}, "d", {}, r"'bias', which may be left out(.|\n)*present\('bias'\) == 1"),
        ({}, "x", {"reset_to_zero": ("x",)}, r"reset_to_zero names 'x', which is no output or buffer"),
        ({}, "x", {"reset_to_zero": ("y",)}, r"reset_to_zero names 'y'"),
        ({}, "x", {"options": {"num_warps": tl.N // 64}}, r"option 'num_warps' is \(N // 64\), which has no value"),
        ({"n": parameter("WIDTH")}, "n", {}, r"argument 'n' uses 'parameter\.WIDTH', which is not known at a call"),
        ({"n": target_fact("shared_byte")}, "n", {}, r"'target.shared_byte', which cuda-sm_90a does not tell"),
        ({"n": target_fact("shared_byte")}, "n!", {}, r"'target.shared_byte', which cuda-sm_90a does not tell"),
        ({"m": 3}, "n", {}, r"has no argument 'm'"),
        ({}, "n", {}, r"nothing is passed as argument 'n'"),
    ],
)
def test_what_cannot_be_passed_is_refused_with_a_remedy(arguments: Any, text: Any, more: Any, message: str) -> None:
    given = {"tensors": ANY_TENSORS, "dtypes": {"T": ("f32",)}, "scalars": (Scalar("rate"),)}
    with pytest.raises((RenderError, SpecError), match=message) as error:
        recipe(arguments, text, operator=given, **more)
    assert error.value.what.startswith("operator 'scale': kernel 'triton'")
    assert error.value.fix


SPACE = {"parameters": (Parameter("num_warps", (4, 8)), Parameter("SPLIT", (3,)))}


def test_several_functions_have_one_config() -> None:
    """What a function is given goes before the config's; conditions of both are one; two autotuners are refused."""
    first, second = function({"n": tl.M}), function({"n": tl.N, "SPLIT": 5}, options={"num_warps": tl.N // 4})
    op = tl.operator(first, tl.parameters("x n SPLIT!"), (second, tl.parameters("x n SPLIT!")), kernel=SPACE)
    pins = {"2:n.bits": 64, "x%16": 0, "2:x%16": 0, "option.2:num_warps": 2}
    rendered = tl.rendered(op, config={"num_warps": 8, "SPLIT": 3}, pins=pins)
    recipes = [(r.options["num_warps"], r.signature["n"], r.constexprs) for r in read_recipes(rendered.source)]
    assert recipes == [(8, "i32", {"SPLIT": 3}), (2, "i64", {"SPLIT": 5})]
    required = [e.key() for e in rendered.requires]
    assert {"((N // 4) == 2)", "(alignment.x >= 16)"} < set(required)
    assert len(required) == len(set(required))
    tuned = Declarations(parameters=tl.parameters("x n"), configs=({"num_warps": 4}, {"num_warps": 8}))
    op = tl.operator(first, tuned, (second, tuned))
    with pytest.raises(SpecError, match=r"and scale.py:scale_kernel have autotuners(.|\n)*`parameters`"):
        resolved(op.kernel("triton"), tl.SM_90A.name)


def test_the_source_is_that_of_the_golden_file() -> None:
    """A matrix product with everything at once: descriptors, a buffer, an absent tensor, scratch, a persistent grid."""
    op = tl.operator(
        TritonFunction(
            "gemm/triton/functions.py:persistent",
            {
                "a_desc": Descriptor("x", (parameter("BLOCK"), 64), "nan", order=(1, 0)),
                "bias_ptr": "bias",
                "out_ptr": "out",
                "rows": tl.M,
                "columns": tl.N,
                "stride_out": stride("out", 0),
                "locks": Buffer("i32", ceildiv(tl.M, parameter("BLOCK")), zero=True),
                "alpha": "alpha",
                "negative": -1,
            },
            grid=lambda meta: (min(device("multiprocessors"), ceildiv(meta["rows"], meta["BLOCK"])), 1, meta["SPLIT"]),
            options={"num_warps": 8},
            reset_to_zero=("out_ptr",),
            launch_pdl=True,
        ),
        tl.parameters("a_desc bias_ptr out_ptr rows columns stride_out locks alpha:fp64 negative BLOCK! SPLIT!"),
        tensors=ANY_TENSORS,
        dtypes={"T": ("bf16",)},
        scalars=(Scalar("alpha", "f64"),),
        kernel={"parameters": (Parameter("BLOCK", (128,)), Parameter("SPLIT", (2,)))},
    )
    pins = {"bias_ptr.none": 0, "bias_ptr%16": 0, "out_ptr%16": 0, "columns%16": 0, "rows.bits": 64}
    source = tl.rendered(op, config={"BLOCK": 128, "SPLIT": 2, "num_stages": 4}, pins=pins).source
    path = GOLDEN / "persistent.cpp"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    assert source == path.read_text()
