"""Sources of Triton candidates: the recipe by the rules of the JIT's binder, and messages for what cannot be passed."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import triton_launch as tl
from places import GOLDEN as ALL_GOLDEN

from aot_tune.render import Rendered, requirements
from aot_tune.render.triton.recipe import Recipe, read_recipe
from aot_tune.render.triton.specialize import guards, plain_pins, specialized_pins
from aot_tune.spec import (
    Buffer,
    Declarations,
    Descriptor,
    DTypeOf,
    KernelParameter,
    Parameter,
    Scalar,
    Target,
    Tensor,
    TritonFunction,
    ceildiv,
    device,
    next_power_of_2,
    parameter,
    present,
    stride,
    where,
)
from aot_tune.spec import target as target_fact
from aot_tune.support.errors import RenderError, SpecError

GOLDEN = ALL_GOLDEN / "triton"
BASELINE = Target(name="cuda-ptx_80", family="cuda", level=80)
SM_80 = Target(name="cuda-sm_80", family="cuda", level=80)
ANY_TENSORS = (
    Tensor("x", (tl.M, tl.N), "T"),
    Tensor("bias", (tl.N,), "f32", optional=True),
    Tensor("out", (tl.M, tl.N), "T", output=True),
)


OWN_DEFAULT = KernelParameter(name="n", has_default=True, default={"own": "float32"})


def function(arguments: dict[str, Any] | None = None, **more: Any) -> TritonFunction:
    return TritonFunction("scale.py:scale_kernel", arguments or {}, **{"grid": (tl.M,), **more})


def recipe(
    arguments: dict[str, Any],
    text: str | tuple[KernelParameter, ...],
    *,
    config: Any = None,
    pins: Any = None,
    operator: Any = None,
    dtypes: Any = None,
    target: Any = tl.SM_90A,
    **more: Any,
) -> Recipe:
    declared = tl.parameters(text) if isinstance(text, str) else text
    op = tl.operator(function(arguments, **more), declared, target=target, **(operator or {}))
    return read_recipe(tl.rendered(op, config=config, pins=pins, dtypes=dtypes, target=target).source)


@pytest.mark.parametrize(
    ("dtype", "element"),
    [("f32", "fp32"), ("f64", "fp64"), ("f16", "fp16"), ("bf16", "bf16"), ("i8", "i8"), ("i32", "i32"), ("i64", "i64"),
     ("u8", "u8"), ("bool", "u1")],
)  # fmt: skip
def test_each_element_type_has_its_name(dtype: str, element: str) -> None:
    given = {"tensors": ANY_TENSORS, "dtypes": {"T": (dtype,)}}
    arguments = {"kind": DTypeOf("x"), "d": Descriptor("x", (8, 16))}
    got = recipe(arguments, "x kind! d out", operator=given, pins={"x%16": 0})
    pointer, descriptor = f"*{element}", f"tensordesc<{element}[8, 16]>"
    assert got.signature == {"x": pointer, "kind": "constexpr", "d": descriptor, "out": pointer}
    assert (got.dtypes, got.constexprs, got.divisible) == ({"kind": element}, {}, ["x"])


def test_integers_have_the_width_and_marks_of_their_pins() -> None:
    arguments = {"plain": tl.M, "wide": tl.N, "unit": stride("x", 1), "step": stride("x", 0)}
    got = recipe(arguments, "plain wide unit step", pins={"wide.bits": 64, "wide%16": 0, "unit": 1, "step%16": 0})
    assert got.signature == {"plain": "i32", "wide": "i64", "unit": "constexpr", "step": "i32"}
    assert (got.constexprs, got.divisible) == ({"unit": 1}, ["wide", "step"])


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


def test_scalars_are_as_the_jit_passes_them() -> None:
    scalars = tuple(Scalar(name, dtype) for name, dtype in (("a", "f32"), ("b", "f64"), ("c", "i32"), ("d", "i64")))
    got = recipe({"e": "b", "f": "d"}, "a b c d e:bf16 f:i16", operator={"scalars": scalars})
    assert got.signature == {"a": "fp32", "b": "fp32", "c": "i32", "d": "i64", "e": "bf16", "f": "i16"}


def test_a_config_without_a_value_leaves_an_argument_its_default() -> None:
    declared = (
        KernelParameter(name="BLOCK", constexpr=True),
        KernelParameter(name="STEP", has_default=True, default=4),
    )
    inspection = Declarations(parameters=declared, configs=({"BLOCK": 16}, {"BLOCK": 32, "STEP": 2}))
    op = tl.operator(function(), inspection, kernel={"listed": ({"BLOCK": 16}, {"BLOCK": 32, "STEP": 2})})
    assert read_recipe(tl.rendered(op, config={"BLOCK": 16}).source).signature["STEP"] == "i32"
    with pytest.raises(RenderError, match="no value for the argument 'BLOCK'"):
        tl.rendered(op, config={"STEP": 2})


def test_absent_tensors_are_none_and_buffers_are_aligned() -> None:
    given = {"tensors": ANY_TENSORS, "dtypes": {"T": ("f32",)}}
    arguments = {"bias_ptr": "bias", "locks": Buffer("i32", tl.M), "other": Buffer("bool", 3)}
    declared = (*tl.parameters("bias_ptr locks"), KernelParameter(name="other", align=False))
    got = recipe(arguments, declared, operator=given, pins={"bias_ptr.none": 1})
    assert got.signature == {"bias_ptr": "constexpr", "locks": "*i32", "other": "*u1"}
    assert (got.constexprs, got.divisible) == ({"bias_ptr": None}, ["locks"])
    there = recipe(arguments, declared, operator=given, pins={"bias_ptr.none": 0, "bias_ptr%16": 0})
    assert there.signature["bias_ptr"] == "*fp32"
    assert there.divisible == ["bias_ptr", "locks"]


def test_constexprs_come_from_the_config_the_pins_and_heuristics() -> None:
    inspection = Declarations(
        parameters=tl.parameters("x BLOCK! MODE! HAS_BIAS! WIDTH! TWICE!"),
        heuristics={"HAS_BIAS": present("bias").data(), "TWICE": (parameter("BLOCK") * 2).data()},
    )
    op = tl.operator(
        function({"WIDTH": next_power_of_2(tl.N)}),
        inspection,
        tensors=ANY_TENSORS,
        dtypes={"T": ("f16", "bf16")},
        kernel={"parameters": (Parameter("BLOCK", (64, 128)), Parameter("MODE", ("fast", "exact")))},
    )
    pins = {"HAS_BIAS": 1, "WIDTH": 1024}
    source = tl.rendered(op, config={"BLOCK": 128, "MODE": "exact"}, pins=pins, dtypes={"T": "bf16"})
    got = read_recipe(source.source)
    assert got.constexprs == {"BLOCK": 128, "MODE": "exact", "HAS_BIAS": 1, "WIDTH": 1024, "TWICE": 256}
    assert got.signature["x"] == "*bf16"
    assert [e.key() for e in requirements(op, source.candidate)] == [
        "(dtype.T == 1)",
        "(present.bias == 1)",
        "(next_power_of_2(N) == 1024)",
    ]


def test_heuristics_that_give_booleans_are_booleans_and_debug_is_kept() -> None:
    inspection = Declarations(
        parameters=tl.parameters("x EVEN! ODD! PARTS!"),
        heuristics={"EVEN": (tl.N % 2 == 0).data(), "ODD": ["const", 0], "PARTS": (tl.N % 2).data()},
        booleans=("EVEN", "ODD"),
        debug=True,
    )
    got = read_recipe(tl.rendered(tl.operator(function(), inspection), pins={"EVEN": 1, "PARTS": 1}).source)
    assert [(n, type(v), v) for n, v in got.constexprs.items()] == [
        ("EVEN", bool, True), ("ODD", bool, False), ("PARTS", int, 1)
    ]  # fmt: skip
    assert got.options == {"debug": True}


def test_launch_options_of_a_config_come_before_those_of_the_function() -> None:
    options = {"num_warps": where(tl.N > 2048, 8, 4), "num_stages": 3, "num_ctas": parameter("CLUSTER"), "maxnreg": 128}
    space = (Parameter("CLUSTER", (2,)), Parameter("num_stages", (4, 5)), Parameter("enable_fp_fusion", (False,)))
    config = {"CLUSTER": 2, "num_stages": 5, "enable_fp_fusion": False}
    given = {"config": config, "operator": {"kernel": {"parameters": space}}, "pins": {"option.num_warps": 8}}
    got = recipe({}, "x", options=options, launch_pdl=True, cooperative=True, **given)
    assert got.options == {
        "enable_fp_fusion": False, "launch_cooperative_grid": True, "launch_pdl": True, "maxnreg": 128, "num_ctas": 2,
        "num_stages": 5, "num_warps": 8,
    }  # fmt: skip


def test_options_of_amd_are_passed_on_to_its_compiler_alone() -> None:
    space = tuple(Parameter(n, (v,)) for n, v in (("waves_per_eu", 2), ("matrix_instr_nonkdim", 16), ("num_warps", 4)))
    given = {"config": {p.name: p.values[0] for p in space}, "operator": {"kernel": {"parameters": space}}}
    assert recipe({}, "x", **given).options == {"num_warps": 4}
    got = recipe({}, "x", target=tl.GFX942, **given)
    assert got.options == {"matrix_instr_nonkdim": 16, "num_warps": 4, "waves_per_eu": 2}


def test_blocks_of_descriptors_are_expressions_of_parameters() -> None:
    kernel = {"parameters": (Parameter("BLOCK", (64,)), Parameter("HALVES", (2,)))}
    descriptor = Descriptor("x", (parameter("BLOCK"), parameter("BLOCK") // parameter("HALVES")))
    got = recipe({"d": descriptor}, "d", operator={"kernel": kernel}, config={"BLOCK": 64, "HALVES": 2})
    assert got.signature == {"d": "tensordesc<fp32[64, 32]>"}


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


def test_facts_that_hold_in_every_call_are_constants() -> None:
    op = tl.operator(
        function({"bias_step": stride("bias", 0), "n": tl.N}, grid=(ceildiv(tl.N, 64),)),
        tl.parameters("bias bias_step n"),
        tensors=ANY_TENSORS,
        dtypes={"T": ("f32",)},
        kernel={"requires": (tl.N == 4096, stride("bias", 0) == 1)},
    )
    source = tl.rendered(op, pins={"bias.none": 0}).source
    assert "narrow(INT64_C(1), &aot_arguments.p_bias_step)" in source
    assert "narrow(INT64_C(4096), &aot_arguments.p_n)" in source
    assert "aot_arguments.p_bias = bias->data;" in source
    any_bias = function({"bias_step": stride("bias", 0)})
    loose = tl.operator(any_bias, tl.parameters("bias_step"), tensors=ANY_TENSORS, dtypes={"T": ("f32",)})
    assert "(bias != nullptr) ? bias->strides[0] : INT64_C(1)" in tl.rendered(loose).source


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


@pytest.mark.parametrize("place", ["arguments", "options"])
def test_what_is_of_the_target_and_of_the_call_is_refused_where_it_is_declared(place: str) -> None:
    mixed = where(target_fact("wgmma"), tl.N, 1)
    with pytest.raises(
        SpecError, match=r"'scale.py:scale_kernel': 'num_warps' is .*: it mixes facts of the target and of the call"
    ) as e:
        function(**{place: {"num_warps": mixed}})
    assert e.value.fix
    function(**{place: {"num_warps": where(target_fact("wgmma"), parameter("WIDTH"), 1)}})


@pytest.mark.parametrize(("target", "early"), [(tl.SM_90A, True), (SM_80, False), (tl.GFX942, False)])
def test_kernels_start_early_where_gpus_have_such_launches_and_functions_may_know_where(
    target: Target, early: bool
) -> None:
    on = msgspec.structs.replace(target, facts={"capability": target.level if target.family == "cuda" else 0})
    got = recipe({"EARLY": target_fact("capability") >= 90}, "x EARLY!", target=on, launch_pdl=True)
    assert got.options.get("launch_pdl", False) == early
    assert got.constexprs == {"EARLY": int(early)}


@pytest.mark.parametrize("text", ["x n", "x n!"])
def test_what_a_target_has_is_assumed_of_no_call(text: str) -> None:
    """As an ordinary argument, too: it is a number of the launch then."""
    op = tl.operator(function({"n": target_fact("shared_bytes")}), tl.parameters(text))
    kernel = op.kernels[1]
    for pins in (specialized_pins, plain_pins):
        found = pins(op, kernel, {}, op.workload_for("cuda")[0], "cuda-sm_90a")
        assert not [name for name in found if name.startswith("n")]
    assert guards(op, kernel, {}, {}, "cuda-sm_90a") == ()
    got = recipe({"n": target_fact("shared_bytes")}, text)
    assert got.signature["n"] == ("constexpr" if "!" in text else "i32")


def test_a_function_that_was_not_read_for_the_target_says_so() -> None:
    op = tl.operator(function(), tl.parameters("x"), target=BASELINE)
    with pytest.raises((RenderError, SpecError), match="was not read for cuda-sm_90a"):
        tl.rendered(op)


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
