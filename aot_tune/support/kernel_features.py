"""What the kernel offers: Landlock and subreapers, to contain processes; and the tiles of AMX."""

from __future__ import annotations

import ctypes
import os
import platform
import threading

# Numbers of the kernel's ABI: <linux/prctl.h>, <linux/landlock.h>, <asm/prctl.h>.
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_CREATE_RULESET, _GET_VERSION = 444, 1
_ARCH_PRCTL, _GET_SUPPORTED_STATE, _REQUEST_STATE, _TILE_DATA = 158, 0x1021, 0x1023, 18

_holders: list[bool] = []  # what was set before each of the holders came
_holding = threading.Lock()


def set_subreaper(value: bool) -> bool:
    """Set whether orphaned descendants become children of this process. Returns what was set before."""
    before = ctypes.c_int(0)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, int(value), 0, 0, 0)
    return bool(before.value)


def hold_subreaper() -> None:
    """Make orphaned descendants children of this process, until every bench that holds this has released it."""
    with _holding:
        _holders.append(set_subreaper(True))


def release_subreaper() -> None:
    """Undo one `hold_subreaper`. The last one restores what was set before the first."""
    with _holding:
        before = _holders.pop(0)
        if _holders:
            _holders[0] = before
        else:
            set_subreaper(before)


def landlock_abi() -> int:
    """Version of the kernel's Landlock; 0 if there is none."""
    version: int = ctypes.CDLL(None, use_errno=True).syscall(
        _CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_GET_VERSION)
    )
    return max(version, 0)


def has_tiles() -> bool:
    """Whether the kernel lets programs use the tiles of AMX when they ask for them."""
    supported = ctypes.c_uint64(0)
    failed = _arch_prctl(_GET_SUPPORTED_STATE, ctypes.byref(supported))
    return not failed and bool(supported.value >> _TILE_DATA & 1)


def allow_tiles() -> bool:
    """Ask the kernel for the tiles of AMX, for this process and its forks. Returns whether it grants them."""
    return not _arch_prctl(_REQUEST_STATE, ctypes.c_ulong(_TILE_DATA))


def _arch_prctl(what: int, value: object) -> bool:
    """Ask the kernel of an x86-64 CPU. Returns whether it refuses."""
    if platform.machine() != "x86_64":
        return True
    return bool(ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, ctypes.c_int(what), value))


def features() -> dict[str, int]:
    """What this machine's kernel offers: the Landlock version, and whether it can deny TCP and restrict signals."""
    abi = landlock_abi()
    return {
        "landlock": abi,
        "landlock_tcp": int(abi >= 4),
        "landlock_signals": int(abi >= 6),
        "pidfd": int(hasattr(os, "pidfd_open")),
        "subreaper": 1,
        "rlimit_data": 1,
    }
