"""What a build asks of the processes that read Triton functions, and what becomes of their answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from places import ROOT

from aot_tune.compile import families_of, generic_targets, target_by_name, toolchain_for
from aot_tune.plan.library_plan import Request, make_plan
from aot_tune.spec import Declarations, Descriptor, KernelParameter, Operator, Target, Tensor
from aot_tune.spec.load_operators import load_operators
from aot_tune.support.errors import BuildError, ToolchainError
from aot_tune.triton import client
from aot_tune.triton.read_declarations import FAMILIES, read_functions, with_declarations
from aot_tune.triton.triton_messages import Answer, Fault, FunctionRequest, InspectRequest

EXAMPLE = ROOT / "examples" / "triton_package" / "templates"
CPU, SM90 = target_by_name("cpu-x86-64"), target_by_name("cuda-sm_90a")


@pytest.fixture
def operators() -> dict[str, Operator]:
    return {name: op for name, (_, op) in load_operators([EXAMPLE]).items()}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[InspectRequest]:
    """What the processes are asked; each function has one parameter more than the last."""
    requests: list[InspectRequest] = []

    def answer(request: InspectRequest, *_: Any, **__: Any) -> list[Answer]:
        requests.append(request)
        known = Declarations(parameters=(KernelParameter(name="x"),), digest="0" * 64)
        return [Answer(name=f.name, inspection=known) for f in request.functions]

    monkeypatch.setattr(client, "inspect", answer)
    return requests


def asked_for(target: Target, asked: list[InspectRequest]) -> list[FunctionRequest]:
    """The functions that are asked for a target."""
    (request,) = (r for r in asked if r.target == target.name)
    return request.functions


def test_each_target_is_asked_for_once_and_the_baseline_for_generic_kernels(
    operators: dict[str, Operator], asked: list[InspectRequest]
) -> None:
    found, note = read_functions(operators, [SM90], generic_targets([SM90]), [EXAMPLE], {})
    assert note == ""
    assert sorted(r.target for r in asked) == ["cuda-ptx_80", "cuda-sm_90a"]
    assert sorted(f.name for f in asked_for(SM90, asked)) == [
        "rms_norm/generic",
        "rms_norm/rows",
        "swiglu/generic",
        "swiglu/whole_row",
    ]
    assert set(found["rms_norm/rows"]) == {"cuda-ptx_80", "cuda-sm_90a"}


def test_a_function_is_asked_for_with_all_that_it_may_be_passed(
    operators: dict[str, Operator], asked: list[InspectRequest]
) -> None:
    read_functions(operators, [SM90], generic_targets([SM90]), [EXAMPLE], {})
    (rows,) = (f for f in asked_for(SM90, asked) if f.name == "rms_norm/rows")
    assert rows.function == "kernels.py:rms_norm"
    assert {n: g.kind for n, g in rows.arguments.items()} == {
        "out_ptr": "pointer",
        "x_ptr": "pointer",
        "weight_ptr": "pointer",
        "rows": "integer",
        "columns": "integer",
        "out_stride": "integer",
        "x_stride": "integer",
    }
    assert {n: g.kind for n, g in rows.operands.items()} == {
        "x": "pointer",
        "weight": "pointer",
        "out": "pointer",
        "eps": "scalar",
        "R": "integer",
        "D": "integer",
    }
    x = rows.arguments["x_ptr"].tensor
    assert x is not None
    assert (x.dtypes, x.dtype_fact, x.strides) == (
        ["bf16", "f16", "f32"],
        "dtype.T",
        [["fact", "stride.x.0"], ["fact", "stride.x.1"]],
    )
    assert {p.facts["R"] for p in rows.problems} == {1, 64, 4096}


def test_a_build_for_cpus_asks_nothing(operators: dict[str, Operator], asked: list[InspectRequest]) -> None:
    assert read_functions(operators, [CPU], generic_targets([CPU]), [EXAMPLE], {}) == ({}, "")
    assert asked == []
    assert with_declarations(operators["swiglu"], {}, ["cpu"]) is operators["swiglu"]


def test_without_triton_its_kernels_are_left_out_unless_nothing_else_answers(
    operators: dict[str, Operator], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: Any, **__: Any) -> list[Answer]:
        raise ToolchainError("Triton is not installed", fix="pip install triton")

    monkeypatch.setattr(client, "inspect", missing)
    bundled = {name: op for name, (_, op) in load_operators([EXAMPLE.parents[2] / "templates"], ["softmax"]).items()}
    found, note = read_functions(bundled, [SM90], generic_targets([SM90]), [EXAMPLE], {})
    assert found == {}
    assert note == "Triton kernels are left out: Triton is not installed; pip install triton"
    left = with_declarations(bundled["softmax"], found, ["cpu", "cuda"])
    assert {k.backend for k in left.kernels} == {"cxx", "nvcc"}
    with pytest.raises(BuildError, match="its generic kernel 'generic' is a Triton function: Triton is not") as caught:
        read_functions(operators, [SM90], generic_targets([SM90]), [EXAMPLE], {})
    assert caught.value.fix == "pip install triton"


def test_a_function_that_cannot_be_read_ends_the_build(
    operators: dict[str, Operator], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault(what="kernels.py:rms_norm: its heuristic reads a tensor", why="it calls x.item()", fix="declare it")
    answers = [Answer(name="rms_norm/rows", fault=fault)]
    monkeypatch.setattr(client, "inspect", lambda *_, **__: answers)
    with pytest.raises(BuildError, match="its heuristic reads a tensor") as caught:
        read_functions(operators, [SM90], generic_targets([SM90]), [EXAMPLE], {})
    assert (caught.value.why, caught.value.fix) == ("it calls x.item()", "declare it")


def test_a_library_without_any_variant_is_refused() -> None:
    request = Request(name="ops", prefix="mine", header="ops.h", templates=(str(EXAMPLE),))
    with pytest.raises(BuildError, match="has kernels for cuda and hip only") as caught:
        make_plan(request, {"AOT_TUNE_TARGETS": "cpu-x86-64", "HOME": "/nowhere", "PATH": "/usr/bin:/bin"})
    assert "AOT_TUNE_TARGETS=cuda-sm_90a" in caught.value.fix


def _answering(monkeypatch: pytest.MonkeyPatch, **declared: Any) -> None:
    known = Declarations(parameters=(KernelParameter(name="x"),), digest="0" * 64, **declared)

    def answer(request: InspectRequest, *_: Any, **__: Any) -> list[Answer]:
        return [Answer(name=f.name, inspection=known) for f in request.functions if f.name == "rms_norm/rows"]

    monkeypatch.setattr(client, "inspect", answer)


def test_hooks_are_refused_unless_what_they_do_is_declared(
    operators: dict[str, Operator], monkeypatch: pytest.MonkeyPatch
) -> None:
    _answering(monkeypatch, hooks=True)
    with pytest.raises(BuildError, match=r"'rows': 'kernels.py:rms_norm' has configs with a pre_hook") as caught:
        read_functions(operators, [SM90], [], [EXAMPLE], {})
    assert "hooks_declared=True" in caught.value.fix
    op = operators["rms_norm"]
    kernels = [
        replace(k, triton=replace(k.triton, hooks_declared=True)) if k.triton is not None else k for k in op.kernels
    ]
    declared = replace(op, kernels=tuple(kernels))
    found, _ = read_functions({"rms_norm": declared}, [SM90], [], [EXAMPLE], {})
    assert set(found) == {"rms_norm/rows"}


def test_a_function_that_changes_an_input_is_refused(
    operators: dict[str, Operator], monkeypatch: pytest.MonkeyPatch
) -> None:
    _answering(monkeypatch, restore_value=("out_ptr",))
    read_functions(operators, [SM90], [], [EXAMPLE], {})
    _answering(monkeypatch, restore_value=("x_ptr",))
    with pytest.raises(
        BuildError, match=r"changes its argument 'x_ptr' \(restore_value\), which is passed the input 'x'"
    ):
        read_functions(operators, [SM90], [], [EXAMPLE], {})
    rows = operators["rms_norm"].kernel("rows")
    assert rows.triton is not None
    given = {**rows.triton.arguments, "x_ptr": Descriptor("x", (1, 64))}
    described = replace(rows, triton=replace(rows.triton, arguments=given))
    one = replace(operators["rms_norm"], kernels=(described, operators["rms_norm"].kernel("generic")))
    with pytest.raises(BuildError, match="which is passed the input 'x'") as caught:
        read_functions({"rms_norm": one}, [SM90], [], [EXAMPLE], {})
    assert caught.value.fix.startswith("declare the tensor with inout=True")


def test_a_function_may_change_what_is_declared_as_read_and_written(
    operators: dict[str, Operator], monkeypatch: pytest.MonkeyPatch
) -> None:
    op = operators["rms_norm"]
    x, *rest = op.tensors
    changed = Tensor(x.name, x.shape, x.dtype_name, inout=True)
    _answering(monkeypatch, restore_value=("x_ptr",))
    found, _ = read_functions({"rms_norm": replace(op, tensors=(changed, *rest))}, [SM90], [], [EXAMPLE], {})
    assert found["rms_norm/rows"]["cuda-sm_90a"].restore_value == ("x_ptr",)


def test_the_families_of_triton_are_those_of_its_toolchain() -> None:
    assert families_of(toolchain_for("triton")) == FAMILIES
