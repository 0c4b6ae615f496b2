"""The public C and C++ header of a library, documented from its operators."""

from __future__ import annotations

import re

from aot_tune.link.emit.signature import choices_text, parameters, scalar_type, shape_text
from aot_tune.link.emit.xla_handlers import handler_names
from aot_tune.link.library_records import SHARED_FUNCTIONS, LibrarySpec, OperatorTable
from aot_tune.spec import Operator

__all__ = ["ABI_VERSION", "public_functions", "render_header"]

ABI_VERSION = 1
"""AOT_TUNE_ABI_VERSION of the header that all libraries share."""


def public_functions(spec: LibrarySpec) -> list[str]:
    """Names of all functions that the library exports, sorted."""
    names = [f"{spec.prefix}_{suffix}" for suffix in SHARED_FUNCTIONS]
    for table in spec.operators:
        base = f"{spec.prefix}_{table.operator.name}"
        names += [base, f"{base}_workspace", f"{base}_explain", f"{base}_is_tuned"]
        names += handler_names(spec, table.operator.name).values() if spec.xla_ffi else ()
    return sorted(names)


def render_header(spec: LibrarySpec) -> str:
    """The header's text."""
    aliases = any(t.may_alias for table in spec.operators for t in table.operator.tensors)
    in_place = (
        "\n * An output may be the very memory of an input, with its strides, where that is said below."
        if aliases
        else ""
    )
    guard = re.sub(r"[^A-Za-z0-9]", "_", spec.header).upper() + "_"
    operators = "\n".join(_operator(spec, table) for table in spec.operators)
    return f"""\
/* The operators of lib{spec.library}.so. Written by aot_tune; for C and C++.
 *
 * All functions return AOT_TUNE_OK (0) or an aot_tune_status; {spec.prefix}_last_error() then says what was wrong. They
 * may be called from any thread. Tensors may have any strides; outputs must not share memory with other tensors. A call
 * whose outputs have no elements returns at once.{in_place}
 *
 * Environment variables are read at the first call. AOT_TUNE_OVERRIDE=FILE has rules for what serves calls within some
 * ranges of dims. AOT_TUNE_FORCE names variants that calls must use, and AOT_TUNE_EXCLUDE variants that they never use.
 * AOT_TUNE_TRACE=FILE counts calls. AOT_TUNE_WARN=unseen reports calls unlike those that were measured.
 */
#ifndef {guard}
#define {guard}

#include "aot_tune/base.h"
#if AOT_TUNE_ABI_VERSION != {ABI_VERSION}
#error "{spec.header} is for version {ABI_VERSION} of aot_tune/base.h: put its own library first on the include path"
#endif
{_booleans(spec)}
#ifdef __cplusplus
extern "C" {{
#endif

/* What was wrong in this thread's last failed call. Empty if none has failed. Valid until the next failure. */
const char* {spec.prefix}_last_error(void);

/* What the library holds, as JSON: operators, variants with the digests of their objects, decision tables, tools. */
const char* {spec.prefix}_manifest(void);

/* Loads the library's kernels for a device, so that no later call does. The arguments are DLPack's numbers. Results do
 * not depend on it: otherwise kernels load at their first call, even while a stream is captured. */
int32_t {spec.prefix}_preload(int32_t device_type, int32_t device_id);

/* Sets how many threads calls on a CPU get from now on, in all threads of the process. 0 is the default: OpenMP's
 * number of the calling thread. That is OMP_NUM_THREADS, or what omp_set_num_threads set in that thread. Otherwise, it
 * is the number of cores that the process may use and its control group's quota pays for. */
int32_t {spec.prefix}_set_num_threads(int32_t threads);

/* Threads that a call of this thread on a CPU gets. */
int32_t {spec.prefix}_get_num_threads(void);
{operators}
#ifdef __cplusplus
}}
#endif

#endif /* {guard} */
"""


def _booleans(spec: LibrarySpec) -> str:
    """What C needs for functions that take booleans. Empty if there are none."""
    needed = any(s.dtype_name == "bool" for table in spec.operators for s in table.operator.scalars)
    return "#ifndef __cplusplus\n#include <stdbool.h>\n#endif\n" if needed else ""


def _operator(spec: LibrarySpec, table: OperatorTable) -> str:
    op = table.operator
    name = f"{spec.prefix}_{op.name}"
    call = parameters(op)
    parts = ["", _comment(_documentation(op)), *_choices(spec, op)]
    parts.append(_prototype(name, [*call, "const aot_tune_exec* exec"]))
    parts += ["", f"/* Bytes of workspace that this call of {name} needs; 0 when none. Data is not read. */"]
    parts.append(_prototype(f"{name}_workspace", [*call, "size_t* workspace_size"]))
    parts += [
        "",
        "/* Writes lines of 'key: value': which variant this call gets, and why. They are cut off to fit size. */",
    ]
    parts.append(_prototype(f"{name}_explain", [*call, "const aot_tune_exec* exec", "char* buffer", "size_t size"]))
    parts += ["", "/* Sets *tuned to 1 when exactly this problem was measured for the call's target, else to 0. */"]
    parts.append(_prototype(f"{name}_is_tuned", [*call, "int32_t* tuned"]))
    return "\n".join(parts) + "\n"


def _documentation(op: Operator) -> list[str]:
    lines = [line.rstrip() for line in (op.documentation.strip() or op.name).splitlines()]
    lines.append("")
    for tensor in op.tensors:
        role = "read and written" if tensor.inout else "output" if tensor.output else "input"
        role += f", may be the memory of {' or '.join(tensor.may_alias)}" if tensor.may_alias else ""
        optional = ", may be NULL" if tensor.optional else ""
        lines.append(f"{tensor.name}: {tensor.dtype_name} {shape_text(op, tensor.name)}, {role}{optional}")
    lines += [f"{variable}: {choices_text(choices)}, the same for all" for variable, choices in op.dtypes.items()]
    lines += [f"{s.name}: {scalar_type(s)}{f', the dim {s.binds}' if s.binds else ''}" for s in op.scalars]
    for attribute in op.attributes:
        values = ", ".join(f"{i} {c}" for i, c in enumerate(attribute.choices))
        lines.append(f"{attribute.name}: {values}")
    lines.append("exec: how to carry out the call; NULL for defaults")
    return lines


def _choices(spec: LibrarySpec, op: Operator) -> list[str]:
    lines = []
    for attribute in op.attributes:
        stem = f"{spec.prefix}_{op.name}_{attribute.name}".upper()
        values = ", ".join(f"{stem}_{choice.upper()} = {i}" for i, choice in enumerate(attribute.choices))
        lines.append(f"enum {{ {values} }};")
    return lines


def _comment(lines: list[str]) -> str:
    text = "\n".join([lines[0], *(f" * {line}".rstrip() for line in lines[1:])])
    return f"/* {text.replace('*/', '* /').replace('/*', '/ *')}\n */"  # compilers warn of either within a comment


def _prototype(name: str, declared: list[str]) -> str:
    head = f"int32_t {name}("
    lines = [head]
    for i, parameter in enumerate(declared):
        text = parameter + ("," if i + 1 < len(declared) else ");")
        if len(lines[-1]) + 1 + len(text) > 110:
            lines.append(" " * len(head) + text)
        else:
            lines[-1] += ("" if lines[-1].endswith("(") else " ") + text
    return "\n".join(lines)
