"""NVIDIA's compiler: where it comes from, and what its assembler reports.

Only the standard library, because the build backend uses it.
"""

from __future__ import annotations

import re
from pathlib import Path

SYSTEM_CUDA = Path("/usr/local/cuda")
"""The machine's toolkit, unless a variable names another."""

NVCC_WHEELS = ("nvidia-cuda-nvcc", "nvidia-cuda-runtime", "nvidia-cuda-cccl")
"""What `pip install` needs for a complete compiler. The first package also installs nvidia-cuda-crt and nvidia-nvvm."""

_USED = re.compile(r"\bUsed (\d+) registers")
_SHARED = re.compile(r"\b(\d+)(?:\+\d+)? bytes smem")
_FRAME = re.compile(r"\b(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


def kernel_resources(output: str) -> dict[str, int]:
    """The largest values of all kernels, as `ptxas -v` reports them.

    `registers` of a thread; `spill_bytes` of its stores and loads; `shared` (static, of a block) and `stack` (of a
    thread) in bytes. Device functions that are not inlined have stack frames too.
    """
    frames = [tuple(map(int, row)) for row in _FRAME.findall(output)]
    return {
        "registers": max(map(int, _USED.findall(output)), default=0),
        "spill_bytes": max((stores + loads for _, stores, loads in frames), default=0),
        "shared": max(map(int, _SHARED.findall(output)), default=0),
        "stack": max((frame for frame, _, _ in frames), default=0),
    }
