"""Asks a vendor's library for its algorithms, in a process of its own on the machine that has the device."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from aot_tune.compile.diagnostics import first_error
from aot_tune.support.run_program import python_module, run
from aot_tune.support.storage import scratch_folder

_SECONDS = 180.0


class Products(msgspec.Struct, frozen=True):
    """A library's answer for one product: algorithms, their estimated costs, and how many are from its own list."""

    configs: list[dict[str, int]]
    costs: list[float]
    heuristics: int


class VendorQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Products, as JSON of `aot_tune.vendor.<backend>`, and the largest number of algorithms wanted for each."""

    backend: str
    products: bytes
    limit: int


class VendorAnswer(msgspec.Struct, frozen=True):
    """The library's version and its answer for each product; or why there is no answer."""

    version: int = 0
    products: list[Products] = []
    error: str = ""


def ask_vendor(question: VendorQuestion, unit: str) -> VendorAnswer:
    """Ask about products on a device of this machine, which its unit names."""
    with scratch_folder() as name:
        folder = Path(name)
        (folder / "in.json").write_bytes(question.products)
        argv = python_module(f"aot_tune.vendor.{question.backend}", "--problems", "in.json")
        argv += ["--out", "out.json", "--limit", str(question.limit), "--checks", "8000"]
        path = os.pathsep.join(p for p in sys.path if p)
        environ = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": unit}
        done = run(argv, folder=folder, environ=environ, timeout=_SECONDS)
        try:
            return msgspec.json.decode((folder / "out.json").read_bytes(), type=VendorAnswer)
        except (OSError, msgspec.MsgspecError) as error:
            return VendorAnswer(error=first_error(done.output) if done.output else str(error))
