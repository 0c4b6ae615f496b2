"""Models on a GPU that call operators by `aot_tune.torch.patch`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from environments import environment, run

SCRIPT = Path(__file__).with_name("patch_scenarios.py")


@pytest.mark.parametrize("scenario", ["models", "compiled", "moved"])
def test_patched_on_the_gpu(library: Any, scenario: str) -> None:
    given = environment(PYTHONPATH=library.import_path)
    run([sys.executable, "-B", SCRIPT, scenario, library.module], env=given, timeout=300)
