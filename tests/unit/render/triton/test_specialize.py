"""What a Triton function is compiled for, which calls that code takes, and what no code can be right for."""

from collections.abc import Callable
from typing import Any

import pytest
from small_operators import make_operator

from aot_tune.render import candidate_for, candidates_for, generic_candidates, requirements, resolved
from aot_tune.spec import (
    Attribute,
    Declarations,
    Descriptor,
    Kernel,
    KernelParameter,
    Operator,
    Problem,
    Scalar,
    Target,
    Tensor,
    TritonFunction,
    all_of,
    attribute,
    device,
    dims,
    next_power_of_2,
    problem,
    stride,
)
from aot_tune.spec import parameter as config_value
from aot_tune.support.errors import SpecError

R, D = dims("R D")
SM90 = Target(name="cuda-sm_90a", family="cuda", level=90, last=90)
DECLARED = Declarations(
    parameters=(
        KernelParameter(name="x_ptr"),
        KernelParameter(name="bias_ptr"),
        KernelParameter(name="y_ptr"),
        KernelParameter(name="x_row"),
        KernelParameter(name="rows", special=False),
        KernelParameter(name="n_cols"),
        KernelParameter(name="BLOCK", constexpr=True),
        KernelParameter(name="SPLIT", constexpr=True, has_default=True, default=2),
    ),
    configs=({"num_warps": 4, "maxnreg": None}, {"num_warps": 8, "maxnreg": None}),
    digest="0" * 64,
)
ARGUMENTS: dict[str, Any] = {
    "x_ptr": "x", "bias_ptr": "bias", "y_ptr": "y", "x_row": stride("x", 0), "rows": R, "n_cols": D,
    "BLOCK": next_power_of_2(D),
}  # fmt: skip
ONE = problem(R=4, D=1024)


def operator(
    arguments: dict[str, Any] | None = None,
    declared: Declarations = DECLARED,
    requires: tuple[Any, ...] = (stride("x", 1) == 1,),
    function: dict[str, Any] | None = None,
    **given: Any,
) -> Operator:
    """Rows with a Triton function; `arguments` are added to those that it has."""
    called = TritonFunction("rows.py:rows", {**ARGUMENTS, **(arguments or {})}, **{"grid": (R,), **(function or {})})
    tensors = (
        Tensor("x", (R, D), "bf16"),
        Tensor("bias", (D,), "bf16", optional=True),
        Tensor("y", (R, D), "bf16", output=True),
    )
    kernel = Kernel("rows", backend="triton", triton=called.inspected({SM90.name: declared}), requires=requires)
    return make_operator(kernel, **{"name": "rows", "extents": "R D", "tensors": tensors, "workload": (ONE,), **given})


def taken(op: Operator, other: Problem) -> list[bool]:
    """Whether the candidates of a config take a call: that with the JIT's assumptions, and that without."""
    kernel = resolved(op.kernel("rows"), SM90.name)
    found = candidates_for(op, kernel, {"num_warps": 4}, SM90)
    return [all_of(requirements(op, c), op.facts(other)) for c in found]


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
def test_calls_that_the_code_is_right_for_are_let_in(other: Problem, special: bool, plain: bool) -> None:
    op = operator(function={"options": {"num_warps": R}})  # the configs have their own
    assert taken(op, other) == [special, plain]


@pytest.mark.parametrize(
    ("op", "bad"),
    [
        # What a tensor map needs
        *(
            (operator({"x_ptr": Descriptor("x", (1, 64))}), problem(R=4, D=1024, **given))
            for given in (
                {"alignment": {"x": 8}},
                {"strides": {"x": (1028, 1)}},
                {"strides": {"x": (0, 1)}},
                {"order": {"x": (1, 0)}},
            )
        ),
        # It stores whole 16 bytes, and would write behind other rows
        (operator({"y_ptr": Descriptor("y", (1, 64)), "BLOCK": 64}), problem(R=4, D=1020, strides={"y": (1024, 1)})),
        # Grids that devices do not take
        (operator(function={"grid": (1, R)}), problem(R=65536, D=1024)),
        # Integers of 32 bits, by the author's word
        (operator(function={"narrow": ("rows",)}), problem(R=2**31, D=1024)),
        (operator(requires=(D % (config_value("num_warps") * 512) == 0,), workload=(problem(R=4, D=2048),)), ONE),
    ],
)
def test_calls_that_it_is_wrong_for_are_kept_away(op: Operator, bad: Problem) -> None:
    assert any(taken(op, op.workload[0]))
    assert not any(taken(op, bad))


@pytest.mark.parametrize(("annotation", "least", "most"), [("i8", -128, 127), ("u16", 0, 65535)])
def test_an_integer_fits_the_type_that_its_function_says(annotation: str, least: int, most: int) -> None:
    """Calls beyond it go to another variant: the launcher would refuse them."""
    parameters = [annotated(p, annotation) if p.name == "x_row" else p for p in DECLARED.parameters]
    declared = Declarations(parameters=tuple(parameters), configs=DECLARED.configs, digest="3" * 64)
    op = operator(declared=declared, workload=(problem(R=1, D=1),))
    for step in (least, most):
        assert any(taken(op, problem(R=3, D=1, strides={"x": (step, 1)})))
    for step in (least - 1, most + 1):
        assert not any(taken(op, problem(R=3, D=1, strides={"x": (step, 1)})))


def annotated(parameter: KernelParameter, annotation: str) -> KernelParameter:
    return KernelParameter(name=parameter.name, annotation=annotation)


def test_pruned_configs_have_no_candidate() -> None:
    declared = Declarations(
        parameters=DECLARED.parameters, configs=DECLARED.configs, pruned={ONE.id: [1]}, digest="1" * 64
    )
    op = operator(declared=declared)
    kernel = resolved(op.kernel("rows"), SM90.name)
    assert [len(list(candidates_for(op, kernel, {"num_warps": n}, SM90))) for n in (4, 8)] == [0, 2]


def of_one_config(op: Operator) -> Any:
    kernel = resolved(op.kernel("rows"), SM90.name)
    return next(candidates_for(op, kernel, {"num_warps": 4}, SM90))


def for_every_call(op: Operator) -> Any:
    return candidate_for(op, op.kernel("rows"), {"num_warps": 4}, SM90)


def of_combinations(op: Operator) -> Any:
    return generic_candidates(op, op.kernel("rows"), {}, SM90, {})


def test_a_generic_function_has_a_code_for_each_combination() -> None:
    op = operator({"BLOCK": 64, "SPLIT": attribute("a0")}, attributes=(Attribute("a0", ("no", "yes")),))
    found = [(c.pins["SPLIT"], c.pins["bias_ptr.none"], requirements(op, c)) for c in of_combinations(op)]
    assert [(split, none) for split, none, _ in found] == [(0, 1), (0, 0), (1, 1), (1, 0)]
    for split, none, guards in found:
        assert [g.key() for g in guards[1:]] == [f"(present.bias == {1 - none})", f"(attribute.a0 == {split})"]


CONFIGS = Declarations(parameters=DECLARED.parameters, configs=({"BLOCK": 64, "num_warps": 4},), digest="2" * 64)
CHOICES = tuple(Attribute(f"a{i}", tuple(f"c{k}" for k in range(16))) for i in range(2))


@pytest.mark.parametrize(
    ("make", "op", "message"),
    [
        (of_one_config, lambda: operator({"BLOCK": device("multiprocessors")}), "constexpr 'BLOCK' depends on the dev"),
        (of_one_config, lambda: operator({"SPLIT": "eps"}, scalars=(Scalar("eps"),)), "is a constexpr, but 'eps' is a"),
        (of_one_config, lambda: operator({"x_ptr": "xx"}), "argument 'x_ptr': 'xx' is no tensor or scalar"),
        (of_one_config, lambda: operator(declared=CONFIGS), "'BLOCK' is in `arguments` and in the configs"),
        (
            of_one_config,
            lambda: operator(requires=(D % config_value("num_warp") == 0,)),
            r"unknown parameter 'num_warp'\n  fix: did you mean 'num_warps'",
        ),
        (of_one_config, lambda: operator(function={"narrow": ("n_col",)}), r"no argument 'n_col'(.|\n)*'n_cols'"),
        (for_every_call, operator, r"for every call: argument 'BLOCK' is next_power_of_2\(D\), a constant that dep"),
        (
            for_every_call,
            lambda: operator({"BLOCK": 64, "bias_ptr": None}, requires=(), function={"narrow": ("n_cols",)}),
            r"'n_cols' is narrow(.|\n)*add D < 2\*\*31 to `legal`",
        ),
        (
            for_every_call,
            lambda: operator({"BLOCK": 64, "bias_ptr": None, "y_ptr": Descriptor("y", (1, 64))}, requires=()),
            "is a descriptor, which needs ",
        ),
        (
            of_combinations,
            lambda: operator({"BLOCK": attribute("a0"), "SPLIT": attribute("a1")}, attributes=CHOICES),
            r"there are 512 combinations of (.|\n)*a code of its own(.|\n)*64 are",
        ),
    ],
)
def test_what_no_code_can_be_right_for_is_refused(
    make: Callable[[Operator], Any], op: Callable[[], Operator], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        make(op())
