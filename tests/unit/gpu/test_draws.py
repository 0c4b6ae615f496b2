"""The calls that tests/gpu make: enough for the guards of every variant that a build for an H200 can keep."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import pytest
from places import ROOT

from aot_tune.compile import families_of, generic_targets, target_by_name, toolchain_for
from aot_tune.render import candidates_for, requirements, resolved
from aot_tune.spec import (
    Expr,
    Operator,
    alignment,
    all_of,
    dim,
    maximum,
    minimum,
    next_power_of_2,
    problem,
    stride,
    where,
)
from aot_tune.spec.load_operators import bundled_templates, load_operators, operator_folders
from aot_tune.support.errors import ToolchainError
from aot_tune.triton.read_declarations import read_functions, with_declarations

sys.path.insert(0, str(ROOT / "tests" / "gpu"))

import draws

EXAMPLE = ROOT / "examples" / "triton_package" / "templates"
FOLDERS = operator_folders([bundled_templates()])
TARGET = target_by_name("cuda-sm_90a")
SOFTMAX = load_operators([bundled_templates()], ["softmax"])["softmax"][1]
JIT = (
    dim("R") < 2147483648,
    stride("x", 1) == 1,
    stride("out", 1) == 1,
    alignment("x") >= 16,
    alignment("out") >= 16,
    stride("x", 0) % 16 == 0,
    dim("D") % 16 == 0,
    next_power_of_2(dim("D")) == 1024,
)
"""Such as what code of a Triton function requires that assumes what the JIT does."""


def load(root: Path, name: str) -> Operator:
    """An operator with what its Triton functions declare, and for the example with the workload of test_triton.py."""
    try:
        toolchain_for("triton").identity()
    except ToolchainError as error:
        pytest.skip(f"no Triton, which tells what its kernels require: {error.what}")
    one = load_operators([root], [name])[name][1]
    if root == EXAMPLE:
        dtypes = one.dtypes["T"]
        one = dataclasses.replace(
            one, workload=tuple(problem(**p.dims, dtypes={"T": t}) for p in one.workload_for("cuda") for t in dtypes)
        )
    known, note = read_functions({name: one}, [TARGET], generic_targets([TARGET]), [root], dict(os.environ))
    assert note == ""
    return with_declarations(one, known, ["cuda"])


def guards_of_all(operator: Operator) -> set[tuple[str, ...]]:
    """What its candidates for the target require, all but the generic ones, as a manifest has it."""
    found = set()
    for kernel in operator.kernels:
        if kernel.generic or TARGET.family not in families_of(toolchain_for(kernel.backend)):
            continue
        one = resolved(kernel, TARGET.name)
        for config in one.configs(TARGET.facts):
            for candidate in candidates_for(operator, one, config, TARGET):
                found.add(tuple(r.key() for r in requirements(operator, candidate)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("root", "name"),
    [*((f.parent, f.name) for f in FOLDERS), (EXAMPLE, "rms_norm"), (EXAMPLE, "swiglu")],
    ids=lambda v: v if isinstance(v, str) else v.parent.name,
)
def test_every_variant_gets_calls_that_its_guards_admit(root: Path, name: str) -> None:
    operator = load(root, name)
    every = guards_of_all(operator)
    assert every
    for texts in every:
        guards = draws.guards_of(operator, {}, texts)
        assert tuple(g.key() for g in guards) == texts
        made = draws.own_calls(operator, guards)
        served = [draws.called(operator, *c) for c in made if not draws.refusing(operator, guards, *c)]
        assert len(served) >= draws.LEAST, f"{len(served)} calls meet {texts}"
        for one in served:
            assert all_of((*operator.legal, *guards), operator.facts(one))
        assert len({str(operator.facts(one)) for one in served}) == len(served)


def test_calls_lack_the_alignment_alone() -> None:
    made = draws.own_calls(SOFTMAX, JIT)
    unaligned = [draws.refusing(SOFTMAX, JIT, *c) for c in made if c[1] == "unaligned"]
    assert unaligned
    assert all({g.key() for g in against} == {JIT[3].key(), JIT[4].key()} for against in unaligned)


def test_rows_that_are_padded_to_a_power_of_two_are_not_always_full() -> None:
    widths = {p.dims["D"] for p, layout in draws.own_calls(SOFTMAX, JIT) if not draws.refusing(SOFTMAX, JIT, p, layout)}
    assert len(widths) > 3
    assert all(512 < w <= 1024 and w % 16 == 0 for w in widths)


def test_calls_are_made_that_a_variant_must_serve_and_that_it_must_refuse() -> None:
    dtypes = {"T": "bf16"}
    guards = (*draws.guards_of(SOFTMAX, dtypes, []), *JIT)
    assert guards[0].key() == f"(dtype.T == {SOFTMAX.dtypes['T'].index('bf16')})"
    against = [draws.refusing(SOFTMAX, guards, *c) for c in draws.calls_of(SOFTMAX, guards, dtypes)]
    assert sum(not a for a in against) >= draws.LEAST
    alone = {a[0].key() for a in against if len(a) == 1}
    assert {g.key() for g in guards[-3:]} <= alone


def test_generic_variants_are_refused_nothing() -> None:
    dtypes = {"T": "f32"}
    guards = draws.guards_of(SOFTMAX, dtypes, [])
    calls = draws.calls_of(SOFTMAX, guards, dtypes)
    assert len(calls) > 50
    assert not any(draws.refusing(SOFTMAX, guards, *c) for c in calls)
    assert set(draws.LAYOUTS) == {layout for _, layout in calls}


@pytest.mark.parametrize(
    "expr",
    [
        where(dim("D") > 4096, 4096, next_power_of_2(dim("D"))) == 4096,
        (stride("out", 0) * 2) % 16 == 0,
        stride("x", 10) >= -(2**31),
        (dim("M") < 3) & (dim("N") != 4) | (minimum(dim("M"), 2) <= maximum(8192 // dim("N"), 1)),
        (dim("M") + dim("N")) - 1 > 0,
    ],
    ids=str,
)
def test_a_guard_of_a_manifest_is_read_back(expr: Expr) -> None:
    assert draws.expression(expr.key()).data() == expr.data()


@pytest.mark.parametrize("text", ["", "(D", "(D ** 2)", "(D < 2 < 3)", "D<2", "f(D)", "x[0]", "(D == 1.5)", "not D"])
def test_what_is_no_guard_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"manifest|expression|read as"):
        draws.expression(text)
