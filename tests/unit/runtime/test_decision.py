"""The templates that serve an operator's calls, compiled for an operator that is written by hand, with sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import linked
from places import SHARED

from aot_tune.support.installed_paths import RUNTIME


def test_an_operator_written_by_hand(tmp_path: Path) -> None:
    objects = linked.sanitized_runtime(tmp_path / "runtime")
    flags = [*linked.SANITIZE, "-std=c++17", "-g", f"-I{RUNTIME}", f"-I{RUNTIME / 'include'}", "-pthread", "-fopenmp"]
    program = tmp_path / "decisions"
    subprocess.run(["g++", *flags, str(SHARED / "decisions.cpp"), *objects, "-o", str(program)], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
