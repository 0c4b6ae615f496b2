"""examples/cuda_author on a GPU: sources as they are, tuned, shipped, and right when torch calls them."""

from __future__ import annotations

import json
import sys

import pytest
from building import BUDGET, Library, build_project
from environments import ROOT, environment, run

TEMPLATES = ROOT / "examples" / "cuda_author" / "templates"
KERNELS = {"add_rms_norm": "rows", "convolution": "tiled", "gemv": "warps", "quantise": "rows"}

USE = """
import json
import torch, ops

torch.manual_seed(1)
close = lambda a, b, off: float((a.double() - b.double()).norm() / b.double().norm()) < off
found = {}
image, weights = torch.randn(500, 700, device="cuda"), torch.randn(9, 9, device="cuda")
want = torch.nn.functional.conv2d(image.double()[None, None], weights.double()[None, None])[0, 0]
found["convolution"] = close(torch.from_dlpack(ops.convolution(image, weights)), want, 1e-5)
matrix, x = torch.randn(777, 1234, device="cuda"), torch.randn(1234, device="cuda")
found["gemv"] = close(torch.from_dlpack(ops.gemv(matrix, x)), matrix.double() @ x.double(), 1e-5)
for dtype, off in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
    x, residual, weight = (torch.randn(s, device="cuda").to(dtype) for s in ((33, 5000), (33, 5000), (5000,)))
    total = (residual.double() + x.double()).to(dtype)
    normed = total.double() * torch.rsqrt(total.double().square().mean(1, keepdim=True) + 1e-5) * weight.double()
    assert ops.add_rms_norm(x, residual, weight) is None
    found[f"add_rms_norm {dtype}"] = close(residual, total, off) and close(x, normed, off)
    x = torch.randn(33, 5000, device="cuda").to(dtype)
    q, scale = map(torch.from_dlpack, ops.quantise(x))
    largest = x.double().abs().amax(1)
    found[f"quantise {dtype}"] = close(scale, largest / 448, 1e-6) and close(q.float() * scale[:, None], x, 0.04)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, import_path: str) -> Library:
    return build_project(tmp_path_factory.mktemp("cuda_author"), TEMPLATES, import_path, AOT_TUNE_BUDGET=BUDGET)


@pytest.mark.parametrize(("operator", "kernel"), KERNELS.items())
def test_a_source_is_tuned_and_shipped(library: Library, operator: str, kernel: str) -> None:
    members = library.variants()[operator]
    assert any(v["name"].startswith(f"{kernel}_") for v in members), library.log[-3000:]
    assert any(v["generic"] for v in members)


def test_calls_are_right(library: Library) -> None:
    (module,) = library.folder.rglob("ops.abi3.so")
    said = run([sys.executable, "-c", USE], env=environment(PYTHONPATH=str(module.parent)))
    found = json.loads(said.splitlines()[-1])
    assert len(found) == 6
    assert all(found.values()), found
