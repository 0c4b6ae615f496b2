"""Families of devices: which are here, how they are measured, what watches them; one module each."""
