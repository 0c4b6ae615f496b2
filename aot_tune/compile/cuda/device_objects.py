"""What nvcc's object files hold for a device."""

from __future__ import annotations

import hashlib
from pathlib import Path

from elftools.elf.elffile import ELFFile

from aot_tune.compile.programs import DEVICE_CODE

__all__ = ["device_digest"]


def device_digest(path: Path) -> str:
    """SHA-256 of the device code (machine code and PTX) in an object or library. Empty if there is none.

    Equal sources and the same CUDA compiler give equal digests, whatever the host compiler.
    """
    with path.open("rb") as file:
        section = ELFFile(file).get_section_by_name(DEVICE_CODE)
        return "" if section is None else hashlib.sha256(section.data()).hexdigest()
