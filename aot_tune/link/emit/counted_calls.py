"""Generated code that counts calls for AOT_TUNE_TRACE (runtime/trace.h)."""

from __future__ import annotations

import hashlib
import json

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
    """`trace_call`, which counts an operator's call."""
    given = ", ".join(f"c.t_{t.name}" for t in op.tensors)
    return f"""\
// Counts a call for AOT_TUNE_TRACE.
__attribute__((noinline, cold)) void trace_call(const Call& c, bool captured) {{
  const DLTensor* const given[] = {{{given}}};
  int64_t words[trace_words(kFacts.own(), kTensors)];
  read_facts(c, words);
  count_call(kFacts, given, c.view, c.empty, captured, words);
}}"""
