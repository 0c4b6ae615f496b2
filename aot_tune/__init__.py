"""Kernels chosen by measurement when a package is built; no compiler and no tuning is left at run time."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
