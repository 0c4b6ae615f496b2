"""What a Triton function is compiled for, and the guards of that code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from triton_rows import ARGUMENTS, INSPECTION, MI300, SM90, D, R, operator, parameter

from aot_tune.render import Renderer, bind, candidate_for, candidates_for, requirements, resolved
from aot_tune.render.triton.recipe import read_recipe
from aot_tune.spec import (
    Declarations,
    Descriptor,
    Operator,
    Problem,
    Scalar,
    Target,
    all_of,
    device,
    next_power_of_2,
    problem,
    stride,
    where,
)
from aot_tune.spec import parameter as config_value
from aot_tune.support.errors import SpecError


def pins(op: Operator, one: Problem, target: Target = SM90) -> list[dict[str, int]]:
    """Of the candidates of one config that are for a problem alone."""
    alone = replace(op, workload=(one,))
    kernel = resolved(alone.kernel("rows"), target.name)
    return [c.pins for c in candidates_for(alone, kernel, {"num_warps": 4}, target)]


def test_the_autotuners_configs_are_the_space() -> None:
    kernel = resolved(operator().kernel("rows"), SM90.name)
    assert list(kernel.configs({})) == [{"num_warps": 4}, {"num_warps": 8}]
    assert kernel.order == kernel.listed


def test_a_candidate_assumes_what_the_binder_would_and_another_nothing() -> None:
    special, plain = pins(operator(), problem(R=4, D=1000))
    assert special == {"bias_ptr.none": 1, "BLOCK": 1024, "x_ptr%16": 0, "y_ptr%16": 0}
    assert plain == {
        "bias_ptr.none": 1,
        "BLOCK": 1024,
        "x_row.bits": 64,
        "rows.bits": 64,
        "n_cols.bits": 64,
    }
    special, _ = pins(operator(), problem(R=1, D=1024, present=("bias",)))
    assert special == {
        "bias_ptr.none": 0,
        "BLOCK": 1024,
        "x_ptr%16": 0,
        "bias_ptr%16": 0,
        "y_ptr%16": 0,
        "x_row%16": 0,
        "n_cols%16": 0,
    }


def test_an_integer_of_one_is_a_constant_unless_it_must_not_be_specialised() -> None:
    special, _ = pins(operator(), problem(R=1, D=1))
    assert special["n_cols"] == 1
    assert special["x_row"] == 1
    assert "rows" not in special


def test_unaligned_addresses_and_large_integers_are_not_assumed_away() -> None:
    special, _ = pins(operator(), problem(R=4, D=1000, alignment={"x": 2}, strides={"x": (2**31 + 8, 1)}))
    assert "x_ptr%16" not in special
    assert special["x_row.bits"] == 64
    assert "x_row%16" not in special


def test_amd_assumes_the_span_of_tensors() -> None:
    special, _ = pins(operator(), problem(R=4, D=1024), MI300)
    assert special["x_ptr.range"] == 32
    special, _ = pins(operator(), problem(R=4, D=1024, strides={"x": (2**30, 1)}), MI300)
    assert "x_ptr.range" not in special


@pytest.mark.parametrize(
    ("other", "special", "plain"),
    [
        (problem(R=9, D=1024), True, True),
        (problem(R=9, D=1023), False, True),  # 16 does not divide it
        (problem(R=9, D=1024, alignment={"x": 2}), False, True),
        (problem(R=9, D=1024, strides={"x": (1025, 1)}), False, True),
        (problem(R=9, D=1024, strides={"x": (2**32, 1)}), False, True),
        (problem(R=9, D=1040), False, False),  # another BLOCK
        (problem(R=9, D=1024, present=("bias",)), False, False),
        (problem(R=9, D=1024, order={"x": (1, 0)}), False, False),
    ],
)
def test_guards_let_in_what_the_code_is_right_for(other: Problem, special: bool, plain: bool) -> None:
    op = replace(operator(), workload=(problem(R=4, D=1024),))
    kernel = resolved(op.kernel("rows"), SM90.name)
    found = list(candidates_for(op, kernel, {"num_warps": 4}, SM90))
    assert [all_of(requirements(op, c), op.facts(other)) for c in found] == [special, plain]


def test_guards_over_values_of_the_autotuners_configs() -> None:
    op = operator()
    op = replace(
        op, kernels=(op.kernels[0], replace(op.kernels[1], requires=(D % (config_value("num_warps") * 2) == 0,)))
    )
    kernel = resolved(op.kernel("rows"), SM90.name)
    found = {n: list(candidates_for(op, kernel, {"num_warps": n}, SM90)) for n in (4, 8)}
    for n, candidates in found.items():  # D is 1000 or 1024, and 8 divides 1000
        assert {p.pins["BLOCK"] for p in candidates} == {1024}
        assert len(candidates) == {4: 6, 8: 4}[n]
        assert all(f"((D % {2 * n}) == 0)" in [r.key() for r in requirements(op, c)] for c in candidates)


def test_a_guard_over_what_no_config_of_the_autotuner_has() -> None:
    op = operator()
    bad = replace(op.kernels[1], requires=(D % config_value("num_warp") == 0,))
    with pytest.raises(SpecError, match=r"unknown parameter 'num_warp'\n  fix: did you mean 'num_warps'"):
        resolved(bad, SM90.name)


def test_pruned_configs_have_no_candidate() -> None:
    wanted = problem(R=4, D=1000)
    inspection = Declarations(
        parameters=INSPECTION.parameters, configs=INSPECTION.configs, pruned={wanted.id: [1]}, digest="1" * 64
    )
    op = replace(operator(inspection=inspection), workload=(wanted,))
    kernel = resolved(op.kernel("rows"), SM90.name)
    assert list(candidates_for(op, kernel, {"num_warps": 4}, SM90)) == []
    assert len(list(candidates_for(op, kernel, {"num_warps": 8}, SM90))) == 2


def test_defaults_and_heuristics_stand_in_for_arguments() -> None:
    given = {k: v for k, v in ARGUMENTS.items() if k != "BLOCK"}
    inspection = Declarations(
        parameters=INSPECTION.parameters, heuristics={"BLOCK": (next_power_of_2(D) * 2).data()}, digest="2" * 64
    )
    op = operator(given, inspection)
    assert {a.name: a.kind for a in bind(op, op.kernel("rows"), SM90.name)} == {
        "x_ptr": "pointer",
        "bias_ptr": "pointer",
        "y_ptr": "pointer",
        "x_row": "integer",
        "rows": "integer",
        "n_cols": "integer",
        "BLOCK": "integer",
        "SPLIT": "constant",
    }
    kernel = resolved(op.kernel("rows"), SM90.name)
    assert candidate_for(op, kernel, {}, SM90, problem(R=1, D=100)).pins["BLOCK"] == 256


def test_what_only_a_launch_knows_is_assumed_nothing_of() -> None:
    op = operator({**ARGUMENTS, "rows": device("multiprocessors") * 2})
    wanted = problem(R=4, D=1000)
    special, plain = pins(op, wanted)
    assert not {n for n in (*special, *plain) if n.startswith("rows")}
    kernel = resolved(op.kernel("rows"), SM90.name)
    candidate = candidate_for(op, kernel, {"num_warps": 4}, SM90, wanted)
    assert not [f for g in requirements(op, candidate) for f in g.facts() if f.startswith("device.")]


@pytest.mark.parametrize("name", ["BLOCK", "SPLIT"])
def test_a_constant_cannot_depend_on_the_device(name: str) -> None:
    op = operator({**ARGUMENTS, name: device("multiprocessors")})
    with pytest.raises(SpecError, match=f"constexpr '{name}' depends on the device"):
        pins(op, problem(R=4, D=1000))


def test_what_a_tensor_map_needs_is_a_guard() -> None:
    op = operator({**ARGUMENTS, "x_ptr": Descriptor("x", (1, 64))})
    kernel = resolved(op.kernel("rows"), SM90.name)
    candidate = candidate_for(op, kernel, {"num_warps": 4}, SM90, problem(R=4, D=1024))
    guards = requirements(op, candidate)
    good = problem(R=4, D=1024)
    bad = [
        problem(R=4, D=1024, alignment={"x": 8}),
        problem(R=4, D=1024, strides={"x": (1028, 1)}),
        problem(R=4, D=1024, strides={"x": (0, 1)}),
        problem(R=4, D=1024, order={"x": (1, 0)}),
    ]
    assert all_of(guards, op.facts(good))
    assert not [p.id for p in bad if all_of(guards, op.facts(p))]


def test_a_constant_of_a_scalars_name_is_refused() -> None:
    op = replace(operator({**ARGUMENTS, "SPLIT": "eps"}), scalars=(Scalar("eps"),))
    with pytest.raises(SpecError, match="argument 'SPLIT' is a constexpr, but 'eps' is a scalar"):
        bind(op, op.kernel("rows"), SM90.name)


def test_an_argument_that_configs_have_too_is_refused() -> None:
    """As the JIT does: its grid would be of one value, and its code of the other."""
    configs = ({"BLOCK": 64, "num_warps": 4},)
    op = operator(ARGUMENTS, Declarations(parameters=INSPECTION.parameters, configs=configs, digest="2" * 64))
    with pytest.raises(
        SpecError, match=r"(?s)argument 'BLOCK' is in `arguments` and in the configs.*listed=table\('BLOCK"
    ):
        bind(op, op.kernel("rows"), SM90.name)


def test_a_tensor_that_there_is_not_is_named() -> None:
    op = operator({**ARGUMENTS, "x_ptr": "xx"})
    with pytest.raises(SpecError, match=r"argument 'x_ptr': 'xx' is no tensor or scalar"):
        bind(op, op.kernel("rows"), SM90.name)


def test_a_generic_kernel_cannot_have_constants_that_depend_on_the_call() -> None:
    op = operator()
    told = r"for every call: argument 'BLOCK' is next_power_of_2\(D\), a constant that depends on the call"
    with pytest.raises(SpecError, match=told):
        candidate_for(op, op.kernel("rows"), {"num_warps": 4}, SM90)


@pytest.mark.parametrize(("annotation", "least", "most"), [("i8", -128, 127), ("u16", 0, 65535), ("u64", None, None)])
def test_an_integer_fits_the_type_that_its_function_says(annotation: str, least: int | None, most: int | None) -> None:
    """Calls beyond it go to another variant: the launcher would refuse them."""
    declared = [parameter(p.name, annotation=annotation) if p.name == "x_row" else p for p in INSPECTION.parameters]
    op = operator(inspection=Declarations(parameters=tuple(declared), configs=INSPECTION.configs, digest="3" * 64))
    kernel = resolved(op.kernel("rows"), SM90.name)
    candidates = list(candidates_for(replace(op, workload=(problem(R=1, D=1),)), kernel, {"num_warps": 4}, SM90))
    assert candidates
    for candidate in candidates:
        bounds = [g.key() for g in requirements(op, candidate) if "stride.x.0" in g.key()]
        wanted = [] if most is None else [f"(stride.x.0 <= {most})", f"(stride.x.0 >= {least})"]
        assert [b for b in bounds if "%" not in b] == wanted


def narrow(op: Operator, *names: str) -> Operator:
    """With these integers of the Triton kernels at 32 bits."""
    return replace(
        op,
        kernels=tuple(
            k if k.triton is None else replace(k, triton=replace(k.triton, narrow=names)) for k in op.kernels
        ),
    )


def test_a_narrow_integer_has_32_bits_and_a_guard() -> None:
    """As offsets of block pointers and descriptors must."""
    op = narrow(operator(), "n_cols", "rows")
    special, plain = pins(op, problem(R=4, D=1000))
    assert plain == {"bias_ptr.none": 1, "BLOCK": 1024, "x_row.bits": 64}
    assert special == pins(operator(), problem(R=4, D=1000))[0]
    one = next(c for c in candidates_for(op, resolved(op.kernel("rows"), SM90.name), {"num_warps": 4}, SM90))
    plain_one = candidate_for(op, op.kernel("rows"), {"num_warps": 4}, SM90, op.workload[0])
    assert [r.key() for r in requirements(op, plain_one) if "2147483647" in r.key()] == [
        "(R <= 2147483647)", "(D <= 2147483647)"
    ]  # fmt: skip
    signature = read_recipe(Renderer([]).render(op, plain_one, SM90).source).signature
    assert [signature[n] for n in ("x_row", "rows", "n_cols")] == ["i64", "i32", "i32"]
    assert one.pins != plain_one.pins
    with pytest.raises(SpecError, match=r"'rows\.py:rows' has no argument 'n_col'(.|\n)*'n_cols'"):
        bind(narrow(op, "n_col"), narrow(op, "n_col").kernel("rows"), SM90.name)


def test_a_generic_kernel_has_narrow_integers_only_where_every_call_has() -> None:
    given = {**ARGUMENTS, "BLOCK": 1024, "bias_ptr": None}
    op = operator(given)
    for legal, right in (((), False), ((D <= 65536,), True), ((R <= 65536,), False)):
        limited = narrow(replace(op, legal=legal), "n_cols")
        kernel = replace(limited.kernel("rows"), generic=True, requires=())
        if right:
            candidate = candidate_for(limited, kernel, {"num_warps": 4}, SM90)
            assert candidate.pins == {"rows.bits": 64, "x_row.bits": 64}
        else:
            with pytest.raises(SpecError, match=r"'n_cols' is narrow(.|\n)*add D < 2\*\*31 to `legal`"):
                candidate_for(limited, kernel, {"num_warps": 4}, SM90)


def test_a_launch_option_of_a_heuristic_is_that_of_the_call() -> None:
    warps = where(D > 1000, 8, 4)
    inspection = Declarations(
        parameters=INSPECTION.parameters,
        configs=({"num_stages": 2}, {"num_stages": 2}, {"num_stages": 3}),
        heuristics={"num_warps": warps.data()},
        digest="5" * 64,
    )
    op = operator(inspection=inspection)
    kernel = resolved(op.kernel("rows"), SM90.name)
    assert kernel.listed == ({"num_stages": 2}, {"num_stages": 3}), "configs that are equal now are one"
    for size, count in ((1000, 4), (1024, 8)):
        candidate = candidate_for(op, kernel, {"num_stages": 2}, SM90, problem(R=4, D=size))
        assert candidate.pins["option.num_warps"] == count
        assert (warps == count).key() in [g.key() for g in requirements(op, candidate)]
    own = replace(kernel.triton, options={"num_warps": 16})
    fixed = replace(op, kernels=(op.kernel("generic"), replace(op.kernel("rows"), triton=own)))
    candidate = candidate_for(fixed, fixed.kernel("rows"), {}, SM90, problem(R=4, D=1024))
    assert "option.num_warps" not in candidate.pins


@pytest.mark.parametrize(
    ("grid", "wanted"),
    [
        ((R, D), ["(D <= 65535)"]),
        (lambda meta: (1, R // 8, (R * D + 63) // 64), ["((R // 8) <= 65535)", "((((R * D) + 63) // 64) <= 65535)"]),
        ((R, 4, device("multiprocessors")), []),
        ((R, D // stride("x", 0)), []),  # dispatch divides by nothing that may be 0
        ((R, "D"), []),  # which the renderer refuses
    ],
)
def test_a_grid_is_as_long_as_devices_take_it(grid: Any, wanted: list[str]) -> None:
    """Calls beyond it go to another variant: the driver would refuse them."""
    op = operator()
    function = replace(op.kernel("rows").triton, grid=grid)
    op = replace(op, kernels=(op.kernel("generic"), replace(op.kernel("rows"), triton=function)))
    found = candidates_for(op, resolved(op.kernel("rows"), SM90.name), {"num_warps": 4}, SM90)
    assert [g.key() for g in requirements(op, next(found)) if g.key().endswith("65535)")] == wanted


def test_a_default_is_a_text_whatever_tensor_has_that_name() -> None:
    declared = (*INSPECTION.parameters[:-1], parameter("SPLIT", constexpr=True, has_default=True, default="bias"))
    op = operator(inspection=Declarations(parameters=declared, digest="6" * 64))
    (split,) = (a for a in bind(op, op.kernel("rows"), SM90.name) if a.name == "SPLIT")
    assert (split.kind, split.value) == ("constant", "bias")


@pytest.mark.parametrize(("option", "pinned"), [(8, {}), (where(D > 1000, 8, 4), {"option.num_warps": 8})])
def test_an_argument_of_a_launch_options_name_is_the_option(option: Any, pinned: dict[str, int]) -> None:
    declared = (*INSPECTION.parameters, parameter("num_warps", constexpr=True, has_default=True, default=4))
    op = operator(inspection=Declarations(parameters=declared, digest="7" * 64))
    rows = op.kernel("rows")
    function = replace(rows.triton, options={"num_warps": option})
    op = replace(op, kernels=(op.kernel("generic"), replace(rows, triton=function)))
    candidate = candidate_for(op, op.kernel("rows"), {}, SM90, problem(R=4, D=1024))
    recipe = read_recipe(Renderer([]).render(op, candidate, SM90).source)
    assert {n: v for n, v in candidate.pins.items() if n.startswith("option")} == pinned
    assert (recipe.constexprs["num_warps"], recipe.options["num_warps"]) == (8, 8)
