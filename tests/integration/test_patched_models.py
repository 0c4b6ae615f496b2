"""Models that call the installed operators by `aot_tune.torch.patch`: their logits, and what the table says."""

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


@pytest.mark.parametrize(
    ("name", "dtype", "tuned"),
    [("llama", torch.float32, True), ("bert", torch.bfloat16, False), ("llama", torch.float16, False)],
)
def test_logits_agree(ops: ModuleType, name: str, dtype: torch.dtype, *, tuned: bool) -> None:
    model = MODELS[name](dtype)
    want = {length: logits(model, length) for length in (1, 9, 40)}
    with patch(model, ops, tuned=tuned) as patched:
        for length, found in want.items():
            near(logits(model, length), found)
    assert torch.equal(logits(model), want[9])
    if not tuned:
        assert all(made.served for made in patched.replaced if made.kind not in ("Linear", "LlamaRMSNorm"))
        assert {made.kind for made in patched.replaced} >= {"Linear"}
        assert not patched.left
