"""Drives the stages in their order: nothing else knows all of them."""
