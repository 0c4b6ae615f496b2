"""Which tests share fixtures, and so a process where several test side by side."""

from __future__ import annotations

OWN_BUILDS = (
    "auto",
    "cmake_flags",
    "cmake_projects",
    "cuda",
    "cutlass",
    "hip_package",
    "jax_own",
    "lifetime",
    "linked",
    "repeat",
    "torch_own",
    "trace",
    "triton_package",
)
"""Files of tests/integration, between `test_` and `.py`, that do not need the project's wheel, which takes long."""


def shared_scope(nodeid: str) -> str:
    """The name of what a test shares fixtures with: its file, or all that need the wheel.

    Tests in Triton's interpreter share nothing with the others of their file, and both halves are long.
    """
    file, _, test = nodeid.partition("::")
    folder, _, name = file.rpartition("/")
    if folder.endswith("gpu") and name in ("test_calls.py", "test_variants.py"):
        return folder  # the library of all operators
    if folder.endswith("integration") and name.removeprefix("test_").removesuffix(".py") not in OWN_BUILDS:
        return folder
    return f"{file} interpreted" if "interpreter" in test else file
