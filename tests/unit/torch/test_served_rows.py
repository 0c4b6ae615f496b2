"""For how many rows a library serves calls: what it is asked, and how that is told."""

from __future__ import annotations

from typing import Any

import torch

from aot_tune.torch.drop_in.product_calls import activation_of
from aot_tune.torch.drop_in.served_rows import ALL_ROWS, STEPS, RowRanges, ask_rows, hold

nn = torch.nn


def asked(kernels: dict[int, str], *, tuned: bool = True, measured: bool = False) -> RowRanges:
    """What is served where `kernels` has the kernel from so many rows on; an empty one stands for an error."""

    def explain(rows: int) -> dict[str, Any]:
        kernel = next(kernel for first, kernel in reversed(kernels.items()) if rows >= first)
        if not kernel:
            raise ValueError("rows are not legal")
        return {"kernel": kernel, "tuned": measured, "target": "cpu-x86-64-v4"}

    return ask_rows(explain, tuned=tuned)


def test_ranges_of_steps() -> None:
    found = asked({1: "few", 8: "generic", 64: "many", 1024: ""})
    assert found.ranges == ((1, 8), (64, 1024))
    assert found.kernels == ("few", "many")
    assert found.refused == "only its generic variant serves such calls"
    assert str(found) == "1-7, 64-1023"
    assert [n for n in (0, 1, 7, 8, 63, 64, 100, 1023, 1024, 9999) if hold(found.steps, n)] == [1, 7, 64, 100, 1023]
    assert str(asked({1: "one", 2: "generic", 4096: "last"})) == "1, 4096 up"
    assert str(asked({1: "all"})) == str(ALL_ROWS) == "any"
    assert asked({1: "all"}).ranges == ALL_ROWS.ranges
    assert not hold(ALL_ROWS.steps, 0)
    assert STEPS[-1] == 4096


def test_what_does_not_count() -> None:
    assert asked({1: "generic"}).ranges == ()
    assert asked({1: "cuda_generic"}).ranges == ()
    assert asked({1: "generic"}, tuned=False).ranges == ALL_ROWS.ranges
    assert asked({1: "cublaslt_then_epilogue"}).refused == "the vendor's library serves such calls, as torch's own"
    assert asked({1: "cublaslt"}, measured=True).ranges == ALL_ROWS.ranges
    assert asked({1: ""}, tuned=False).refused == "rows are not legal"


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * self.scale


def test_activations_are_known_by_their_values() -> None:
    for module, name in (
        (nn.ReLU(inplace=True), "relu"),
        (nn.GELU(), "gelu"),
        (nn.GELU("tanh"), "gelu_tanh"),
        (nn.SiLU(), "silu"),
        (nn.functional.silu, "silu"),
    ):
        assert activation_of(module) == name
    for other in (nn.ReLU6(), nn.Hardswish(), nn.GLU(), nn.Linear(4, 4), Scaled(), torch.tanh):
        assert activation_of(other) is None
