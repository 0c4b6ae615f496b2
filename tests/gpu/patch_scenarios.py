"""Patched models on a GPU, in a fresh process: `patch_scenarios.py NAME MODULE`; exceptions fail."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from patched_models import bert, llama, near, tokens
from torch_library import load_module

from aot_tune.torch import patch


def logits(model: Any, rows: int, length: int) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(tokens(rows, length, "cuda")).logits
    return found


def models(module: Any) -> None:
    """Both models in each dtype, with all variants and with tuned ones alone."""
    for make in (llama, bert):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            model = make(dtype, hidden_size=256, intermediate_size=512).cuda()
            want = {n: logits(model, 2, n) for n in (1, 9, 40)}
            for tuned in (True, False):
                with patch(model, module, tuned=tuned) as patched:
                    for n, found in want.items():
                        near(logits(model, 2, n), found)
                    served = sum(made.served for made in patched.replaced)
                assert tuned or served > 0, (make, dtype)
                assert torch.equal(logits(model, 2, 9), want[9])


def compiled(module: Any) -> None:
    """In one graph, with and without CUDA graphs."""
    model = llama(torch.bfloat16, hidden_size=256, intermediate_size=512, num_hidden_layers=1).cuda()
    want = {n: logits(model, 2, n) for n in (9, 40)}
    with patch(model, module, tuned=False):
        for given in ({"dynamic": True}, {"mode": "reduce-overhead"}):
            run = torch.compile(model, fullgraph=True, **given)
            for _ in range(3):
                for n, found in want.items():
                    near(logits(run, 2, n).clone(), found)
            torch._dynamo.reset()


def moved(module: Any) -> None:
    """Modules that are moved after they were patched go to torch, and come back with their device."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64)).eval().requires_grad_(False).cuda()
    x = torch.randn(3, 64)
    want = model(x.cuda()).cpu()
    with patch(model, module, tuned=False) as patched:
        torch.testing.assert_close(model.cpu()(x), want, rtol=1e-4, atol=1e-4)
        assert sum(made.served for made in patched.replaced) == 0
        torch.testing.assert_close(model.cuda()(x.cuda()).cpu(), want, rtol=1e-4, atol=1e-4)
        assert sum(made.served for made in patched.replaced) == 2
        with torch.autocast("cuda", dtype=torch.float16):
            assert model(x.cuda()).isfinite().all()
        assert sum(made.served for made in patched.replaced) == 2


SCENARIOS: tuple[Callable[[Any], None], ...] = (models, compiled, moved)


if __name__ == "__main__":
    scenario, path = sys.argv[1:]
    {s.__name__: s for s in SCENARIOS}[scenario](load_module(Path(path), "ops"))
