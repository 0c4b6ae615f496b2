"""What a build asks of the processes that read Triton functions, and what becomes of their answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from places import ROOT

from aot_tune.compile import generic_targets, target_by_name
from aot_tune.plan.library_plan import Request, make_plan
from aot_tune.spec import Declarations, Descriptor, KernelParameter, Operator
from aot_tune.spec.load_operators import load_operators
from aot_tune.support.errors import BuildError, ToolchainError
from aot_tune.triton import client
from aot_tune.triton.read_declarations import read_functions, with_declarations
from aot_tune.triton.triton_messages import Answer, Fault, InspectRequest

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
