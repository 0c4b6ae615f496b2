"""Operators of torch on a GPU, in a fresh process: `torch_scenarios.py NAME MODULE SHIM`; exceptions fail."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from torch_library import load_module

from aot_tune.torch import register

Tensor = Any

WAIT = 200_000_000
"""Cycles that a stream is kept busy: a tenth of a second, far longer than what comes behind takes to be launched."""


def normal(*shape: int, seed: int = 0, device: str = "cuda") -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(device, torch.bfloat16)


def chain(space: Any, x: Tensor, weight: Tensor, norm: Tensor) -> Tensor:
    y = space.gemm(space.rms_norm(x, norm, eps=1e-6), weight, activation="silu")
    return space.softmax(space.silu_mul(y, y))


def chained(x: Tensor, weight: Tensor, norm: Tensor) -> Tensor:
    normed = torch.nn.functional.rms_norm(x.double(), (x.shape[1],), norm.double(), 1e-6)
    y = torch.nn.functional.silu(normed @ weight.double())
    return torch.softmax(torch.nn.functional.silu(y) * y, dim=1)


def near(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got.double(), want.double(), rtol=0.1, atol=0.02 * want.abs().max().item())


def inputs(seed: int = 0, device: str = "cuda") -> tuple[Tensor, ...]:
    sizes = ((64, 256), (256, 512), (256,))
    x, weight, norm = (normal(*s, seed=seed + i, device=device) for i, s in enumerate(sizes))
    return x, weight / 16, norm


def values(space: Any) -> None:
    """On each GPU, whichever is the current one; torch finds nothing wrong."""
    for index in range(torch.cuda.device_count()):
        given = inputs(index, f"cuda:{index}")
        made = chain(space, *given)
        assert made.device == given[0].device
        near(made, chained(*given))
    x, weight, _ = inputs()
    torch.library.opcheck(space.gemm.default, (x, weight), {"activation": "relu"})
    torch.library.opcheck(space.gemm.out, (x, weight), {"out": torch.empty(64, 512, device="cuda", dtype=x.dtype)})


def side_stream(space: Any) -> None:
    """A call runs behind what its stream was given before, and nothing of it on another."""
    given = inputs()
    want = chained(*given)
    x = torch.zeros_like(given[0])
    out = torch.full((64, 512), torch.nan, device="cuda", dtype=x.dtype)
    chain(space, *given)  # loads kernels
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        torch.cuda._sleep(WAIT)  # type: ignore[no-untyped-call]
        x.copy_(given[0])
        space.softmax.out(chain_of_products(space, x, *given[1:]), out=out)
    assert not stream.query(), "the stream was not kept busy: nothing is shown"
    stream.synchronize()
    near(out, want)


def chain_of_products(space: Any, x: Tensor, weight: Tensor, norm: Tensor) -> Tensor:
    y = space.gemm(space.rms_norm(x, norm, eps=1e-6), weight, activation="silu")
    return space.silu_mul(y, y)


def graph(space: Any) -> None:
    """Captured once, replayed on other values, those that are written in place among them."""
    x, weight, norm = inputs()
    chain(space, x, weight, norm)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        made = chain(space, x, weight, norm)
        doubled = made * 2
    for seed in (5, 6):
        fresh = inputs(seed)[0]
        x.copy_(fresh)
        captured.replay()
        torch.cuda.synchronize()
        near(made, chained(fresh, weight, norm))
        near(doubled, 2 * chained(fresh, weight, norm))


def compiled(space: Any) -> None:
    """In one graph of torch.compile, which itself makes CUDA graphs; and with sizes that are symbols."""
    _, weight, norm = inputs()
    run = torch.compile(lambda *given: chain(space, *given), fullgraph=True, mode="reduce-overhead")
    for seed in range(4):
        fresh = inputs(seed)[0]
        near(run(fresh, weight, norm), chained(fresh, weight, norm))
    dynamic = torch.compile(lambda *given: chain(space, *given), fullgraph=True, dynamic=True)
    for rows in (64, 17, 129):
        fresh = normal(rows, 256, seed=rows)
        near(dynamic(fresh, weight, norm), chained(fresh, weight, norm))


def profiled(space: Any) -> None:
    """Kernels stand below the operators that launched them."""
    x, weight, norm = inputs()
    chain(space, x, weight, norm)
    with torch.profiler.profile() as profile:  # of all activities
        chain(space, x, weight, norm)
        torch.cuda.synchronize()
    found = {e.key: e for e in profile.key_averages()}
    for name in ("rms_norm", "gemm", "silu_mul", "softmax"):
        assert found[f"{space.gemm.default.namespace}::{name}"].device_time_total > 0, name


SCENARIOS: tuple[Callable[[Any], None], ...] = (values, side_stream, graph, compiled, profiled)


if __name__ == "__main__":
    scenario, module, shim = sys.argv[1:]
    made = register(load_module(Path(module), "ops"), "on_gpu", shim=shim == "shim")
    assert made.shim == (shim == "shim")
    {s.__name__: s for s in SCENARIOS}[scenario](torch.ops.on_gpu)
