"""Reads and checks what a library's module says of its operators, alike for every framework."""
