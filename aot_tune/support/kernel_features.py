"""What the kernel offers to contain processes: Landlock, and orphans that come to an ancestor."""

from __future__ import annotations

import ctypes
import os

__all__ = ["features", "landlock_abi", "set_subreaper"]

# Numbers of the kernel's ABI: <linux/prctl.h>, <linux/landlock.h>.
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_CREATE_RULESET, _GET_VERSION = 444, 1


def set_subreaper(value: bool) -> bool:
    """Whether orphaned descendants come to this process; returns what was set before."""
    before = ctypes.c_int(0)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, int(value), 0, 0, 0)
    return bool(before.value)


def landlock_abi() -> int:
    """Version of the kernel's Landlock; 0 when there is none."""
    version: int = ctypes.CDLL(None, use_errno=True).syscall(
        _CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_GET_VERSION)
    )
    return max(version, 0)


def features() -> dict[str, int]:
    """What this machine's kernel offers: the Landlock version, and whether it denies TCP and scopes signals."""
    abi = landlock_abi()
    return {
        "landlock": abi,
        "landlock_tcp": int(abi >= 4),
        "landlock_signals": int(abi >= 6),
        "pidfd": int(hasattr(os, "pidfd_open")),
        "subreaper": 1,
        "rlimit_data": 1,
    }
