"""Compiling every candidate, without a device: the mode `compile` and the command `aot-tune compile`."""
