"""From chosen variants to a library: dispatch code, C header, Python module, archive of objects, manifest."""

from __future__ import annotations

from aot_tune.link.generate import Generated, generate
from aot_tune.link.library_records import ExpectedTime, LibrarySpec, OperatorTable, RegimeCalls, TargetTable
from aot_tune.link.manifest import check_against_manifest

__all__ = [
    "ExpectedTime",
    "Generated",
    "LibrarySpec",
    "OperatorTable",
    "RegimeCalls",
    "TargetTable",
    "check_against_manifest",
    "generate",
]
