"""Compiles and measures for a build on the nodes of a running Ray cluster."""
