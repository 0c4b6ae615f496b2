"""The bundled operators under torch.ops, by Python and by the shim: checks of torch, values, gradients, the example."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from environments import ROOT
from torch_library import rows, shim_cache

from aot_tune.torch import Backward, BackwardCall, Registered, build_shim, register

Tensor = Any
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


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


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bias: Tensor, causal: str, scale: float) -> Tensor:
    """Attention in the dtype of its tensors; a query that sees no key is 0."""
    h, m, n = q.shape[1], q.shape[2], k.shape[2]
    read = torch.arange(h) * k.shape[1] // h
    scores = q @ k[:, read].transpose(2, 3) * (scale or q.shape[3] ** -0.5)
    scores = scores if bias is None else scores + bias
    scores = scores if mask is None else scores.masked_fill(~mask, float("-inf"))
    if causal != "none":
        shift = 0 if causal == "upper_left" else n - m
        scores = scores.masked_fill(torch.arange(n)[None] > torch.arange(m)[:, None] + shift, float("-inf"))
    return torch.nan_to_num(torch.softmax(scores, dim=3)) @ v[:, read]


class Draw:
    """Random calls of the bundled operators, each with its reference in float64."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.dtype = self.random.choice(DTYPES)
        self.seed = 100 * seed

    def tensor(self, *shape: int) -> Tensor:
        """Values of the call's dtype in a layout by chance."""
        self.seed += 1
        values = rows(*shape, dtype=self.dtype, seed=self.seed)
        kind = self.random.randrange(4)
        if kind == 1:
            return values.transpose(-1, -2).contiguous().transpose(-1, -2) if len(shape) > 1 else values
        if kind == 2:
            wide = torch.zeros(*shape[:-1], 2 * shape[-1] + 1, dtype=self.dtype)
            wide[..., 1::2] = values
            return wide[..., 1::2]
        return values.expand_as(values) if kind == 3 else values

    def maybe(self, *shape: int) -> Tensor | None:
        return self.tensor(*shape) if self.random.random() < 0.5 else None

    def sizes(self, count: int) -> list[int]:
        return [self.random.choice((1, 2, 3, 7, 16, 17, 33, 40)) for _ in range(count)]

    def gemm(self) -> tuple[Any, ...]:
        m, n, k = self.sizes(3)
        a, b, bias, residual = self.tensor(m, k), self.tensor(k, n), self.maybe(n), self.maybe(m, n)
        name = self.random.choice(list(ACTIVATIONS))
        y = a.double() @ b.double() + (0 if bias is None else bias.double())
        want = ACTIVATIONS[name](y) + (0 if residual is None else residual.double())
        return (a, b, bias, residual), {"activation": name}, want

    def batched_gemm(self) -> tuple[Any, ...]:
        batch, m, n, k = self.sizes(4)
        a, b = self.tensor(batch, m, k), self.tensor(batch, k, n)
        return (a, b), {}, a.double() @ b.double()

    def softmax(self) -> tuple[Any, ...]:
        x = self.tensor(*self.sizes(2))
        return (x,), {}, torch.softmax(x.double(), dim=1)

    def silu_mul(self) -> tuple[Any, ...]:
        r, d = self.sizes(2)
        gate, up = self.tensor(r, d), self.tensor(r, d)
        return (gate, up), {}, torch.nn.functional.silu(gate.double()) * up.double()

    def layer_norm(self) -> tuple[Any, ...]:
        r, d = self.sizes(2)
        x, weight, bias = self.tensor(r, d), self.maybe(d), self.maybe(d)
        eps = self.random.choice((1e-5, 0.1))
        doubles = (None if t is None else t.double() for t in (weight, bias))
        want = torch.nn.functional.layer_norm(x.double(), (d,), *doubles, eps)
        return (x, weight, bias), {} if eps == 1e-5 else {"eps": eps}, want

    def rms_norm(self) -> tuple[Any, ...]:
        r, d = self.sizes(2)
        x, weight, residual = self.tensor(r, d), self.maybe(d), self.maybe(r, d)
        added = x.double() + (0 if residual is None else residual.double())
        want = torch.nn.functional.rms_norm(added, (d,), None if weight is None else weight.double(), 0.01)
        return (x, weight, residual), {"eps": 0.01}, want

    def flash_attention(self) -> tuple[Any, ...]:
        batch, heads, m, n, d = self.sizes(5)
        shared = self.random.choice([s for s in range(1, heads + 1) if heads % s == 0])
        q, k, v = self.tensor(batch, heads, m, d), self.tensor(batch, shared, n, d), self.tensor(batch, shared, n, d)
        given: dict[str, Any] = {"causal": self.random.choice(("none", "upper_left", "lower_right")), "scale": 0.3}
        mask = (
            rows(batch, 1, 1, n, seed=self.seed).expand(batch, heads, m, n) > -1 if self.random.random() < 0.5 else None
        )
        bias = self.maybe(batch, heads, m, n)
        bias = bias if bias is None or self.random.random() < 0.5 else bias[:, :, :1].expand_as(bias)
        want = attended(*(t.double() for t in (q, k, v)), mask, bias if bias is None else bias.double(), **given)
        return (q, k, v, mask, bias), given, want


OPERATORS = ("batched_gemm", "flash_attention", "gemm", "layer_norm", "rms_norm", "silu_mul", "softmax")


@pytest.mark.parametrize("name", OPERATORS)
def test_random_calls_agree_with_torch(space: Any, ops: ModuleType, name: str) -> None:
    for seed in range(40):
        draw = Draw(seed)
        arguments, given, want = getattr(draw, name)()
        operator = getattr(space, name)
        made = operator(*arguments, **given)
        near = 1e-4 if draw.dtype == torch.float32 else 4e-2 if draw.dtype == torch.bfloat16 else 6e-3
        scale = want.abs().max().item() + 1
        torch.testing.assert_close(made.double(), want, rtol=near, atol=near * scale, msg=lambda m: f"{seed}: {m}")  # noqa: B023
        raw = getattr(ops, name)(*arguments, **given)
        assert (made.dtype, made.stride()) == (raw.dtype, raw.stride())
        assert torch.equal(made, raw)
        out = torch.empty(2, *want.shape, dtype=draw.dtype)[1]
        assert operator.out(*arguments, **given, out=out) is None
        # Where the result lies elsewhere another variant may serve: the raw call gets the same one there.
        elsewhere = torch.empty(2, *want.shape, dtype=draw.dtype)[1]
        getattr(ops, name)(*arguments, **given, out=elsewhere)
        assert torch.equal(out, elsewhere)
        torch.testing.assert_close(out.double(), want, rtol=near, atol=near * scale)


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


def test_autocast_casts_nothing(space: Any) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert space.gemm(rows(3, 4), rows(4, 5)).dtype == torch.float32
        assert (rows(3, 4) @ rows(4, 5)).dtype == torch.bfloat16


def test_the_example(ops: ModuleType, request: pytest.FixtureRequest) -> None:
    """Compiled, exported, packaged and trained, in a process of its own."""
    script = f"""
import runpy, sys
from pathlib import Path
sys.path.insert(0, {str(ROOT / "tests")!r})
from torch_library import load_module
import aot_tune
aot_tune.ops = sys.modules["aot_tune.ops"] = load_module(Path({ops.__file__!r}), "aot_tune.ops")
runpy.run_path({str(ROOT / "examples" / "torch_model" / "model.py")!r}, run_name="__main__")
"""
    with shim_cache(request.config):
        assert build_shim().is_file()
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("all agree; gradients up to ")
