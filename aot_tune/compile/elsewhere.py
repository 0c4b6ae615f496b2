"""Compilers of other machines, as the object cache asks for them."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from aot_tune.compile.object_records import CompileOutcome
from aot_tune.compile.toolchain import Toolchain
from aot_tune.spec import CompileOptions, Target

__all__ = ["CompilersElsewhere"]


class CompilersElsewhere(Protocol):
    """They make from a source exactly what the local toolchain would make, byte for byte."""

    def compile(
        self, toolchain: Toolchain, source: str, target: Target, out: Path, timeout: float, options: CompileOptions
    ) -> CompileOutcome:
        """See `Toolchain.compile`. Any thread may call it.

        Raises:
            ToolchainError: when a compiler cannot be started, or differs from the local one. Names the machine.
        """

    def end_compiles(self) -> None:
        """End the running compilers. Each then has a failure that is not lasting."""
