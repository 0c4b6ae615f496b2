"""Where CUDA's compiler comes from. Only the standard library, because the build backend uses it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["NVCC_WHEELS", "SYSTEM_CUDA"]

SYSTEM_CUDA = Path("/usr/local/cuda")
"""The machine's toolkit, unless a variable names another."""

NVCC_WHEELS = ("nvidia-cuda-nvcc", "nvidia-cuda-runtime", "nvidia-cuda-cccl")
"""What `pip install` needs for a complete compiler. The first package also installs nvidia-cuda-crt and nvidia-nvvm."""
