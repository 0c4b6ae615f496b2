"""xla_ffi.cpp: handlers of XLA's FFI for each operator and each kind of device. They use the tables of all bindings."""

from __future__ import annotations

from collections.abc import Iterable

from aot_tune.link.emit.call_tables import operator_tables
from aot_tune.link.library_records import LibrarySpec

__all__ = ["handler_names", "render_xla_handlers"]

_DEVICES = {"cpu": "kDLCPU", "cuda": "kDLCUDA", "hip": "kDLROCM"}
_PLATFORMS = {"cpu": "cpu", "cuda": "CUDA", "hip": "ROCM"}
"""XLA's names of families of devices."""


def handler_names(spec: LibrarySpec, operator: str) -> dict[str, str]:
    """Names of an operator's handlers, by XLA platform.

    Each library has one for CUDA. If the library has nothing for GPUs, a call says so.
    """
    return {_PLATFORMS[family]: f"{spec.prefix}_{operator}_xla_{family}" for family in _families(spec)}


def _families(spec: LibrarySpec) -> Iterable[str]:
    found = {family for table in spec.operators for family in table.families}
    return sorted(found & _PLATFORMS.keys() | {"cpu", "cuda"})


def render_xla_handlers(spec: LibrarySpec) -> str:
    """The text of xla_ffi.cpp."""
    tables = "".join(operator_tables(spec, table) for table in spec.operators)
    families = list(_families(spec))
    handlers = "\n".join(
        f"AOT_TUNE_XLA_HANDLER {spec.prefix}_{table.operator.name}_xla_{family}(XLA_FFI_CallFrame* frame) {{\n"
        f"  return answer({{kOperator_{table.operator.name}, {spec.prefix}_last_error, {_DEVICES[family]}}}, frame);\n"
        "}"
        for table in spec.operators
        for family in families
    )
    return f"""\
// Handlers of XLA's FFI for the operators of lib{spec.library}.so. Written by aot_tune.
#include "arithmetic.h"
#include "xla_call.h"
#include "{spec.header}"

namespace aot_tune::python {{
namespace {{
{tables}
}}  // namespace
}}  // namespace aot_tune::python

using namespace aot_tune::python;
using aot_tune::xla::answer;

{handlers}
"""
