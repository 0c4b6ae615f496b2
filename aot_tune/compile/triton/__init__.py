"""Triton's side of compiling: processes that make images, and the launchers that embed them."""
