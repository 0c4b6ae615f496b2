"""Examples of models, each in a process of its own, with the operators of the wheel."""

import os
import subprocess
import sys
from types import ModuleType

import pytest
from environments import ROOT
from jax_processes import ON_CPU
from torch_library import shim_cache

from aot_tune.torch import build_shim

EXAMPLES = {
    "torch_model/model.py": "all agree; gradients up to ",
    "torch_model/patched.py": "7 calls went to operators\n",
    "jax_model/model.py": "all agree\n",
}
SCRIPT = """
import runpy, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1] + "/tests")
from module_files import load_module
import aot_tune
aot_tune.ops = sys.modules["aot_tune.ops"] = load_module(Path(sys.argv[2]), "aot_tune.ops")
runpy.run_path(sys.argv[3], run_name="__main__")
"""


@pytest.mark.parametrize("example", EXAMPLES)
def test_it_computes_what_the_framework_does(ops: ModuleType, example: str, request: pytest.FixtureRequest) -> None:
    pytest.importorskip(example.partition("_")[0])
    argv = [sys.executable, "-c", SCRIPT, str(ROOT), str(ops.__file__), str(ROOT / "examples" / example)]
    with shim_cache(request.config):
        assert build_shim().is_file()
        environ = {**os.environ, "PYTHONPATH": str(ROOT), **ON_CPU}
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert EXAMPLES[example] in done.stdout
