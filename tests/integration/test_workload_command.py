"""`aot-tune workload` on a library that was built: what of a trace it measured."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from environments import run
from project import Project


def test_a_trace_against_a_build(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "project")
    project.configure()
    project.build()
    build = project.folder / "build"
    digest = hashlib.sha256((build / "manifest.json").read_bytes()).hexdigest()
    head = {"trace": {"library": "tiny", "prefix": "tiny", "build": digest, "pid": 7, "begun": 1.0}}
    calls = [
        {"operator": "twice", "dims": {"N": 20000}, "strides": {"x": [1]}, "calls": 30, "captured": 10},
        {"operator": "twice", "dims": {"N": 40000}, "calls": 10, "captured": 0},
    ]
    traces = []
    for number in (0, 1):
        traces.append(tmp_path / f"trace.{number}.jsonl")
        traces[-1].write_text("".join(json.dumps(line) + "\n" for line in [head, *calls]))

    def workload(*arguments: object) -> str:
        command = project.command("workload", *arguments, "--templates", project.templates)
        return " ".join(run(command, env=project.environment()).split())

    merged = tmp_path / "workload.jsonl"
    assert f"{merged}: 2 problems, 80 calls" in workload("merge", *traces, "-o", merged)
    assert json.loads(merged.read_text().splitlines()[0]) == {"operator": "twice", "dims": {"N": 20000}, "weight": 60}
    assert "60 75.0 % 33.3 % 20000" in workload("show", *traces)
    said = workload("coverage", *traces, "--library", build)
    assert "warning" not in said
    assert f"library tiny, build {digest[:12]} at {build}" in said
    assert "twice 2 1 80 75.0 %" in said
    assert re.search(r"twice N=40000 20 calls about [\d.]+ \w+, by N=60000", said), said
