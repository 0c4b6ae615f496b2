"""Triton functions as sources: what is compiled for a call, under which guards, and the C++ that launches it."""
