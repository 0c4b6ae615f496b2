"""A generic Triton kernel has a code for each combination of optional tensors and attributes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import triton_launch as tl

from aot_tune.render import Renderer, combination, generic_candidates, requirements
from aot_tune.render.triton.recipe import read_recipe
from aot_tune.spec import (
    Attribute,
    Declarations,
    Expr,
    Kernel,
    KernelParameter,
    Operator,
    Tensor,
    TritonFunction,
    all_of,
    attribute,
    dtype_index,
    present,
    problem,
    where,
)
from aot_tune.spec.call_combinations import legal_combinations, values_of_fact
from aot_tune.support.errors import SpecError

TENSORS = (
    Tensor("x", (tl.M, tl.N), "T"),
    Tensor("bias", (tl.N,), "T", optional=True),
    Tensor("out", (tl.M, tl.N), "T", output=True),
)
ARGUMENTS = {"CAUSAL": attribute("causal") == 1, "HAS_BIAS": present("bias"), "MODE": attribute("mode"), "n": tl.N}


def operator(
    arguments: dict[str, Any] = ARGUMENTS, text: str = "x bias out CAUSAL! HAS_BIAS! MODE! n", **changes: Any
) -> Operator:
    kernel = changes.pop("function", {})
    function = TritonFunction("scale.py:scale_kernel", arguments, grid=(tl.M,), **kernel)
    inspection = changes.pop("inspection", Declarations(parameters=tl.parameters(text), digest="d" * 64))
    fields: dict[str, Any] = {
        "name": "scale",
        "dims": ("M", "N"),
        "dtypes": {"T": ("f32", "bf16")},
        "tensors": TENSORS,
        "attributes": (Attribute("causal", ("no", "yes")), Attribute("mode", ("a", "b", "c"))),
        "reference": lambda _xp, call: {"out": call.x},
        "flops": tl.M * tl.N,
        "workload": (problem(M=4, N=8),),
        "kernels": (
            Kernel("triton", backend="triton", generic=True, triton=function.inspected({tl.SM_90A.name: inspection})),
        ),
    }
    return Operator(**{**fields, **changes})


def candidates(op: Operator, dtype: str = "bf16") -> list[Any]:
    return generic_candidates(op, op.kernels[0], {}, tl.SM_90A, {"T": dtype})


def guards(op: Operator) -> list[list[str]]:
    return [sorted(g.key() for g in combination(requirements(op, c))) for c in candidates(op)]


def test_there_is_a_candidate_for_each_combination() -> None:
    op = operator()
    found = candidates(op)
    assert len({c.id for c in found}) == len(found) == 2 * 2 * 3
    assert found[0].pins == {"CAUSAL": 0, "HAS_BIAS": 0, "MODE": 0, "bias.none": 1, "n.bits": 64}
    assert found[-1].pins == {"CAUSAL": 1, "HAS_BIAS": 1, "MODE": 2, "bias.none": 0, "n.bits": 64}
    assert found[-1].label == "triton bf16 CAUSAL:=1 HAS_BIAS:=1 MODE:=2"
    wanted = ["(attribute.causal == 1)", "(attribute.mode == 2)", "(present.bias == 1)"]
    assert guards(op)[-1] == wanted


def test_every_call_has_one_of_them() -> None:
    op = operator({**ARGUMENTS, "MODE": where(attribute("mode") == 0, attribute("causal"), 7)})
    sets = [combination(requirements(op, c)) for c in candidates(op)]
    assert len(sets) == 8  # causal or not, mode a or another one, with a bias or without
    facts = ["attribute.causal", "attribute.mode", "present.bias"]
    for call in legal_combinations(op, facts, [values_of_fact(op, f) for f in facts]):
        assert sum(all_of(one, call) for one in sets) == 1, call


def test_each_is_rendered_with_its_constants() -> None:
    op = operator()
    first, last = (Renderer([]).render(op, candidates(op)[i], tl.SM_90A) for i in (0, -1))
    assert (first.symbol, first.digest) != (last.symbol, last.digest)
    recipe = read_recipe(first.source)
    assert recipe.signature["bias"] == "constexpr"
    assert recipe.constexprs == {"bias": None, "CAUSAL": 0, "HAS_BIAS": 0, "MODE": 0}
    recipe = read_recipe(last.source)
    assert recipe.signature["bias"] == "*bf16"
    assert recipe.constexprs == {"CAUSAL": 1, "HAS_BIAS": 1, "MODE": 2}
    assert "aot_arguments.p_bias = bias->data;" in last.source  # there is no question whether it is there


def test_heuristics_and_launch_options_are_part_of_a_combination() -> None:
    inspection = Declarations(
        parameters=tl.parameters("x bias out CAUSAL! n"),
        heuristics={"CAUSAL": (present("bias") == 1).data()},
        booleans=("CAUSAL",),
        digest="e" * 64,
    )
    options = {"options": {"num_warps": where(attribute("mode") == 2, 8, 4)}}
    op = operator({"n": tl.N}, inspection=inspection, function=options)
    found = candidates(op)
    assert [(c.pins["bias.none"], c.pins["option.num_warps"]) for c in found] == [(1, 4), (0, 4), (1, 8), (0, 8)]
    recipe = read_recipe(Renderer([]).render(op, found[-1], tl.SM_90A).source)
    assert recipe.constexprs == {"CAUSAL": True}
    assert recipe.options == {"num_warps": 8}
    assert "(attribute.mode == 2)" in guards(op)[-1]
    assert "(where((attribute.mode == 2), 8, 4) == 4)" in guards(op)[0]


def test_what_is_not_legal_has_no_code() -> None:
    op = operator(legal=(attribute("causal") == 0, (present("bias") == 0) | (attribute("mode") != 1)))
    assert [(c.pins["bias.none"], c.pins["MODE"]) for c in candidates(op)] == [(1, 0), (0, 0), (1, 1), (1, 2), (0, 2)]


def test_a_dtype_is_that_of_the_candidate() -> None:
    op = operator({**ARGUMENTS, "MODE": dtype_index("T") * 10})
    assert {c.pins["MODE"] for c in candidates(op, "f32")} == {0}
    assert {c.pins["MODE"] for c in candidates(op, "bf16")} == {10}


def test_too_many_combinations_are_refused() -> None:
    many = tuple(Attribute(f"a{i}", ("x", "y")) for i in range(7))
    arguments: dict[str, Any] = {f"A{i}": attribute(f"a{i}") for i in range(7)}
    op = operator(arguments, "x out " + " ".join(f"A{i}!" for i in range(7)), attributes=many)
    with pytest.raises(
        SpecError, match=r"there are 128 combinations of attribute\('a0'\), .*a code of its own(.|\n)*64 are"
    ):
        candidates(op)
    assert len(candidates(replace(op, legal=(attribute("a3") == 0,)))) == 64
    wide = tuple(Attribute(f"a{i}", tuple(f"c{k}" for k in range(16))) for i in range(7))
    with pytest.raises(SpecError, match=f"there are {16**7} combinations"):
        candidates(replace(op, attributes=wide))


@pytest.mark.parametrize(
    "expr", [tl.N, attribute("causal") * tl.M, present("bias") + Expr("fact", value="alignment.x")]
)
def test_a_constant_of_anything_else_is_refused(expr: Expr) -> None:
    op = operator({**ARGUMENTS, "MODE": expr})
    with pytest.raises(
        SpecError, match=r"kernel 'triton' for every call: argument 'MODE' is .*, a constant that depends"
    ):
        candidates(op)


def test_kernels_without_such_constants_have_one_code() -> None:
    assert KernelParameter(name="x") == tl.parameters("x")[0]
    op = operator({"n": tl.N}, "x out n")
    assert [c.pins for c in candidates(op)] == [{"n.bits": 64}]
    assert guards(op) == [[]]
