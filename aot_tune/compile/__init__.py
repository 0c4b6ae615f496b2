"""Sources to objects: toolchains, the object cache, and compile errors with the first line that matters."""

from __future__ import annotations

from aot_tune.compile.batches import Batch, CompileProgress, Jobs, compile_all, compile_batches, parallel_compiles
from aot_tune.compile.object_cache import CacheCounters, ObjectCache
from aot_tune.compile.toolchain import (
    Object,
    Toolchain,
    families_of,
    generic_targets,
    native_targets,
    offers,
    target_by_name,
    template_folders,
    toolchain_for,
    toolchains,
)
from aot_tune.compile.variant import Variant
from aot_tune.support.run_program import run

__all__ = [
    "Batch",
    "CacheCounters",
    "CompileProgress",
    "Jobs",
    "Object",
    "ObjectCache",
    "Toolchain",
    "Variant",
    "compile_all",
    "compile_batches",
    "families_of",
    "generic_targets",
    "native_targets",
    "offers",
    "parallel_compiles",
    "run",
    "target_by_name",
    "template_folders",
    "toolchain_for",
    "toolchains",
]
