"""Asks the NVIDIA driver which GPUs are visible, without a context on any GPU. Prints the answer as JSON.

This is a program of its own, for three reasons. The driver reads CUDA_VISIBLE_DEVICES only once per process, it may
crash, and it must not be initialised in a process that will fork workers. It only uses the standard library, so it
starts in 30 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import uuid
from collections.abc import Iterator
from typing import Any

# attributes of cuDeviceGetAttribute
_ATTRIBUTES = {
    "sm_count": 16,
    "compute_mode": 20,
    "l2_bytes": 38,
    "capability_major": 75,
    "capability_minor": 76,
    "shared_bytes": 97,
}
_NVML_MIG_ENABLED = 1
_SETTINGS = {  # the question for what is set, for what is usual on the board, their arguments, and the unit
    "power_watts": ("nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetPowerManagementDefaultLimit", (), 1000),
    "memory_mhz": ("nvmlDeviceGetApplicationsClock", "nvmlDeviceGetDefaultApplicationsClock", (2,), 1),
}


def probe() -> dict[str, Any]:
    """The answer: `driver` (an integer such as 13000), `driver_text`, `devices`, and what failed with which code."""
    answer: dict[str, Any] = {"driver": 0, "driver_text": "", "devices": [], "failed": "", "code": 0, "detail": ""}
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        version = ctypes.c_int(0)
        if cuda.cuDriverGetVersion(ctypes.byref(version)) == 0:
            answer["driver"] = version.value
        _devices(cuda, answer)
    except (OSError, AttributeError) as error:
        answer |= {"failed": "load", "detail": str(error)}
    if answer["driver"]:
        _add_nvml(answer)
    return answer


def _devices(cuda: Any, answer: dict[str, Any]) -> None:
    count = ctypes.c_int(0)
    name, code = "cuInit", cuda.cuInit(0)
    if code == 0:
        name, code = "cuDeviceGetCount", cuda.cuDeviceGetCount(ctypes.byref(count))
    if code != 0:
        answer |= {"failed": name, "code": code, "detail": _error_name(cuda, code)}
        return
    for ordinal in range(count.value):
        answer["devices"].append(_device(cuda, ordinal))


def _device(cuda: Any, ordinal: int) -> dict[str, Any]:
    device, name, raw = ctypes.c_int(0), ctypes.create_string_buffer(256), (ctypes.c_ubyte * 16)()
    total, value = ctypes.c_size_t(0), ctypes.c_int(0)
    cuda.cuDeviceGet(ctypes.byref(device), ordinal)
    cuda.cuDeviceGetName(name, 256, device)
    get_uuid = getattr(cuda, "cuDeviceGetUuid_v2", None) or cuda.cuDeviceGetUuid
    get_uuid(ctypes.byref(raw), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    facts: dict[str, Any] = {
        "ordinal": ordinal,
        "name": name.value.decode(errors="replace"),
        "uuid": f"GPU-{uuid.UUID(bytes=bytes(raw))}",
        "memory_bytes": total.value,
        "mig": "",
        "settings": {},
    }
    for key, attribute in _ATTRIBUTES.items():
        value.value = 0
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        facts[key] = value.value
    return facts


def _error_name(cuda: Any, code: int) -> str:
    text = ctypes.c_char_p()
    try:
        cuda.cuGetErrorName(code, ctypes.byref(text))
    except AttributeError:
        return ""
    return (text.value or b"").decode(errors="replace")


def _add_nvml(answer: dict[str, Any]) -> None:
    """Add the driver's own version. Say which devices are slices of a GPU (MIG), which have slices, and what is set."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return
        text = ctypes.create_string_buffer(96)
        if nvml.nvmlSystemGetDriverVersion(text, 96) == 0:
            answer["driver_text"] = text.value.decode(errors="replace")
        for device in answer["devices"]:
            _add_mig(nvml, device)
        nvml.nvmlShutdown()
    except (OSError, AttributeError):
        return


def _add_mig(nvml: Any, device: dict[str, Any]) -> None:
    handle, current, pending = ctypes.c_void_p(), ctypes.c_uint(0), ctypes.c_uint(0)
    slice_name = "MIG-" + device["uuid"].removeprefix("GPU-")
    if nvml.nvmlDeviceGetHandleByUUID(device["uuid"].encode(), ctypes.byref(handle)) == 0:
        if nvml.nvmlDeviceGetMigMode(handle, ctypes.byref(current), ctypes.byref(pending)) == 0:
            device["mig"] = "enabled" if current.value == _NVML_MIG_ENABLED else "disabled"
        device["settings"] = dict(_settings(nvml, handle))
    elif nvml.nvmlDeviceGetHandleByUUID(slice_name.encode(), ctypes.byref(handle)) == 0:
        device |= {"uuid": slice_name, "mig": "slice"}


def _settings(nvml: Any, handle: ctypes.c_void_p) -> Iterator[tuple[str, int]]:
    """What is set otherwise than usual on the board."""
    for name, (question, usual, arguments, unit) in _SETTINGS.items():
        now, before = ctypes.c_uint(0), ctypes.c_uint(0)
        with contextlib.suppress(AttributeError):
            failed = getattr(nvml, question)(handle, *arguments, ctypes.byref(now))
            failed = failed or getattr(nvml, usual)(handle, *arguments, ctypes.byref(before))
            if not failed and before.value // unit not in (0, now.value // unit):
                yield name, now.value // unit


if __name__ == "__main__":
    print(json.dumps(probe()))
