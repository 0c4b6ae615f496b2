"""The manifest: what a library holds, as sorted JSON without paths, host names or times."""

from __future__ import annotations

import hashlib

import msgspec

from aot_tune.compile import Variant
from aot_tune.link.emit.xla_handlers import handler_names
from aot_tune.link.library_records import LibrarySpec, OperatorTable, TargetTable

__all__ = ["SCHEMA", "render_manifest"]

SCHEMA = 1
"""The version of the manifest's form. It changes when a field changes its meaning."""


def render_manifest(spec: LibrarySpec, sources: dict[str, str]) -> str:
    """The manifest's text. Equal libraries have equal texts.

    `sources` are the generated files that do not contain the manifest, by name.
    """
    xla = sorted(n for t in spec.operators for n in handler_names(spec, t.operator.name).values() if spec.xla_ffi)
    document = {
        "schema": SCHEMA,
        "library": spec.name,
        "prefix": spec.prefix,
        "header": spec.header,
        "module": spec.face,
        "mode": spec.mode,
        "devices": [dict(d) for d in spec.devices],
        "policy": dict(spec.policy),
        "tools": dict(spec.tools),
        "sources": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sources.items()},
        "operators": [_operator(t) for t in spec.operators],
        **({"xla_ffi": xla} if xla else {}),
    }
    text = msgspec.json.encode(document, order="deterministic")
    return msgspec.json.format(text, indent=1).decode() + "\n"


def _operator(table: OperatorTable) -> dict[str, object]:
    return {
        "name": table.operator.name,
        "variants": [_variant(v, table) for v in table.variants],
        "tables": [_table(t, table) for t in table.tables],
    }


def _variant(v: Variant, table: OperatorTable) -> dict[str, object]:
    candidate, made = v.candidate, v.made
    device = {"device": made.device} if made.device else {}
    known = {"resources": made.code_resources, "roofline": dict(table.rooflines.get(v.name, {}))}
    return {
        "name": v.name,
        "symbol": v.symbol,
        "kernel": candidate.kernel,
        "target": candidate.target,
        "level": v.target.level,
        "last": v.target.last,
        "dtypes": dict(candidate.dtypes),
        "config": dict(candidate.config),
        "requires": [r.key() for r in v.guards],
        "object": made.digest,
        **device,
        "generic": candidate.generic,
        "rebuilt": v.rebuilt,
        **{name: found for name, found in known.items() if found},
    }


def _table(target: TargetTable, table: OperatorTable) -> dict[str, object]:
    nodes: list[dict[str, object]] = []
    for node in target.nodes:
        if node.fact:
            nodes.append({"fact": node.fact, "threshold": node.threshold, "below": node.below, "above": node.above})
        else:
            nodes.append({"leaf": [table.variants[i].name for i in node.leaf]})
    return {
        "target": target.target,
        "level": target.level,
        "last": target.last,
        "rank": target.rank,
        "nodes": nodes,
        "tuned": sorted(p.id for p in target.tuned),
    }
