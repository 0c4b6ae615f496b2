"""What a registration says of versions of torch."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any

import pytest
import torch

from aot_tune.torch import TorchError, UntestedTorchWarning, register


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
