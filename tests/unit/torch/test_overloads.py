"""Overloads and schemas that follow from signatures, and fake calls of them; no library is needed."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import pytest
import torch

from aot_tune.signatures.operator_signature import OperatorSignature, read_signatures
from aot_tune.torch import TorchError
from aot_tune.torch.fake_calls import FakeCall
from aot_tune.torch.schemas import schema_of

N = ["fact", "N"]
X = {"name": "x", "dtype": "f32", "shape": [N]}
BOUND = [{"dim": "N", "tensor": "x", "axis": 0, "value": ["fact", ".extent"]}]


def tensor(name: str, dtype: str = "f32", **flags: bool) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": [N], **flags}


def module_of(*operators: dict[str, Any], schema: int = 1) -> ModuleType:
    """A module that says what it is given, with errors of its own."""
    made = ModuleType("stand_in")
    errors = {n: type(n, (kind,), {}) for n, kind in (("ArgumentTypeError", TypeError), ("CallError", RuntimeError))}
    errors["ArgumentValueError"] = type("ArgumentValueError", (ValueError,), {})
    vars(made).update(errors, operators=(), signatures=lambda: {"schema": schema, "operators": list(operators)})
    return made


def operator(*tensors: dict[str, Any], **given: Any) -> dict[str, Any]:
    plain = {"name": "f", "documentation": "", "bound": BOUND, "dtypes": {}, "scalars": [], "attributes": []}
    return {**plain, "tensors": list(tensors), **given}


def signature(*tensors: dict[str, Any], **given: Any) -> OperatorSignature:
    (found,) = read_signatures(module_of(operator(*tensors, **given)), TorchError)
    return found


def schemas(*tensors: dict[str, Any], **given: Any) -> list[str]:
    op = signature(*tensors, **given)
    return [schema_of(op, overload) for overload in op.overloads()]


def test_one_output() -> None:
    assert schemas(X, tensor("y", output=True)) == ["f(Tensor x) -> Tensor", "f.out(Tensor x, *, Tensor(a!) y) -> ()"]


def test_no_output_and_tensors_in_place() -> None:
    """There is nothing that an overload `out` would take."""
    assert schemas(tensor("bias", optional=True, inout=True), {**X, "inout": True}) == [
        "f(Tensor(a!) x, Tensor(b!)? bias=None) -> ()"
    ]


def test_optional_outputs_are_made_together() -> None:
    made = schemas(X, tensor("a", output=True, optional=True), tensor("b", output=True, optional=True))
    assert made == [
        "f(Tensor x) -> ()",
        "f.all_outputs(Tensor x) -> (Tensor, Tensor)",
        "f.out(Tensor x, *, Tensor(a!)? a=None, Tensor(b!)? b=None) -> ()",
    ]


def test_outputs_that_must_be_passed() -> None:
    assert schemas(X, tensor("y", "T", output=True, to_pass=True), dtypes={"T": ["f32", "bf16"]}) == [
        "f(Tensor x, *, Tensor(a!) y) -> ()"
    ]


def test_scalars_and_attributes() -> None:
    scalars = [
        {"name": "a", "dtype": "f32"},
        {"name": "b", "dtype": "f64", "default": 1e-30},
        {"name": "c", "dtype": "f32", "default": math.inf},
        {"name": "d", "dtype": "i64", "default": -(2**63)},
        {"name": "e", "dtype": "bool", "default": True},
        {"name": "n", "dtype": "u8"},
    ]
    bound = [*BOUND, {"dim": "M", "scalar": "n"}]
    attributes = [{"name": "kind", "choices": ["one", "two"]}]
    (schema,) = schemas({**X, "inout": True}, scalars=scalars, bound=bound, attributes=attributes)
    assert schema == (
        "f(Tensor(a!) x, *, float a, float b=1e-30, float? c=None, int d=-9223372036854775808, bool e=True, SymInt n, "
        'str kind="one") -> ()'
    )
    torch._C.parse_schema(f"a_namespace::{schema}")


def fake(module: ModuleType, op: OperatorSignature, name: str = "") -> FakeCall:
    (overload,) = (o for o in op.overloads() if o.name == name)
    return FakeCall(module, op, overload, differentiable=False)


def test_a_fake_call_makes_outputs_like_the_library() -> None:
    wide = {"name": "y", "dtype": "T", "shape": [["*", ["const", 2], N], ["const", 3]], "output": True}
    module = module_of(operator({**X, "dtype": "T"}, wide, dtypes={"T": ["f32", "bf16"]}))
    (op,) = read_signatures(module, TorchError)
    made = fake(module, op)(torch.empty(10, dtype=torch.bfloat16, device="meta")[::2])
    assert (made.shape, made.dtype, made.stride(), made.device.type) == ((10, 3), torch.bfloat16, (3, 1), "meta")
    out = torch.empty(10, 3, device="meta")
    assert fake(module, op, "out")(torch.empty(5, device="meta"), y=out) is None
    with pytest.raises(module.ArgumentValueError, match="f: tensor 'y' has extent 10 at axis 0, wanted 12"):
        fake(module, op, "out")(torch.empty(6, device="meta"), y=out)
    with pytest.raises(module.ArgumentTypeError, match=r"f: tensor 'y' is f32, tensor 'x' bf16; wanted the same dtype"):
        fake(module, op, "out")(torch.empty(5, dtype=torch.bfloat16, device="meta"), y=out)
    with pytest.raises(module.ArgumentTypeError, match=r"'x' is torch\.int8, wanted f32 or bf16"):
        fake(module, op)(torch.empty(5, dtype=torch.int8, device="meta"))
    with pytest.raises(module.ArgumentValueError, match="'y' is on cpu, tensor 'x' on meta; wanted one device"):
        fake(module, op, "out")(torch.empty(5, device="meta"), y=torch.empty(10, 3))
    with pytest.raises(module.ArgumentValueError, match=r"'x' requires a gradient, .* pass backward="):
        fake(module, op)(torch.empty(5, device="meta", requires_grad=True))


def test_a_name_that_torch_cannot_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a graph; where calls are not compiled it is a name like any other, and so where nothing is written to."""
    attributes = [{"name": "mode", "choices": ["one"]}]
    module = module_of(operator(X, tensor("y", output=True), attributes=attributes))
    (op,) = read_signatures(module, TorchError)
    x, y = (torch.empty(3, device="meta") for _ in range(2))
    assert fake(module, op, "out")(x, y=y) is None
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert fake(module, op)(x, mode="one").shape == (3,)
    with pytest.raises(module.CallError, match=r"f: torch\.compile takes no operator .* called 'mode'"):
        fake(module, op, "out")(x, y=y)
