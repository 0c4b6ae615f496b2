"""What a build and the process with Triton's interpreter tell each other, as JSON."""

from __future__ import annotations

from typing import Literal

import msgspec

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.spec import ConfigValue
from aot_tune.triton.read_declarations import Inspections

__all__ = ["InterpreterAnswer", "InterpreterRequest"]


class InterpreterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One config of a Triton kernel of the operator in `folder`. It is run on a check as it would run on the target.

    `inspections` is what the kernel's function declares. `roots` are the folders that contain the files of functions.
    """

    folder: str
    kernel: str
    target: str
    config: dict[str, ConfigValue]
    check: Check
    inspections: Inspections
    roots: list[str]
    seed: int


class InterpreterAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the result is right. `text` says what is wrong, or why there is no result."""

    verdict: Literal["right", "wrong", "not runnable"]
    text: str = ""
