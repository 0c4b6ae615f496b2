"""A user's operators under jax.jit, from a library that CMake was asked for handlers; scenarios: tests/jax_own.py."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from environments import ROOT
from jax_processes import ON_CPU, run_scenarios
from project import Project
from torch_library import NAME, own_module

SCRIPT = ROOT / "tests" / "jax_own.py"
SCENARIOS = re.findall(r"^def (\w+)\(ops: JaxOperators, module: Any\)", SCRIPT.read_text(), re.MULTILINE)

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="there is no jax")


@pytest.fixture(scope="module")
def module(once: Any) -> Path:
    return own_module(once)


@pytest.fixture(scope="module")
def outcomes(module: Path) -> dict[str, str]:
    return run_scenarios(SCRIPT, module, **ON_CPU)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_on_the_cpu(outcomes: dict[str, str], scenario: str) -> None:
    assert outcomes[scenario] == "", outcomes[scenario]


def test_every_scenario_ran(outcomes: dict[str, str]) -> None:
    assert sorted(outcomes) == sorted(SCENARIOS)


def test_nothing_of_xla_is_needed(module: Path) -> None:
    """Its library needs no more than others do."""
    library = module.with_name(f"lib{NAME}.so")
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"\(NEEDED\).*\[(.*?)\]", needed)
    assert found
    assert all(re.match(r"lib(stdc\+\+|m|gcc_s|gomp|c|dl|pthread)\.so|ld-linux", name) for name in found), found
    undefined = subprocess.run(["nm", "-D", "-u", library], capture_output=True, text=True, check=True).stdout
    assert "XLA" not in undefined


def test_where_headers_are_missing(tmp_path: Path) -> None:
    made = Project.make(tmp_path, AOT_TUNE_MODE="generic", AOT_TUNE_TARGETS="cpu-x86-64-v3")
    said = " ".join(made.cmake(status=None, AOT_TUNE_XLA_FFI=str(tmp_path)).split())
    assert f"AOT_TUNE_XLA_FFI={tmp_path}: there is no {tmp_path}/xla/ffi/api/c_api.h" in said
    assert "jax.ffi.include_dir()" in said
