"""A library for CPUs and two of AMD's architectures in two dtypes, for the tests of link; kernels run on the host."""

from pathlib import Path
from types import ModuleType
from typing import Any

import linked
import numpy as np
from dltensors import OnDevice
from linked_cuda import N, host_variant, operator, stand_in_variant
from stand_ins import build

from aot_tune.compile import target_by_name
from aot_tune.link import LibrarySpec, OperatorTable, TargetTable
from aot_tune.spec import problem

GFX90A, GFX942 = target_by_name("hip-gfx90a"), target_by_name("hip-gfx942")

LAYOUT: dict[str, dict[str, Any]] = {
    "plain_90a": {"target": GFX90A, "generic": True, "mark": "100"},
    "plain_90a_bf16": {"target": GFX90A, "generic": True, "mark": "150", "dtype": "bf16"},
    "plain_942": {"target": GFX942, "generic": True, "mark": "200"},
    "plain_942_bf16": {"target": GFX942, "generic": True, "mark": "250", "dtype": "bf16"},
    "fast_942": {"target": GFX942, "mark": "300", "scratch": 1 << 20, "requires": (N % 4 == 0,)},
}


def library(folder: Path) -> linked.Built:
    """`scale` for CPUs (f32) and HIP (f32, bf16), with a table for gfx942, as it ships: without the runtime."""
    objects = folder / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    variants = [host_variant(objects, "plain_cpu")]
    for name, row in LAYOUT.items():
        of = row["target"]
        variants.append(stand_in_variant(objects, name, {**row, "target": of.name, "level": of.level, "last": of.last}))
    rest = (next(i for i, v in enumerate(variants) if v.name == "fast_942"),)
    table = TargetTable(target=GFX942.name, level=GFX942.level, last=GFX942.last, rest=rest, tuned=(problem(N=8),))
    scale = OperatorTable(operator=operator(), variants=tuple(variants), tables=(table,))
    made = linked.link_library(LibrarySpec(output="linked_hip", operators=(scale,)), folder / "out", families=["hip"])
    if not (folder / "runtime").exists():
        build(folder / "runtime", "libamdhip64.so")
    return made


def runtime_of(module: Path) -> Path:
    """The stand-in beside a library: a process that has loaded it has the library find it."""
    return module.parent.parent / "runtime" / "libamdhip64.so"


def call(module: ModuleType, n: int, device: int, **more: object) -> float:
    """The mark of the variant that a call of `n` elements gets, plus 1000 times its stream."""
    out = np.zeros(n, np.float32)
    module.scale(OnDevice(np.zeros(n, np.float32), (10, device)), out=OnDevice(out, (10, device)), **more)
    return float(out[0])
