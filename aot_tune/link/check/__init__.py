"""Checks of a library: its tables before anything is written, and what the linker made."""
