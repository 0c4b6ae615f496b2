"""C++ and CUDA C++ compiled for the host; cuda_on_host/cuda_runtime.h stands in for CUDA."""

import subprocess
from pathlib import Path

from places import SHARED

CUDA = ("-I", str(SHARED / "cuda_on_host"), "-include", "cuda_runtime.h")
"""Options for CUDA C++. What a GPU would not load, the options of all trap."""


def shared_object(source: Path, *options: str) -> Path:
    faults = ("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")
    flags = ["-std=c++17", "-O1", "-w", "-fPIC", "-fno-gnu-unique", "-fno-strict-aliasing", *faults, *options]
    made = source.with_suffix(".so")
    command = ["g++", *flags, "-shared", source.name, "-o", made.name, "-ldl"]
    done = subprocess.run(command, cwd=source.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    return made
