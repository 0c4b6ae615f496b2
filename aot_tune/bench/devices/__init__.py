"""Families of devices, one module each: which devices are here, how they are measured, what watches them."""
