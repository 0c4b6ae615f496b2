"""NVIDIA's side of compiling: nvcc, its toolkit, targets, the GPUs that are here, and calls of its libraries."""
