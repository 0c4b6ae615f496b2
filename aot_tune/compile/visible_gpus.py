"""The GPUs of this machine, as a child process learns them from the driver, and what keeps a build from using them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from aot_tune.support.errors import ToolchainError

ANSWER_SECONDS = 20.0
_TORCH = re.compile(r"^(__version__|cuda)\b[^=\n]*= *'([^']+)'", re.MULTILINE)
_MODES = {0: "default", 1: "exclusive", 2: "prohibited", 3: "exclusive"}
_ASKED = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES")
_NO_DEVICE, _BAD_DEVICE = 100, 101
_REASONS = {
    34: (
        "the libcuda.so.1 that was loaded is the toolkit's stub, not a driver",
        "take the folder `stubs` out of LD_LIBRARY_PATH",
    ),
    _NO_DEVICE: ("the driver sees no GPU", "check `nvidia-smi`; in a container pass the GPUs in, such as --gpus all"),
    _BAD_DEVICE: ("the driver does not know a device that was named", "name one that `nvidia-smi -L` lists"),
    304: (
        "the driver may not open the device files",
        "allow read and write of /dev/nvidia* and of /proc/self/task in the sandbox or container",
    ),
    802: ("the GPUs are not ready", "start nvidia-fabricmanager, or wait until the GPUs are up"),
    803: (
        "the driver's library is of another version than the kernel's module",
        "reboot, or pass the host's own driver library into the container",
    ),
    804: ("this libcuda does not run on this GPU", "take the CUDA compatibility package out of LD_LIBRARY_PATH"),
}


class CudaDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A visible GPU.

    Args:
        ordinal: its number under CUDA_VISIBLE_DEVICES.
        uuid: GPU-..., or MIG-... for a slice of one.
        capability: such as 90. It is the level of the targets that the GPU runs.
        shared_bytes: largest shared memory of a block.
        compute_mode: default, exclusive (one process at a time) or prohibited.
        settings: the power limit and the memory's clock, where they are not as usual on the board.
        mig: `slice` for a slice, `enabled` or `disabled` for a whole GPU, empty if it is not known.
    """

    ordinal: int
    name: str
    uuid: str
    capability: int
    sm_count: int
    l2_bytes: int
    memory_bytes: int
    shared_bytes: int
    compute_mode: str = "default"
    mig: str = ""
    settings: dict[str, int] = {}


class DeviceQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver told.

    Args:
        driver: the newest CUDA that it supports, such as 13000 for 13.0. 0 without a driver.
        driver_text: its own version, such as 580.95.05. Empty if NVML does not tell.
        error: why there is no device, in one line. Empty if there is one.
        fix: what to do about it.
    """

    devices: tuple[CudaDevice, ...] = ()
    driver: int = 0
    driver_text: str = ""
    error: str = ""
    fix: str = ""


def visible_devices(environ: Mapping[str, str] | None = None) -> DeviceQuery:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves visible. A child asks once per value of it, without a context."""
    environ = os.environ if environ is None else environ
    return query_with(tuple((name, environ.get(name)) for name in _ASKED))


def check_driver(toolkit: str, driver: int) -> str:
    """Check that a driver runs what a toolkit makes. Returns a warning, or an empty text.

    Within a major version, an older driver runs machine code of a newer toolkit, but does not translate its PTX.

    Args:
        toolkit: version of nvcc, such as 13.0.88.
        driver: what `DeviceQuery.driver` holds.

    Raises:
        ToolchainError: when the driver is older than the toolkit's major version.
    """
    major, minor = (int(n) for n in toolkit.split(".")[:2])
    have = (driver // 1000, driver % 1000 // 10)
    if have >= (major, minor):
        return ""
    what = f"the driver supports CUDA {have[0]}.{have[1]}, nvcc is of CUDA {major}.{minor}"
    if have[0] < major:
        raise ToolchainError(
            f"the NVIDIA driver is older than the toolkit: {what}",
            why="a driver cannot run code from a toolkit of a later major version",
            fix=f"update the driver to one of CUDA {major}.{minor} or later, or point NVCC or CUDA_HOME to a toolkit "
            f"of CUDA {have[0]}",
        )
    return (
        f"{what}: it runs machine code for the GPUs of the named targets, but cannot translate the PTX of the generic "
        "variants for other GPUs; update the driver to have that too"
    )


def check_torch(built_for: str | None, driver: int) -> None:
    """Raise ToolchainError when torch cannot use the driver.

    Args:
        built_for: `torch.version.cuda`. None for a torch without CUDA.
        driver: what `DeviceQuery.driver` holds. 0 means no driver, which is not torch's fault.
    """
    if built_for is None:
        raise ToolchainError(
            "this torch is built without CUDA",
            why="references and baselines on a GPU run in torch",
            fix="install a torch built for CUDA, or build with AOT_TUNE_MODE=replay, which needs no torch",
        )
    major = int(built_for.partition(".")[0])
    if driver and driver // 1000 < major:
        raise ToolchainError(
            f"torch is built for CUDA {built_for}, but the driver supports CUDA {driver // 1000}.{driver % 1000 // 10}",
            why="a driver cannot run code for a later major version of CUDA",
            fix=f"update the driver, or install a torch built for CUDA {driver // 1000}",
        )


def installed_torch() -> tuple[str, str | None] | None:
    """The versions of torch, and of the CUDA that it is built for, without importing it. None if there is no torch."""
    try:
        spec = importlib.util.find_spec("torch")
        text = Path(spec.origin or "").with_name("version.py").read_text() if spec is not None else ""
    except (OSError, ImportError, ValueError):
        return None
    versions = dict(_TORCH.findall(text))
    return (versions["__version__"], versions.get("cuda")) if "__version__" in versions else None


def check_usable(query: DeviceQuery) -> None:
    """Raise ToolchainError if no visible GPU can be measured: there is none, or its mode forbids it.

    A GPU in exclusive mode serves one process at a time. Only making a context shows whether a process uses it now.
    """
    if query.error or not query.devices:
        raise ToolchainError(query.error or "there is no GPU", why="candidates are measured on a GPU", fix=query.fix)
    for device in query.devices:
        if device.compute_mode != "default":
            raise ToolchainError(
                f"GPU {device.ordinal} ({device.name}, {device.uuid}) is in compute mode {device.compute_mode}",
                why="a build runs a worker, a spare and a reference process on a GPU at the same time"
                if device.compute_mode == "exclusive"
                else "no process may use it",
                fix=f"`nvidia-smi -i {device.uuid} -c DEFAULT` as administrator, or leave it out of "
                "CUDA_VISIBLE_DEVICES",
            )


def check_ready(toolkit: str, query: DeviceQuery) -> str:
    """Check all that a build needs to measure on the visible GPUs. Returns a warning, or an empty text.

    Args:
        toolkit: version of nvcc.

    Raises:
        ToolchainError: for what prevents it: no GPU, its mode, torch, the driver.
    """
    check_usable(query)
    torch = installed_torch()
    if torch is None:
        raise ToolchainError(
            "torch is not installed",
            why="references and baselines on a GPU run in torch",
            fix="install torch and build with --no-build-isolation; or replay records with AOT_TUNE_MODE=replay; or "
            "leave the GPU out with AOT_TUNE_TARGETS=cpu",
        )
    check_torch(torch[1], query.driver)
    return check_driver(toolkit, query.driver)


@cache
def query_with(variables: tuple[tuple[str, str | None], ...]) -> DeviceQuery:
    """Ask the driver with these variables, and no others that it reads. Each set of variables is asked once."""
    # Only the driver interprets these: numbers, UUIDs, their beginnings, MIG names.
    environ = {k: v for k, v in os.environ.items() if k not in _ASKED} | {k: v for k, v in variables if v is not None}
    program = Path(__file__).with_name("ask_driver.py")
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(program)],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ANSWER_SECONDS,
            cwd="/",
            check=False,
        )
        answer = msgspec.json.decode(done.stdout)
    except subprocess.TimeoutExpired:
        return DeviceQuery(
            error=f"the NVIDIA driver did not answer within {ANSWER_SECONDS:g} s",
            fix="check with `nvidia-smi`; a GPU that hangs needs a reset or a reboot",
        )
    except msgspec.DecodeError:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
        return DeviceQuery(
            error=f"asking the NVIDIA driver failed (exit status {done.returncode}) {last}".rstrip(),
            fix="check with `nvidia-smi`",
        )
    return _understood(answer, dict(variables).get("CUDA_VISIBLE_DEVICES"))


def _understood(answer: dict[str, object], visible: str | None) -> DeviceQuery:
    rows = msgspec.convert(answer["devices"], list[dict[str, Any]])
    devices = tuple(
        msgspec.convert(
            row
            | {
                "capability": int(row["capability_major"]) * 10 + int(row["capability_minor"]),
                "compute_mode": _MODES.get(int(row["compute_mode"]), "default"),
            },
            CudaDevice,
        )
        for row in rows
    )
    driver = msgspec.convert(answer["driver"], int)
    error, fix = ("", "") if devices else _reason(answer, driver, visible)
    return DeviceQuery(devices=devices, driver=driver, driver_text=str(answer["driver_text"]), error=error, fix=fix)


def _reason(answer: dict[str, object], driver: int, visible: str | None) -> tuple[str, str]:
    code = msgspec.convert(answer["code"], int)
    if answer["failed"] == "load":
        return (
            f"there is no NVIDIA driver: {answer['detail']}",
            "install the driver; in a container pass the GPUs in, such as --gpus all",
        )
    if visible is not None and code in (0, _NO_DEVICE, _BAD_DEVICE):
        return (
            f"CUDA_VISIBLE_DEVICES={visible!r} leaves no GPU visible",
            "unset it, or set it to numbers or UUIDs that `nvidia-smi -L` lists",
        )
    what, fix = _REASONS.get(code or _NO_DEVICE, ("the NVIDIA driver cannot be used", "check with `nvidia-smi`"))
    detail = f" ({answer['failed']}: {code} {answer['detail']})".rstrip(" )") + ")" if code else ""
    return f"{what}{detail}", fix if driver else f"{fix}; the driver does not tell its version"
