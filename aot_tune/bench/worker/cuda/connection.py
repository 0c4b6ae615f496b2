"""The first touch of a device, what keeps it from being used, and the last message about it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import WORKER_FAULT, Device, Status
from aot_tune.bench.worker.cuda.engine import Engine, FaultError

__all__ = ["check_device", "connected", "last_word"]


def connected(connect: Callable[[], Engine], device: Device, share: float) -> Engine:
    """The device, touched now and tested: memory, a kernel, a comparison.

    A GPU's worker may take `share` of its memory.

    Raises:
        FaultError: when the device cannot be used, with what to do, or when it is not the requested one.
    """
    try:
        engine = connect()
        with engine.guard():
            numbers = torch.arange(4096, device=engine.device, dtype=torch.float32)
            right = bool((numbers * 2 + 1).sum().item() == 4096.0 * 4096.0)
    except FaultError:
        raise
    except Exception as error:
        raise FaultError(0, f"{WORKER_FAULT}{_unusable(str(error))}") from error
    if not right:
        raise FaultError(0, f"{WORKER_FAULT}the GPU computes a wrong sum: it needs a reset")
    if engine.device.type == "cuda":
        check_device(engine, device)
        # Freed memory that torch keeps would be missing in the other worker.
        torch.cuda.set_per_process_memory_fraction(share, engine.device)
    return engine


def check_device(engine: Engine, device: Device) -> None:
    """Raise FaultError if the worker is on another device than the one to measure: of another kind or UUID."""
    seen = torch.cuda.get_device_properties(engine.device)
    pairs = (seen.name, seen.multi_processor_count), (device.identity.get("name"), device.identity.get("sm_count"))
    found, wanted = (f"{name} with {count} multiprocessors" for name, count in pairs)
    if found != wanted:
        why = f"this is another device: {found} instead of {wanted}; GPUs changed meanwhile: build again"
        raise FaultError(0, f"{WORKER_FAULT}{why}")
    uuid = str(getattr(seen, "uuid", ""))  # a torch of before 2.5 does not tell
    if uuid not in device.unit:
        why = f"this is GPU {uuid} instead of {device.unit}: GPUs changed"
        raise FaultError(0, f"{WORKER_FAULT}{why} meanwhile; compare `nvidia-smi -L`, and build again")


def last_word(fault: FaultError) -> messages.Failure:
    """A worker's last message, if its device is at fault: the candidate's or the machine's fault."""
    status: Status = "crashed" if fault.by_kernel else "failed"
    reason = str(fault) if fault.by_kernel or str(fault).startswith(WORKER_FAULT) else f"{WORKER_FAULT}{fault}"
    return messages.Failure(kind="FaultError", reason=reason, status=status, last=True)


def _unusable(said: str) -> str:
    first = said.partition("\n")[0]
    hints = {
        "busy or unavailable": "another process has it to itself: end that process, or set its compute mode to default",
        "prohibited": "set its compute mode to default with `nvidia-smi -c DEFAULT`",
        "out of memory": "other processes hold its memory: end them, or choose another GPU with CUDA_VISIBLE_DEVICES",
        "driver version is insufficient": "update the driver, or install a torch built for an older CUDA",
        "no CUDA": "install a torch built for CUDA",
    }
    hint = next((h for text, h in hints.items() if text in said), "check with `nvidia-smi`")
    return f"the GPU cannot be used: {first}; {hint}"
