"""Triton's side: reads and compiles @triton.jit functions in separate processes.

Only `triton_private` and `interpreter` import Triton. They run in such a process, as do `declarations_worker` and
`compile_worker`. `compile_pool` and `ask_declarations` are the build's side. `triton_messages` are between them.
"""
