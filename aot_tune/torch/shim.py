"""x."""

from __future__ import annotations


class ShimError(Exception):
    """x."""


def build_shim() -> None:
    """x."""
