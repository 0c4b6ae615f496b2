"""Products on Hopper's matrix units, run on the host."""

from __future__ import annotations

import re
from pathlib import Path

from gemm_on_host import run_check as run_on_host
from gemm_on_host import with_faults

from aot_tune.render import Rendered

Shape = tuple[int, int, int]


def for_host(text: str, faults: tuple[tuple[str, str], ...] = ()) -> str:
    """A source for the host, and behind it as many others with a fault each; FAULT in the environment chooses.

    What needs no instruction of the device stays as the template has it.
    """
    own = re.findall(r"^using Sums = .*?;\n|^__device__ \S+ uint64_t describe_chunks\(.*?^}\n", text, re.M | re.S)
    assert len(own) == 2, own
    before, start, kernel = text.partition("namespace {\n\nusing T = ")
    (symbol,) = set(re.findall(r"(aot_tune_gemm_\w+)_launch", kernel))
    return f'#include "wgmma.h"\n{before}' + with_faults("".join(own) + start + kernel, symbol, faults)


def run_check(program: Path, shape: Shape, epilogue: bool = True) -> str:
    """What was wrong with a product of that shape, rows being padded, copies and blocks being late or early."""
    _, n, k = shape
    strides = (k + 8, 1, 1, k + 16, n + 8, 1)
    late, early = (run_on_host(program, 1, shape, strides, epilogue, haste=haste) for haste in (False, True))
    return late + early


def stages_of(source: Rendered) -> int:
    (found,) = re.findall(r"constexpr int STAGES = (\d+);", source.source)
    return int(found)
