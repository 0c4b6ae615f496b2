"""Scenarios with JAX, which starts threads for good: those of a file run in one process of their own."""

import json
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from environments import ROOT, environment, run

ON_CPU = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
"""Variables of a process whose JAX compiles no longer than it must."""


def run_scenarios(script: Path, module: Path, import_path: str = str(ROOT), **env: str) -> dict[str, str]:
    """Run all scenarios of a file; the traceback of each by its name, empty for one that went well.

    A use of what JAX is about to remove is an error.
    """
    argv = [sys.executable, "-B", "-W", "error:jax.:DeprecationWarning", script, module]
    said = run(argv, env=environment(PYTHONPATH=import_path, **env), timeout=300)
    found: dict[str, str] = json.loads(said.splitlines()[-1])
    return found


def tell_scenarios(scenarios: Sequence[Callable[..., None]], load: Callable[[Path], tuple[Any, ...]]) -> None:
    """The main part of a file of scenarios, `FILE MODULE`: each gets what `load` makes of the module's path."""
    made = load(Path(sys.argv[1]))
    found = {}
    for scenario in scenarios:
        try:
            scenario(*made)
            found[scenario.__name__] = ""
        except BaseException:  # that of a failed assertion is a result, too
            found[scenario.__name__] = traceback.format_exc()
    print(json.dumps(found), flush=True)


def fails(call: Callable[[], Any], kind: type[BaseException], words: str) -> None:
    """Assert that a call raises an error of that kind, whose message has these words."""
    with pytest.raises(kind, match=f"(?s){words}"):
        call()
