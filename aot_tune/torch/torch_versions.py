"""The error of a registration, which versions of torch were tested, and what a registration says of others."""

from __future__ import annotations

import warnings
from functools import cache

import torch

from aot_tune.support.errors import AotTuneError

_TESTED = ("2.13",)


class TorchError(AotTuneError):
    """Operators of a library cannot be registered with torch."""


class UntestedTorchWarning(UserWarning):
    """Operators are registered with a version of torch that was not tested."""


def check_torch() -> None:
    """Refuse a torch that lacks what registration needs. Warn once about one that was not tested.

    Raises:
        TorchError: naming the version and what it lacks.
    """
    from torch.fx.experimental import symbolic_shapes

    needed = (
        (torch.library, "register_fake"),
        (torch.library, "register_autograd"),
        (symbolic_shapes, "guard_or_true"),
    )
    lacking = [f"{module.__name__}.{name}" for module, name in needed if not hasattr(module, name)]
    if lacking:
        raise TorchError(
            f"torch {torch.__version__} is too old: it has no {', '.join(lacking)}",
            fix=f"use torch {_TESTED[-1]}; the module's functions take tensors of any torch",
        )
    if ".".join(torch.__version__.split(".")[:2]) not in _TESTED:
        _warn(torch.__version__)


@cache
def _warn(version: str) -> None:
    warnings.warn(
        f"operators are registered with torch {version}; they were tested only with {', '.join(_TESTED)}: test what "
        "uses them. warnings.simplefilter('ignore', aot_tune.torch.UntestedTorchWarning) silences this",
        UntestedTorchWarning,
        stacklevel=4,
    )
