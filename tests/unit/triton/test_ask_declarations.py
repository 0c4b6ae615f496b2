"""What becomes of the answers of the processes that read Triton functions."""

from dataclasses import replace
from typing import Any

import pytest
from places import ROOT

from aot_tune.compile import generic_targets, target_by_name
from aot_tune.plan.library_plan import Request, make_plan
from aot_tune.spec import Declarations, Descriptor, KernelParameter, Operator, Tensor
from aot_tune.spec.load_operators import load_operator
from aot_tune.support.errors import BuildError, SentError, ToolchainError
from aot_tune.triton import ask_declarations
from aot_tune.triton.ask_declarations import read_functions, with_declarations
from aot_tune.triton.triton_messages import Answer, InspectRequest

EXAMPLE = ROOT / "examples" / "triton_package" / "templates"
SM90 = target_by_name("cuda-sm_90a")


def rms_norm(inout: bool = False, **changes: Any) -> Operator:
    """The example's operator, with changes of its tuned Triton function; x may be declared as written, too."""
    op = load_operator(EXAMPLE / "rms_norm")
    rows, (x, *rest) = op.kernel("rows"), op.tensors
    (declared,) = rows.triton_functions
    arguments = {**declared.arguments, **changes.pop("arguments", {})}
    function = replace(declared, arguments=arguments, **changes)
    tensors = (Tensor("x", x.shape, x.dtype_name, inout=inout), *rest)
    return replace(op, tensors=tensors, kernels=(replace(rows, triton=function), op.kernel("generic")))


def read(monkeypatch: pytest.MonkeyPatch, op: Operator, fault: SentError | None = None, **declared: Any) -> Any:
    known = Declarations(parameters=(KernelParameter(name="x"),), digest="0" * 64, **declared)

    def answer(request: InspectRequest, *_: Any, **__: Any) -> list[Answer]:
        names = [f.name for f in request.functions if f.name == "rms_norm/rows"]
        return [Answer(name=n, inspection=None if fault else known, fault=fault) for n in names]

    monkeypatch.setattr(ask_declarations, "inspect", answer)
    return read_functions({"rms_norm": op}, [SM90], [], [EXAMPLE], {})


UNREADABLE = SentError(
    what="kernels.py:rms_norm: its heuristic reads a tensor", why="it calls x.item()", fix="declare it"
)
MAP = {"x_ptr": Descriptor("x", (1, 64))}


@pytest.mark.parametrize(
    ("op", "said", "message", "fix"),
    [
        (rms_norm(), {"fault": UNREADABLE}, "its heuristic reads a tensor", "declare it"),
        (rms_norm(), {"hooks": True}, "'rows': 'kernels.py:rms_norm' has configs with a pre_hook", "hooks_declared"),
        (rms_norm(hooks_declared=True), {"hooks": True}, "", ""),
        (rms_norm(), {"restore_value": ("out_ptr",)}, "", ""),
        (
            rms_norm(),
            {"restore_value": ("x_ptr",)},
            r"changes its argument 'x_ptr' \(restore_value\), which is passed the input 'x'",
            "declare the tensor with inout=True",
        ),
        (rms_norm(arguments=MAP), {"restore_value": ("x_ptr",)}, "is passed the input 'x'", "declare the tensor with"),
        (rms_norm(inout=True), {"restore_value": ("x_ptr",)}, "", ""),
    ],
)
def test_what_functions_do_must_be_declared(
    monkeypatch: pytest.MonkeyPatch, op: Operator, said: dict[str, Any], message: str, fix: str
) -> None:
    if not message:
        found, note = read(monkeypatch, op, **said)
        assert (set(found), note) == ({"rms_norm/rows"}, "")
        return
    with pytest.raises(BuildError, match=message) as caught:
        read(monkeypatch, op, **said)
    assert fix in caught.value.fix


def test_without_triton_its_kernels_are_left_out_unless_nothing_else_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> list[Answer]:
        raise ToolchainError("Triton is not installed", fix="pip install triton")

    monkeypatch.setattr(ask_declarations, "inspect", missing)
    softmax = load_operator(ROOT / "templates" / "softmax")
    found, note = read_functions({"softmax": softmax}, [SM90], generic_targets([SM90]), [EXAMPLE], {})
    assert (found, note) == ({}, "Triton kernels are left out: Triton is not installed; pip install triton")
    assert {k.backend for k in with_declarations(softmax, found, ["cpu", "cuda"]).kernels} == {"cxx", "nvcc"}
    with pytest.raises(BuildError, match="its generic kernel 'generic' is a Triton function: Triton is not") as caught:
        read_functions({"rms_norm": rms_norm()}, [SM90], generic_targets([SM90]), [EXAMPLE], {})
    assert caught.value.fix == "pip install triton"


def test_a_library_without_any_variant_is_refused() -> None:
    request = Request(name="ops", prefix="mine", header="ops.h", templates=(str(EXAMPLE),))
    with pytest.raises(BuildError, match="has kernels for cuda and hip only") as caught:
        make_plan(request, {"AOT_TUNE_TARGETS": "cpu-x86-64", "HOME": "/nowhere", "PATH": "/usr/bin:/bin"})
    assert "AOT_TUNE_TARGETS=cuda-sm_90a" in caught.value.fix
