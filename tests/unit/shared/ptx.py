"""CUDA kernels compiled for Hopper's GPUs without what the host has: their PTX, and what is wrong with its order."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from aot_tune.compile.cuda.gpu_targets import TARGETS, code_flags

(HOPPER,) = (t for t in TARGETS if t.name == "cuda-sm_90a")


def faults(ptx: str, ahead: bool = False) -> list[str]:
    """What is wrong with the order of instructions; kernels for any call are launched after all others have ended.

    Kernels that are `ahead` let the next one start before they wait: it waits, too.
    """
    found = []
    for entry in ptx.split(".entry ")[1:]:
        name = entry.partition("(")[0]
        if "_any" in name:
            continue
        steps = re.findall(r"griddepcontrol\.\w+|(?:ld|st)\.global[\w.:]*", entry)
        first = ["griddepcontrol.launch_dependents"] * ahead + ["griddepcontrol.wait"]
        if steps[: len(first)] != first or steps.count("griddepcontrol.launch_dependents") != 1:
            found.append(f"{name} begins with {steps[:2]}")
        found += [f"{name} has {step}" for step in steps if ".nc" in step]
    return found


def compiled(source: str, folder: Path) -> tuple[str, str]:
    """The PTX, and what the assembler said; there was no warning and no spill."""
    (folder / "candidate.cu").write_text(source)
    command = ["nvcc", "-std=c++17", "-O3", *code_flags(HOPPER), "-Xptxas", "-v", "-diag-suppress", "177", "-keep"]
    done = subprocess.run([*command, "-cubin", "candidate.cu"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    assert done.stderr.count("spill stores") == done.stderr.count(" 0 bytes spill stores") > 0, done.stderr
    return (folder / "candidate.ptx").read_text(), done.stderr
