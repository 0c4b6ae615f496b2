"""examples/from_packages: functions of packages, unmodified, are read, run as they are mapped, and compiled."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from places import SHARED
from triton_installed import EACH_TRITON

PACKAGES = {"liger_kernel": "liger-kernel==0.8.5", "fla": "flash-linear-attention==0.6.0 fla-core==0.6.0",
            "torchao": "torchao==0.18.0", "xformers": "xformers==0.0.35", "einops": "einops",
            "torch": "torch"}  # fmt: skip
MISSING = [text for name, text in PACKAGES.items() if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"for examples/from_packages: pip install {' '.join(MISSING)}")

TUNED = {
    "causal_conv/fla",
    "chunk_cumsum/fla",
    "chunk_output/fla",
    "gather_rows/xformers",
    "rms_norm/xformers",
    "scaled_int8_mm/torchao",
    *(f"{name}/liger" for name in ("cross_entropy", "layer_norm", "rms_norm", "rope", "swiglu", "swiglu_mlp")),
}
GENERIC = {name.partition("/")[0] + "/generic" for name in TUNED} - {"chunk_output/generic"}
"""All kernels that are Triton functions."""

ANSWERS: dict[tuple[str, str], Any] = {}


def answers(what: str, search: list[str]) -> Any:
    """What `triton_packages.py` says, once for each Triton."""
    key = what, os.pathsep.join(search)
    if key not in ANSWERS:
        given = {**os.environ, "PYTHONPATH": key[1], "TRITON_INTERPRET": str(int(what == "interpret"))}
        script = SHARED / "triton_packages.py"
        argv = [sys.executable, "-B", str(script), what]
        done = subprocess.run(argv, capture_output=True, text=True, env=given, timeout=880, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        ANSWERS[key] = json.loads(done.stdout.splitlines()[-1])
    return ANSWERS[key]


@EACH_TRITON
def test_kernels_are_right_in_the_interpreter(search: list[str]) -> None:
    """On odd extents and strides, inputs unchanged: the arguments are mapped as the packages' host code passes them."""
    found = answers("interpret", search)
    assert set(found) == TUNED | GENERIC
    for name, told in found.items():
        assert told["calls"] >= 2, name
        assert told["faults"] == [], name


@EACH_TRITON
def test_every_kernel_compiles_for_every_target(search: list[str]) -> None:
    found = answers("compile", search)
    targets = ("cuda-sm_90a", "cuda-sm_80", "hip-gfx942")
    assert set(found) == {f"{name} {target}" for name in TUNED | GENERIC for target in targets}
    for name, told in found.items():
        assert told["outcomes"] == ["ok"] * min(2, len(told["configs"])), name


@EACH_TRITON
def test_configs_are_those_that_a_package_has_on_the_target(search: list[str]) -> None:
    """The package asks for shared memory when it is imported, and takes wider blocks where there is enough."""
    found = answers("compile", search)

    def blocks(target: str) -> set[int]:
        return {config["BS"] for config in found[f"chunk_cumsum/fla {target}"]["configs"]}

    assert blocks("cuda-sm_90a") == blocks("cuda-sm_80") == {32, 64}
    assert blocks("hip-gfx942") == {16, 32}
    hopper = found["chunk_output/fla cuda-sm_90a"]["configs"]
    assert [(c["BK"], c["BV"], c["num_warps"], c["num_stages"]) for c in hopper] == [
        (128, 128, 8, 3),
        (64, 64, 4, 3),
        (32, 32, 2, 3),
    ]
