"""The scripts that measure a commit on a machine with GPUs: what is run, on which cores, and what fails alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import BENCHMARKS

SCRIPT = BENCHMARKS / "cards.sh"
CARD = """#!/usr/bin/env bash
mkdir -p "$1"
echo "$CUDA_VISIBLE_DEVICES: $(python -c 'import os; print(*sorted(os.sched_getaffinity(0)))')" >>"$1/summary.txt"
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
    assert told == {"first": f"0: {first}\n0: {first}", "second": f"1: {last}", "both": f"0,1: {whole}"}


PYTHON = """#!/usr/bin/env bash
[ "$1" != -u ] || exec {real} "$@"
echo "$PYTHONPATH: $*" >>"{log}"
[ "$2" != pip ]
"""


@pytest.mark.parametrize("tuned", [True, False])
def test_kernels_of_triton_are_measured_without_the_example(tmp_path: Path, tuned: bool) -> None:
    """One that does not build, or a library that was not, takes no measurement of the bundled kernels with it."""
    stub, log, work = tmp_path / "bin" / "python", tmp_path / "log", tmp_path / "work"
    stub.parent.mkdir()
    stub.write_text(PYTHON.format(real=sys.executable, log=log))
    stub.chmod(0o700)
    package = work / "tuned" / "installed" if tuned else SCRIPT.parents[1]
    package.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "PATH": f"{stub.parent}:{os.environ['PATH']}", "WORK": str(work)}
    script = ["bash", str(SCRIPT.with_name("card.sh")), str(tmp_path / "out"), "triton"]
    done = subprocess.run(script, env=env, stdout=subprocess.PIPE, text=True, check=False, timeout=60)
    assert (done.returncode, "status 1" in done.stdout) == ((1, True) if tuned else (0, False))
    assert f"{package}: benchmarks/triton_kernels.py --parts attention" in log.read_text()
