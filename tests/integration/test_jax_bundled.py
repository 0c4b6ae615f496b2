"""The bundled operators of the wheel under jax.jit; scenarios are in tests/jax_bundled.py, the example in examples."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from environments import ROOT
from jax_processes import ON_CPU, run_scenarios

SCRIPT = ROOT / "tests" / "jax_bundled.py"
SCENARIOS = re.findall(r"^def (\w+)\(ops: JaxOperators, module: Any\)", SCRIPT.read_text(), re.MULTILINE)

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="there is no jax")


@pytest.fixture(scope="module")
def outcomes(ops: ModuleType) -> dict[str, str]:
    return run_scenarios(SCRIPT, Path(str(ops.__file__)), **ON_CPU)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_on_the_cpu(outcomes: dict[str, str], scenario: str) -> None:
    assert outcomes[scenario] == "", outcomes[scenario]


def test_every_scenario_ran(outcomes: dict[str, str]) -> None:
    assert sorted(outcomes) == sorted(SCENARIOS)


def test_the_example(ops: ModuleType) -> None:
    script = f"""
import runpy, sys
from pathlib import Path
sys.path.insert(0, {str(ROOT / "tests")!r})
from module_files import load_module
import aot_tune
aot_tune.ops = sys.modules["aot_tune.ops"] = load_module(Path({ops.__file__!r}), "aot_tune.ops")
runpy.run_path({str(ROOT / "examples" / "jax_model" / "model.py")!r}, run_name="__main__")
"""
    env = {"PYTHONPATH": str(ROOT), **ON_CPU}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "all agree\n"), done.stderr
