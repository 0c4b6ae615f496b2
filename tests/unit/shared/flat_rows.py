"""Row kernels that hold rows as they came, built for the host."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import msgspec
from rows_on_host import HOPPER, OPERATORS, build_for_host, check, render

from aot_tune.render import Rendered
from aot_tune.spec import Config


def rendered_for_hopper(name: str, kernel: str, config: Config, dtype: str) -> Rendered:
    op = OPERATORS[name]
    return render(op, op.kernel(kernel), HOPPER, config, dtype)


def build(folder: Path, rendered: Rendered) -> Callable[..., int]:
    """The kernel for the host, loaded as the library loads it: that gives it its shared memory."""
    call = build_for_host(folder, rendered)
    assert getattr(ctypes.CDLL(str(folder / "kernel.so")), f"{rendered.symbol}_preload")() == 0
    return call


def cluster_of_two() -> Rendered:
    return rendered_for_hopper("softmax", "cuda_flat", {"CLUSTER": 2}, "bf16")


def run(folder: Path) -> None:
    """In a process of its own: build the source that lies in a folder and check it."""
    changed = msgspec.structs.replace(cluster_of_two(), source=(folder / "source.cpp").read_text())
    check(OPERATORS["softmax"], build(folder, changed), "bf16", {"R": 5, "D": 4104})
