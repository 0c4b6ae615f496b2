"""Which tests share fixtures, and so a process where several test side by side, and which scopes begin first."""

from __future__ import annotations

WHEEL = (
    "calls",
    "cpp",
    "dispatch",
    "jax_bundled",
    "kernel_author",
    "levels",
    "patched_models",
    "random_calls",
    "release",
    "replay",
    "torch_bundled",
    "wheel",
)
"""Files of tests/integration, between `test_` and `.py`, that need the project's wheel, which takes long."""
LONG = ("integration/", "faults/", "gpu/", "unit/pipeline/", "unit/bench/")
"""Parts of paths: what takes long begins first, so that the processes end together."""


def shared_scope(nodeid: str) -> str:
    """The name of what a test shares fixtures with: its file, or all that need the wheel.

    Tests in Triton's interpreter share nothing with the others of their file, and both halves are long.
    """
    file, _, test = nodeid.partition("::")
    folder, _, name = file.rpartition("/")
    if folder.endswith("gpu") and name in ("test_calls.py", "test_variants.py"):
        return folder  # the library of all operators
    if folder.endswith("integration") and name.removeprefix("test_").removesuffix(".py") in WHEEL:
        return folder
    return f"{file} interpreted" if "interpreter" in test else file


def rank(nodeid: str) -> int:
    """The place of a test among those of a run: what needs the wheel, then other long ones, then the rest."""
    if shared_scope(nodeid).endswith("integration"):
        return -1
    return next((place for place, part in enumerate(LONG) if part in nodeid), len(LONG))
