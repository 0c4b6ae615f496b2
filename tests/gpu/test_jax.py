"""The bundled operators under jax.jit on a GPU, from the library that is built for it; see tests/jax_bundled.py."""

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from environments import ROOT
from jax_processes import run_scenarios

SCRIPT = ROOT / "tests" / "jax_bundled.py"
SCENARIOS = re.findall(r"^def (\w+)\(ops: JaxOperators, module: Any\)", SCRIPT.read_text(), re.MULTILINE)


def missing() -> str:
    """What JAX lacks here; its plugins for CUDA have a name for each major version."""
    if importlib.util.find_spec("jax") is None:
        return "there is no jax"
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    return "" if any(map(importlib.util.find_spec, plugins)) else "jax has no plugin for CUDA here"


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def outcomes(library: Any) -> dict[str, str]:
    given = {"JAX_PLATFORMS": "cuda", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return run_scenarios(SCRIPT, library.module, library.import_path, **given)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_on_the_gpu(outcomes: dict[str, str], scenario: str) -> None:
    assert outcomes[scenario] == "", outcomes[scenario]


def test_a_library_for_gpus_alone_has_an_error_for_cpus(library: Any) -> None:
    """Its handlers for the CPU are those of generic variants, or say that there are none."""
    found = run_scenarios(SCRIPT, library.module, library.import_path, JAX_PLATFORMS="cpu")
    served = {v["target"].partition("-")[0] for o in library.manifest["operators"] for v in o["variants"]}
    if "cpu" in served:
        assert found["products"] == "", found["products"]
    else:
        assert "gemm: tensor 'a' is on" in found["products"], found["products"]
