"""Converts the records of schema 2 to schema 3: sources are recognised by their tokens, symbols are the candidates'.

    python tuning/convert.py [FOLDER]

nvcc names kernels after a candidate's symbol, so that its device code is compiled again, by the recorded compiler, to
learn its digest. The old source is compiled too: only where it gives the recorded digest, the new one is taken; of
CUTLASS's, which take a minute each, the new one alone. A source that is not the recorded one keeps its old digest: it
is as void as it was.

It runs beside a checkout of the tree that wrote the records, whose renderer tells the old sources: OLD_TREE names it.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from aot_tune.compile import generic_targets, target_by_name, toolchain_for
from aot_tune.database import load_database, save_database
from aot_tune.inspection import inspect_functions, with_inspections
from aot_tune.library import load_operators
from aot_tune.render import Candidate, Renderer

ROOT = Path(__file__).resolve().parents[1]
VENDOR = hashlib.sha256(b"cublaslt").hexdigest()
Row = dict[str, Any]
Sources = dict[str, dict[str, tuple[str, str]]]


def rendered(folder: Path, tree: Path) -> Sources:
    """Digest and text of each recorded candidate's source, as the imported package renders the templates of a tree."""
    roots = [tree / "templates"]
    operators = {name: operator for name, (_, operator) in load_operators(roots).items()}
    targets = [target_by_name("cuda-sm_90a")]
    environ = {**os.environ, "AOT_TUNE_TEMPLATE_ROOTS": str(roots[0])}
    known, note = inspect_functions(operators, targets, generic_targets(targets), roots, environ)
    assert not note, note
    renderer, found = Renderer(roots), Sources()
    for path in sorted(folder.rglob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        name = rows[0]["header"]["operator"]
        operator = with_inspections(operators[name], known, ["cpu", "cuda"])
        for row in (r["candidate"] for r in rows if "candidate" in r):
            order = [p.name for p in operator.kernel(row["kernel"]).parameters]
            config = {n: row["config"][n] for n in order if n in row.get("config", {})} | row.get("config", {})
            fields = {n: row[n] for n in ("kernel", "backend", "target", "pins", "generic", "dtypes") if n in row}
            candidate = Candidate(operator=name, config=config, **fields)
            assert candidate.id == row["id"]
            made = renderer.render(operator, candidate, target_by_name(row["target"]))
            found.setdefault(str(path.relative_to(folder)), {})[row["id"]] = made.digest, made.source
    return found


def compiled(backend: str, target: str, source: str, known: dict[str, list[str]]) -> tuple[str, str]:
    """Digests of the object and of its device code; `known` has those of earlier runs."""
    key = hashlib.sha256(f"{target}\0{backend}{source}".encode()).hexdigest()
    if key not in known:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "object.o")
            made = toolchain_for(backend).compile(source, target_by_name(target), path, 600.0)
            assert made.status == "ok", made.log
            known[key] = [hashlib.sha256(path.read_bytes()).hexdigest(), made.device]
    return known[key][0], known[key][1]


def convert(row: Row, old: tuple[str, str], new: tuple[str, str], alike: bool, known: dict[str, list[str]]) -> str:
    """Bring a candidate's line up to schema 3; says what became of it."""
    if old[0] != row["source"]:
        if row["backend"] != "cxx":
            row.pop("object", None)
        return "void as before"
    row["source"] = new[0]
    if row["status"] != "ok":
        return "failed"
    if row["backend"] in ("triton", "cublaslt"):
        del row["object"]
        row["device"] = row["device"] if row["backend"] == "triton" else VENDOR
        return row["backend"]
    assert alike, "the recorded compiler is needed"
    after = compiled(row["backend"], row["target"], new[1], known)
    if "cutlass" not in row["kernel"]:
        before = compiled(row["backend"], row["target"], old[1], known)
        assert before[0] == row["object"] if row["backend"] == "cxx" else before[1] == row["device"]
    if row["backend"] == "cxx":
        row["object"] = after[0]
    else:
        row["device"] = after[1]
        del row["object"]
    return row["backend"]


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tuning"
    if os.environ.get("TREE"):  # the old package's answer
        print(json.dumps(rendered(folder, Path(os.environ["TREE"]))))
        return
    tree, cache = os.environ["OLD_TREE"], Path(os.environ.get("COMPILED", os.devnull))
    command = [sys.executable, __file__, str(folder)]
    environ = {**os.environ, "TREE": tree, "PYTHONPATH": os.pathsep.join([tree, os.environ.get("PYTHONPATH", "")])}
    old = json.loads(subprocess.run(command, env=environ, check=True, capture_output=True).stdout)
    new = rendered(folder, ROOT)
    known = json.loads(cache.read_text() or "{}") if cache.is_file() else {}
    for path in sorted(folder.rglob("*.jsonl")):
        name = str(path.relative_to(folder))
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows[0]["header"]["schema"] = 3
        chains = next(r["toolchains"] for r in rows if "toolchains" in r)
        counts: dict[str, int] = {}
        for row in (r["candidate"] for r in rows if "candidate" in r):
            chain = toolchain_for(row["backend"]) if row["backend"] in ("cxx", "nvcc") else None
            part = chain.device_identity if chain is not None else dict
            alike = chain is not None and part(chains[row["backend"]]) == part(chain.identity())
            said = convert(row, old[name][row["id"]], new[name][row["id"]], alike, known)
            counts[said] = counts.get(said, 0) + 1
        path.write_text("".join(json.dumps(r, separators=(",", ":"), ensure_ascii=False) + "\n" for r in rows))
        save_database(folder, load_database(path))
        print(name, counts)
        if cache != Path(os.devnull):
            cache.write_text(json.dumps(known))


if __name__ == "__main__":
    main()
