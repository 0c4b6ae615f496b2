"""A worker on an NVIDIA GPU."""
