"""Expressions as data: integers of a call, and formulas of an element. Python, arrays, C++ and Triton evaluate them."""
