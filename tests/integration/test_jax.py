"""Operators under jax.jit: those of the wheel, and a user's own, from a library that CMake was asked for handlers.

Scenarios are in tests/jax_bundled.py and tests/jax_own.py.
"""

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

SCRIPTS = {name: ROOT / "tests" / f"jax_{name}.py" for name in ("bundled", "own")}
SCENARIOS = {
    name: re.findall(r"^def (\w+)\(ops: JaxOperators, module: Any\)", script.read_text(), re.MULTILINE)
    for name, script in SCRIPTS.items()
}

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="there is no jax")


@pytest.fixture(scope="module")
def module(once: Any) -> Path:
    return own_module(once)


@pytest.mark.parametrize("script", SCRIPTS)
def test_on_the_cpu(script: str, request: pytest.FixtureRequest) -> None:
    """What each scenario of a script came to."""
    made = request.getfixturevalue("module") if script == "own" else request.getfixturevalue("ops").__file__
    outcomes = run_scenarios(SCRIPTS[script], Path(str(made)), **ON_CPU)
    assert outcomes == dict.fromkeys(SCENARIOS[script], "")


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
    (tmp_path / "old" / "jaxlib").mkdir(parents=True)
    (tmp_path / "old" / "jaxlib" / "__init__.py").touch()
    said = made.configure(AOT_TUNE_XLA_FFI="auto", PYTHONPATH=f"{tmp_path / 'old'}:{made.env['PYTHONPATH']}")
    assert "aot_tune: note: no handlers for XLA's FFI: there is no " in said
