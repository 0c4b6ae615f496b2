"""Checks of a library: its tables before anything is written, and the files that the linker made."""
