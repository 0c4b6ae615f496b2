"""What is registered: extents on integers and on symbols; and versions of torch that it is not for."""

import random
import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from aot_tune.expr.integer_expressions import FUNCTIONS, python_function
from aot_tune.spec import Expr, ceildiv, dims, maximum, minimum, next_power_of_2, where
from aot_tune.torch import TorchError, UntestedTorchWarning, register


def extent_of(expression: Expr, facts: Mapping[str, Any]) -> Any:
    """The value as a traced call computes it."""
    return python_function(expression, {**FUNCTIONS, "min": torch.sym_min, "max": torch.sym_max})(facts)


M, N, K = dims("M N K")
EXPRESSIONS: tuple[Expr, ...] = (
    M * 2 + N - 1,
    ceildiv(M, 4) * (N + K),
    M // N,
    M % K,
    minimum(M, N),
    maximum(M, N + 3) - minimum(N, K),
    next_power_of_2(M + N),
    where(M > N, M - N, N),
    where((M == N) | (K <= 3), K, where((M != K) & (N >= 2), M, 7)),
    where(M < 1, M // (M - M), N),
)


def symbols(facts: dict[str, int]) -> dict[str, Any]:
    """Sizes of a fake tensor that stand for these extents."""
    fake = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.empty(*facts.values()), static_shapes=False)
    return dict(zip(facts, fake.shape, strict=True))


def test_values_are_those_of_the_expression() -> None:
    draw = random.Random(1)
    for expression in EXPRESSIONS:
        for number in range(20):
            facts = {name: draw.randint(2, 40) for name in ("M", "N", "K")}
            want = expression.evaluate(facts)
            assert extent_of(expression, facts) == want
            if number < 3:
                symbolic = symbols(facts)
                assert isinstance(symbolic["M"], torch.SymInt)
                assert int(extent_of(expression, symbolic)) == want


def test_a_division_by_zero() -> None:
    with pytest.raises(ZeroDivisionError):
        extent_of(M // N, {"M": 1, "N": 0})


def empty_library(name: str) -> Any:
    made: Any = ModuleType(name)
    made.operators, made.signatures = (), lambda: {"schema": 1, "operators": []}
    return made


def test_another_one_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.99.1+cpu")
    with pytest.warns(UntestedTorchWarning, match=r"torch 2.99.1\+cpu; they were tested only with 2.13") as caught:
        register(empty_library("versions_untested"), shim=False)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        register(empty_library("versions_again"), shim=False)


def test_one_that_lacks_what_is_needed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.3.0")
    monkeypatch.delattr(torch.library, "register_autograd")
    with pytest.raises(TorchError, match=r"torch 2.3.0 is too old: it has no torch.library.register_autograd"):
        register(empty_library("versions_old"), shim=False)
