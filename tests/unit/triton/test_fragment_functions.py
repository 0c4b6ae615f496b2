"""Fragments as functions of Triton: in its interpreter they give what the reference gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import formula_bounds
import msgspec
import numpy as np
from formulas import BATCHES, CALLS, PHASES, FormulaCall, operator_of
from hypothesis import given, settings
from places import SHARED
from triton_installed import EACH_TRITON

from aot_tune.render.triton.fragment_source import fragment_data
from aot_tune.spec import Formula
from aot_tune.triton.client import child_environment


class Interpreter:
    """`triton_formulas.py` in a process of its own."""

    def __init__(self, search: list[str], folder: Path) -> None:
        environ = {**child_environment(os.environ, search, folder), "TRITON_INTERPRET": "1"}
        environ["PYTHONPATH"] = os.pathsep.join([*search, str(SHARED)])
        self._process = subprocess.Popen(
            [sys.executable, str(SHARED / "triton_formulas.py"), str(folder)],
            cwd=folder,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __call__(self, batch: list[Formula]) -> Any:
        """The results of each formula in each of the calls."""
        op = operator_of(batch)
        fragments = [fragment_data(op, name) for name in op.fragments]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode({"fragments": fragments, "calls": CALLS}) + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()


@EACH_TRITON
def test_random_formulas(search: list[str], tmp_path: Path) -> None:
    interpreter = Interpreter(search, tmp_path)

    @settings(max_examples=6, deadline=None, phases=PHASES)
    @given(BATCHES)
    def holds(batch: list[Formula]) -> None:
        for formula, results in zip(batch, interpreter(batch), strict=True):
            for call, got in zip(CALLS, results, strict=True):
                assert not formula_bounds.off(np.array(got, np.float32), formula, FormulaCall(**call))

    try:
        holds()
    finally:
        interpreter.close()
