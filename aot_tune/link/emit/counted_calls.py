"""Generated code that counts calls for AOT_TUNE_TRACE (runtime/trace.h)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from aot_tune.link.emit.signature import c_string
from aot_tune.link.library_records import LibrarySpec
from aot_tune.spec import Operator

__all__ = ["render_trace", "render_traced_library"]


def render_traced_library(spec: LibrarySpec, manifest: str) -> str:
    """What the header of a trace says of the library: its digest is that of the manifest's text."""
    digest = hashlib.sha256(manifest.encode()).hexdigest()
    fields = json.dumps({"library": spec.name, "prefix": spec.prefix, "build": digest})
    return f"constexpr char kLibrary[] =\n    {c_string(fields[1:-1])};"


def render_trace(op: Operator) -> str:
    """`trace_call`, which counts an operator's call, and the names that its lines have."""
    dtypes, attributes = sorted(op.dtypes), sorted(a.name for a in op.attributes)
    lines = [_array("const char*", "kTracedDims", [f'"{d}"' for d in op.dims])]
    for variable in dtypes:
        lines.append(_array("const char*", f"kTraced_{variable}", [f'"{d}"' for d in op.dtypes[variable]]))
    rows = [f'{{"{v}", kTraced_{v}, {len(op.dtypes[v])}}}' for v in dtypes]
    lines.append(_array("AttributeInfo", "kTracedDTypes", rows))
    lines.append(_array("AttributeInfo", "kTracedAttributes", [f"kAttribute_{a}" for a in attributes]))
    names = [t.name for t in op.tensors]
    lines.append(_array("int32_t", "kTracedTensors", [str(names.index(name)) for name in sorted(names)]))
    counts = [(op.dims, "kTracedDims"), (dtypes, "kTracedDTypes"), (attributes, "kTracedAttributes")]
    listed = ", ".join(f"{array if items else 'nullptr'}, {len(items)}" for items, array in counts)
    facts = [f"c.d_{d}" for d in op.dims] + [f"c.y_{v}" for v in dtypes] + [f"c.v_{a}" for a in attributes]
    given = ", ".join(f"c.t_{name}" for name in names)
    return "\n".join(
        [
            *filter(None, lines),
            f"constexpr TracedInfo kTraced = {{kLibrary, &kOperator, {listed}, kTracedTensors}};",
            "",
            "// Counts a call for AOT_TUNE_TRACE.",
            "__attribute__((noinline, cold)) void trace_call(const Call& c, bool captured) {",
            f"  const DLTensor* const given[] = {{{given}}};",
            f"  int64_t words[trace_words({len(facts)}, kTensors)] = {{{', '.join(facts)}}};",
            "  count_call(kTraced, given, c.view, c.empty, captured, words);",
            "}",
        ]
    )


def _array(kind: str, name: str, items: Sequence[str]) -> str:
    if not items:
        return ""
    pointer = "constexpr const char* const" if kind == "const char*" else f"constexpr {kind}"
    return f"{pointer} {name}[] = {{{', '.join(items)}}};"
