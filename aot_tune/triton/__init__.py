"""Triton's side: what reads and compiles @triton.jit functions, in processes of its own.

`interface` alone imports Triton; it, `inspect` and `worker` run in such a process. `messages`, `client`, `installed`
and `devices` are the build's end of it.
"""
