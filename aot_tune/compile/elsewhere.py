"""Compilers of other machines, as the object cache asks for them."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from aot_tune.compile.object_records import CompileOutcome
from aot_tune.compile.toolchain import Toolchain
from aot_tune.spec import CompileOptions, Target

__all__ = ["CompilersElsewhere"]


class CompilersElsewhere(Protocol):
    """They make of a source what the toolchain that is here would, byte for byte."""

    def compile(
        self, toolchain: Toolchain, source: str, target: Target, out: Path, timeout: float, options: CompileOptions
    ) -> CompileOutcome:
        """See `Toolchain.compile`; from any thread.

        Raises:
            ToolchainError: when a compiler cannot be started, or is not as the one here; naming the machine.
        """

    def end_compiles(self) -> None:
        """End those that run, which makes of each a failure that is not lasting."""
