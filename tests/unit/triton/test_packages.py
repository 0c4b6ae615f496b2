"""examples/from_packages: functions of packages, unmodified, are read, run as they are mapped, and compiled."""

from __future__ import annotations

import functools
import importlib.machinery
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from places import SHARED

OF = {
    "causal_conv/fla": "fla",
    "chunk_cumsum/fla": "fla",
    "rms_norm/liger": "liger_kernel",
    "rope/liger": "liger_kernel",
    "scaled_int8_mm/torchao": "torchao",
}
"""Tuned kernels, and the package of each, which CI fetches: there it is a fault if one is missing."""
FETCHED = [f for f in os.environ.get("AOT_TUNE_TEST_TRITON_PACKAGES", "").split(os.pathsep) if f]
HERE = {p for p in OF.values() if importlib.machinery.PathFinder.find_spec(p, [*FETCHED, *sys.path]) is not None}
KERNELS = {*OF, *(name.partition("/")[0] + "/generic" for name in OF)}
"""All that are Triton functions."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (set(OF.values()) == HERE or os.environ.get("CI")),
        reason="for examples/from_packages: pip install liger-kernel==0.8.5 einops, and by --no-deps fla-core==0.6.0 "
        "torchao==0.18.0",
    ),
]


def test_the_packages_are_here() -> None:
    assert set(OF.values()) == HERE


@functools.cache
def answers(what: str) -> Any:
    """What `triton_packages.py` says."""
    path = os.pathsep.join([*FETCHED, *filter(None, sys.path)])
    given = {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": str(int(what == "interpret"))}
    argv = [sys.executable, "-B", str(SHARED / "triton_packages.py"), what]
    done = subprocess.run(argv, capture_output=True, text=True, env=given, timeout=880, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_kernels_are_right_in_the_interpreter() -> None:
    """On odd extents and strides, inputs unchanged: the arguments are mapped as the packages' host code passes them."""
    found = answers("interpret")
    assert set(found) == KERNELS
    for name, told in found.items():
        assert told["calls"] >= 2, name
        assert told["faults"] == [], name


def test_a_kernel_of_each_package_compiles() -> None:
    outcomes = {name: told["outcome"] for name, told in answers("compile").items() if name.endswith("sm_90a")}
    assert outcomes == {
        f"{name} cuda-sm_90a": "ok" for name in ("chunk_cumsum/fla", "rms_norm/liger", "scaled_int8_mm/torchao")
    }


def test_configs_are_those_that_a_package_has_on_the_target() -> None:
    """The package asks for shared memory when it is imported, and takes wider blocks where there is enough."""
    found = answers("compile")

    def blocks(target: str) -> set[int]:
        return {config["BS"] for config in found[f"chunk_cumsum/fla {target}"]["configs"]}

    assert blocks("cuda-sm_90a") == {32, 64}
    assert blocks("hip-gfx942") == {16, 32}
