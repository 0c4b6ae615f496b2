"""A worker on a CPU."""
