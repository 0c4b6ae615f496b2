"""Accident containment for workers: Landlock, resource limits, parent-death signal. Not a security boundary.

A worker may read everything. It may write only to its scratch folder, `/dev/null`, `/dev/shm` and what its device
family names. TCP, and signals to processes outside, are denied if the kernel can do so. Threads and children made later
inherit all this, so it is set up before the worker makes any.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import resource
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path

from aot_tune.support.kernel_features import landlock_abi
from aot_tune.support.processes import data_bytes

# Numbers of the kernel's ABI: <linux/prctl.h>, <linux/landlock.h>. System calls have these numbers on all architectures
# since Linux 5.1's unified table, including x86-64 and aarch64.
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_NO_NEW_PRIVS = 1, 15, 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULE_PATH_BENEATH = 1
_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_IOCTL_DEV = 1 << 15
_CHANGE_FOLDERS = sum(1 << bit for bit in range(4, 13))  # remove and make, for every kind of file
_NET_BIND, _NET_CONNECT = 1, 2
_SCOPE_ABSTRACT_UNIX, _SCOPE_SIGNAL = 1, 2
_LIMITS = {n: int(getattr(resource, n)) for n in sorted(dir(resource)) if re.fullmatch("RLIMIT_(?!OFILE)[A-Z]+", n)}
"""Numbers of the system's limits by name. RLIMIT_OFILE is a second name of another limit."""


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def set_name(name: str) -> None:
    """Name this process, as /proc shows it."""
    _libc().prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def tie_to_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies. If the parent is dead already, end at once."""
    _libc().prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def limit(output_bytes: int) -> None:
    """Cap the size of files and forbid core dumps. Memory has its own limit, set when buffers are known."""
    _lower(resource.RLIMIT_FSIZE, output_bytes)
    _lower(resource.RLIMIT_CORE, 0)


def mark(value: int) -> None:
    """Mark this process and all its descendants by a limit of message queues, which nobody uses."""
    _lower(resource.RLIMIT_MSGQUEUE, value)


def memory_limit(allowance: int | None) -> None:
    """Let this process's data grow by `allowance` bytes from now on. None lifts the limit.

    RLIMIT_DATA counts private writable memory. Unlike RLIMIT_AS, it does not count reservations, and device drivers
    make very large ones.
    """
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    soft = hard
    if allowance is not None:
        soft = data_bytes() + allowance
        if hard != resource.RLIM_INFINITY:
            soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _lower(what: int, value: int) -> None:
    hard = resource.getrlimit(what)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (value, value))


def limits() -> dict[str, tuple[int, int]]:
    """Soft and hard limits of this process by name."""
    return {name: resource.getrlimit(number) for name, number in _LIMITS.items()}


def lowered(before: Mapping[str, tuple[int, int]]) -> list[str]:
    """Names of limits that are lower than before, without memory's soft limit, which `memory_limit` changes."""

    def size(value: int) -> float:
        return math.inf if value == resource.RLIM_INFINITY else value

    now = limits()
    soft = {n for n in now if n != "RLIMIT_DATA" and size(now[n][0]) < size(before[n][0])}
    hard = {n for n in now if size(now[n][1]) < size(before[n][1])}
    return sorted(soft | hard)


def restrict(writable: Iterable[Path]) -> str:
    """Deny writing outside `writable`, and TCP, for good. Returns why that is impossible, or empty."""
    abi = landlock_abi()
    if not abi:
        return "this kernel has no Landlock: candidates may write wherever the user may"
    libc = _libc()
    rights = _WRITE_FILE | _CHANGE_FOLDERS
    rights |= _REFER if abi >= 2 else 0
    rights |= _TRUNCATE if abi >= 3 else 0
    attributes = _Ruleset(rights, 0, 0)
    size = 8
    if abi >= 4:
        attributes.net, size = _NET_BIND | _NET_CONNECT, 16
    if abi >= 6:
        attributes.scoped, size = _SCOPE_ABSTRACT_UNIX | _SCOPE_SIGNAL, 24
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0))
    if ruleset < 0:
        return f"Landlock refuses a ruleset: {os.strerror(ctypes.get_errno())}"
    try:
        for path in writable:
            _allow(libc, ruleset, path, rights)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if libc.syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0)) != 0:
            return f"Landlock cannot be entered: {os.strerror(ctypes.get_errno())}"
    finally:
        os.close(ruleset)
    return ""


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # a path that does not exist needs no permission
    try:
        if not path.is_dir():
            rights &= _WRITE_FILE | _TRUNCATE | _IOCTL_DEV
        rule = _PathBeneath(rights, descriptor)
        libc.syscall(
            _ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_RULE_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0)
        )
    finally:
        os.close(descriptor)
