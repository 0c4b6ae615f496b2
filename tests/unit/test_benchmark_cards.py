"""How a machine with two GPUs is shared by the lanes that measure on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "cards.sh"
CARD = """#!/usr/bin/env bash
mkdir -p "$1"
echo "$CUDA_VISIBLE_DEVICES: $(python -c 'import os; print(*sorted(os.sched_getaffinity(0)))')" >"$1/summary.txt"
"""


def test_lanes_run_on_the_cores_that_there_are(tmp_path: Path) -> None:
    """Those of a container need not begin at 0."""
    cores = sorted(os.sched_getaffinity(0))[-2:]
    shutil.copy(SCRIPT, tmp_path)
    (tmp_path / "card.sh").write_text(CARD)
    (tmp_path / "card.sh").chmod(0o700)
    script = ["taskset", "-c", ",".join(map(str, cores)), "bash", str(tmp_path / "cards.sh")]
    out = tmp_path / "out"
    env = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    subprocess.run([*script, "start", str(out)], check=True, timeout=60, env=env)
    subprocess.run([*script, "wait", str(out), "60"], check=True, timeout=90)
    told = {path.parent.name: path.read_text().strip() for path in out.glob("*/summary.txt")}
    first, last, whole = cores[0], cores[-1], " ".join(map(str, cores))
    assert told == {"first": f"0: {first}", "second": f"1: {last}", "both": f"0,1: {whole}"}
