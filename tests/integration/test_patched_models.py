"""Models that call the installed operators by `aot_tune.torch.patch`: eager, compiled, and what the table says."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from patched_models import bert, llama, near, tokens

from aot_tune.torch import patch

MODELS: dict[str, Callable[..., Any]] = {"llama": llama, "bert": bert}


def logits(model: Any, length: int = 9) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(tokens(2, length)).logits
    return found


@pytest.mark.parametrize("tuned", [True, False], ids=["tuned", "any"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MODELS)
def test_logits_agree(ops: ModuleType, name: str, dtype: torch.dtype, *, tuned: bool) -> None:
    model = MODELS[name](dtype)
    want = {length: logits(model, length) for length in (1, 9, 40)}
    with patch(model, ops, tuned=tuned) as patched:
        for length in want:
            near(logits(model, length), want[length])
    assert torch.equal(logits(model), want[9])
    if not tuned:
        assert all(made.served for made in patched.replaced if made.kind not in ("Linear", "LlamaRMSNorm"))
        assert {made.kind for made in patched.replaced} >= {"Linear"}
        assert not patched.left


def test_what_a_library_of_tuned_variants_replaces(ops: ModuleType) -> None:
    """Where only a generic variant would serve, a module is as it was, and the table says so."""
    model = llama()
    with patch(model, ops) as patched:
        for made in patched.replaced:
            assert made.rows.kernels
            assert "generic" not in made.rows.kernels
        for left in patched.left:
            assert left.why in ("only its generic variant serves such calls", "its norm is not replaced")
        assert len(patched.left) + sum(made.modules for made in patched.replaced) == 2 * (1 + 7 + 2 + 1 + 1) + 2
        lines = str(patched).splitlines()
        assert lines[0].split()[0] in ("modules", "nothing")


def test_one_graph_by_inductor(ops: ModuleType) -> None:
    model = llama(num_hidden_layers=1)
    want = [logits(model, 9), logits(model, 33)]
    with patch(model, ops, tuned=False):
        compiled = torch.compile(model, fullgraph=True, dynamic=True)
        near(logits(compiled, 9), want[0])
        near(logits(compiled, 33), want[1])
