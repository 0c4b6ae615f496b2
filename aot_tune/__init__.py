"""Kernels chosen by measurement when a package is built; no compiler and no tuning is left at run time."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["__version__"]

__version__ = "0.2.0"


def __getattr__(name: str) -> ModuleType:
    """The compiled operators, `aot_tune.ops`, which are imported when they are first asked for."""
    if name != "ops":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return import_module("aot_tune.ops")
    except ModuleNotFoundError as error:
        if error.name != "aot_tune.ops":
            raise
        raise AttributeError(
            "module 'aot_tune' has no attribute 'ops': there are no compiled operators beside it; install it by "
            "`pip install .`, which builds them"
        ) from error
