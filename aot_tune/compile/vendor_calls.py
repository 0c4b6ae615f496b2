"""Calls of vendors' libraries. They are host code only, which the C++ compiler compiles, also for the targets of CUDA.

A library is not needed to compile or to link. An object finds it when it is first called.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from aot_tune.compile.toolchain import NO_OPTIONS, Object, Toolchain, toolchain_for
from aot_tune.spec import CompileOptions, Target


class VendorCalls(Toolchain):
    """The C++ compiler for calls of one library, with the targets of the toolchain that `beside` names."""

    only_calls = True
    beside = "nvcc"

    def targets(self) -> tuple[Target, ...]:
        return toolchain_for(self.beside, self._env()).targets()

    def identity(self) -> dict[str, str]:
        return self._cxx().identity()

    def device_identity(self, identity: Mapping[str, str]) -> dict[str, str]:
        """Nothing: for a GPU, the compiler only makes code that calls the library."""
        del identity
        return {}

    def recipe(self, target: Target) -> dict[str, object]:
        """The C++ compiler's recipe: for a GPU, that for every x86-64 CPU."""
        cxx = self._cxx()
        return cxx.recipe(target if target.on_host else cxx.baselines()[0])

    def compile(
        self,
        source: str,
        target: Target,
        out: Path,
        timeout: float,
        options: CompileOptions = NO_OPTIONS,  # noqa: ARG002 - declarations refuse them
    ) -> Object:
        cxx = self._cxx()
        if target.on_host:
            return cxx.compile(source, target, out, timeout)
        compiled = cxx.compile(source, cxx.baselines()[0], out, timeout)
        # A GPU runs the library's code. The digest of the source tells which of its algorithms that is.
        return msgspec.structs.replace(compiled, device=hashlib.sha256(self.name.encode()).hexdigest())

    def link_arguments(self) -> tuple[str, ...]:
        return ("-ldl", "-lpthread")

    def _cxx(self) -> Toolchain:
        return toolchain_for("cxx", self._env())


class Cublaslt(VendorCalls):
    """NVIDIA's library of matrix products."""

    name = "cublaslt"


class Cudnn(VendorCalls):
    """NVIDIA's library of neural networks, of which attention is used."""

    name = "cudnn"


class Cblas(VendorCalls):
    """The CBLAS that a process has loaded on a CPU, such as numpy's OpenBLAS."""

    name = "cblas"
    beside = "cxx"
