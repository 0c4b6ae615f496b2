"""From chosen variants to a library: dispatch code, C header, Python module, archive of objects, manifest."""

from __future__ import annotations

from aot_tune.link.check.against_manifest import check_against_manifest
from aot_tune.link.emit.generate import Generated, generate
from aot_tune.link.library_records import (
    DecisionNode,
    ExpectedTime,
    LibrarySpec,
    OperatorTable,
    SeenCalls,
    TargetTable,
)

__all__ = [
    "DecisionNode",
    "ExpectedTime",
    "Generated",
    "LibrarySpec",
    "OperatorTable",
    "SeenCalls",
    "TargetTable",
    "check_against_manifest",
    "generate",
]
