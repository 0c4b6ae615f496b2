"""Copies from one kind of record to another that has some of the same fields."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["shared_fields"]


def shared_fields(record: object, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The values of a record's fields that another kind of record has too, by name."""
    return {name: getattr(record, name) for name in kind.__struct_fields__ if hasattr(record, name)}
