"""A model that calls tuned operators: compiled, exported and trained."""

import sys
import tempfile
from pathlib import Path

import torch

import aot_tune.torch
from aot_tune import ops as kernels


def silu_mul_backward(call, gradient):
    sigmoid = torch.sigmoid(call.gate)
    return {
        "gate": gradient * call.up * sigmoid * (1 + call.gate * (1 - sigmoid)),
        "up": gradient * call.gate * sigmoid,
    }


aot_tune.torch.register(kernels, backward={"silu_mul": silu_mul_backward})
ops = torch.ops.aot_tune


class FeedForward(torch.nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm = torch.nn.Parameter(torch.ones(width), requires_grad=False)
        self.gate, self.up, self.down = (
            torch.nn.Parameter(torch.randn(shape) / shape[0] ** 0.5, requires_grad=False)
            for shape in ((width, hidden), (width, hidden), (hidden, width))
        )

    def forward(self, x):
        normed = ops.rms_norm(x, self.norm, eps=1e-6)
        return ops.gemm(ops.silu_mul(ops.gemm(normed, self.gate), ops.gemm(normed, self.up)), self.down, residual=x)


def reference(model, x):
    normed = torch.nn.functional.rms_norm(x, (x.shape[1],), model.norm, eps=1e-6)
    return torch.nn.functional.silu(normed @ model.gate) * (normed @ model.up) @ model.down + x


def train(x):
    gate = torch.ones_like(x, requires_grad=True)
    for _ in range(3):
        ops.silu_mul(gate, x).square().mean().neg().backward()
        gate.data += gate.grad
    return gate


def main():
    model, x = FeedForward(64, 128), torch.randn(10, 64)
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    rows = torch.export.Dim("rows", min=2, max=4096)
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: rows},))
    with tempfile.TemporaryDirectory() as folder:
        torch.export.save(exported, Path(folder) / "model.pt2")
        loaded = torch.export.load(Path(folder) / "model.pt2").module()
        package = torch._inductor.aoti_compile_and_package(exported, package_path=f"{folder}/compiled.pt2")
        packaged = torch._inductor.aoti_load_package(package)
        for rows in (10, 33):
            x = torch.randn(rows, 64)
            for run in (model, compiled, loaded, packaged):
                torch.testing.assert_close(run(x), reference(model, x), rtol=1e-4, atol=1e-4)
    print(f"all agree; gradients up to {train(x).grad.abs().max().item():.2g}")


if __name__ == "__main__":
    sys.exit(main())
