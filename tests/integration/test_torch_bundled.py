"""The bundled operators under torch.ops, by Python and by the shim: gradients."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch_library import rows, shim_cache

from aot_tune.torch import Backward, BackwardCall, Registered, register

Tensor = Any


def silu_mul_backward(call: BackwardCall, gradient: Tensor) -> dict[str, Tensor]:
    sigmoid = torch.sigmoid(call.gate)
    gate = gradient * call.up * sigmoid * (1 + call.gate * (1 - sigmoid))
    return {"gate": gate, "up": gradient * call.gate * sigmoid}


def rms_norm_backward(
    call: BackwardCall, gradient: Tensor, added_gradient: Tensor | None = None
) -> dict[str, Tensor | None]:
    x = call.x if call.residual is None else call.x + call.residual
    scale = torch.rsqrt(x.square().mean(1, keepdim=True) + call.eps)
    weighted = gradient if call.weight is None else gradient * call.weight
    found = scale * (weighted - x * scale.square() * (weighted * x).mean(1, keepdim=True))
    found = found if added_gradient is None else found + added_gradient
    weight = (gradient * x * scale).sum(0) if "weight" in call.needs else None
    return {"x": found, "residual": None if call.residual is None else found, "weight": weight}


@pytest.fixture(scope="module", params=["python", "shim"])
def registered(ops: ModuleType, request: pytest.FixtureRequest) -> Iterator[Registered]:
    with shim_cache(request.config):
        backward: dict[str, Backward] = {"silu_mul": silu_mul_backward, "rms_norm": rms_norm_backward}
        yield register(ops, f"bundled_{request.param}", backward=backward, shim=request.param == "shim")


@pytest.fixture
def space(registered: Registered) -> Any:
    return getattr(torch.ops, registered.namespace)


def reference_norm(x: Tensor, weight: Tensor, residual: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    return torch.nn.functional.rms_norm(x if residual is None else x + residual, x.shape[1:], weight, eps)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_gradients_of_functions_that_were_given(space: Any, *, compiled: bool) -> None:
    def net(gate: Tensor, up: Tensor, weight: Tensor) -> Tensor:
        y, added = space.rms_norm.all_outputs(space.silu_mul(gate, up), weight, up, eps=0.1)
        return (space.rms_norm(y, weight).sin() + added).sum()

    def same(gate: Tensor, up: Tensor, weight: Tensor) -> Tensor:
        x = torch.nn.functional.silu(gate) * up
        y = reference_norm(x, weight, up, 0.1)
        return (reference_norm(y, weight).sin() + x + up).sum()

    tensors = [rows(*shape, seed=i).requires_grad_() for i, shape in enumerate(((9, 6), (9, 6), (6,)))]
    run = torch.compile(net, fullgraph=True, backend="aot_eager") if compiled else net
    got, want = (torch.autograd.grad(f(*tensors), tensors) for f in (run, same))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    few = torch.autograd.grad(run(tensors[0], *(t.detach() for t in tensors[1:])), tensors[0])[0]
    torch.testing.assert_close(few, want[0], rtol=1e-4, atol=1e-4)


def test_what_a_backward_must_return(ops: ModuleType, registered: Registered, space: Any) -> None:
    x = rows(3, 4).requires_grad_()
    wrong: dict[str, Backward] = {"softmax": lambda call, g: {"y": g}, "silu_mul": lambda call, g: {}}
    made = register(ops, f"{registered.namespace}_wrong", backward=wrong, shim=registered.shim)
    other = getattr(torch.ops, made.namespace)
    assert made.differentiable == ("softmax", "silu_mul")
    with pytest.raises(ops.CallError, match="softmax: its backward function returns a gradient for 'y', which is not"):
        other.softmax(x).sum().backward()
    with pytest.raises(ops.CallError, match="silu_mul: its backward function returns no gradient for 'gate'"):
        other.silu_mul(x, x.detach()).sum().backward()
    with pytest.raises(ops.ArgumentValueError, match="tensor 'x' requires a gradient"):
        space.softmax(x)
    with pytest.raises(ops.ArgumentValueError, match="tensor 'gate' requires a gradient"):
        space.silu_mul.out(x, x, out=torch.empty(3, 4))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(rows(3, 4), rows(3, 4))  # type: ignore[no-untyped-call]
        with pytest.raises(ops.ArgumentValueError, match="carries a forward-mode gradient"):
            space.silu_mul(dual, rows(3, 4))
