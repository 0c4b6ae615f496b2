"""Where CUDA's compiler comes from; only the standard library, for the build backend."""

from __future__ import annotations

from pathlib import Path

__all__ = ["NVCC_WHEELS", "SYSTEM_CUDA"]

SYSTEM_CUDA = Path("/usr/local/cuda")
"""The machine's toolkit, where no variable names another."""

NVCC_WHEELS = ("nvidia-cuda-nvcc", "nvidia-cuda-runtime", "nvidia-cuda-cccl")
"""What `pip install` needs for a whole compiler; the first one brings nvidia-cuda-crt and nvidia-nvvm along."""
