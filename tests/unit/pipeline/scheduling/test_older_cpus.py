"""What older CPUs' variants begin with: configs that are most like those which won on another target."""

from __future__ import annotations

from bundled import OPERATORS

from aot_tune.compile import target_by_name
from aot_tune.pipeline.scheduling.transfer import most_alike

NEW, OLD = target_by_name("cpu-x86-64-v4-bf16"), target_by_name("cpu-x86-64-v3")


def test_tiles_of_products_become_those_that_fewer_registers_hold() -> None:
    gemm = OPERATORS["gemm"]
    kernel = gemm.kernel("packed")
    there, here = (list(kernel.configs(target.facts)) for target in (NEW, OLD))
    rest = {"KC": 512, "MC": 64, "NC": 768, "KU": 4, "PACK_A": True, "PACK_B": True, "PF": 0, "PART": "m"}
    for config, tile in (
        ({"MR": 8, "NV": 3}, (8, 4, 3)),
        ({"MR": 14, "NV": 2}, (8, 6, 2)),
        ({"MR": 6, "NV": 4}, (8, 6, 2)),
    ):
        full = {"VW": 16, **config, **rest}
        assert full in there
        found = most_alike(kernel, here, full)
        assert (found["VW"], found["MR"], found["NV"]) == tile
        assert {n: found[n] for n in rest} == rest
