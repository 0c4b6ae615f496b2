"""The bundled operators of the wheel under jax.jit; scenarios are in tests/jax_bundled.py."""

from __future__ import annotations

import importlib.util
import re
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
