"""The package's compiled operators: an attribute that is imported when it is asked for."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import aot_tune

LOOKS = """
import sys
sys.path.insert(0, {folder!r})
before = set(sys.modules)
import aot_tune
assert set(sys.modules) - before <= {{"__future__", "aot_tune"}}, set(sys.modules) - before
assert not hasattr(aot_tune, "other")
try:
    aot_tune.ops
except AttributeError as error:
    print(error)
else:
    assert aot_tune.ops is sys.modules["aot_tune.ops"]
    print(aot_tune.ops.answer)
"""


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ("answer = 42\n", "42\n"),
        (None, "no compiled operators beside it; install it by `pip install .`, which builds them\n"),
    ],
)
def test_operators_are_imported_when_they_are_asked_for(tmp_path: Path, beside: str | None, said: str) -> None:
    folder = tmp_path / "aot_tune"
    folder.mkdir()
    shutil.copy(Path(aot_tune.__file__), folder)
    if beside is not None:
        (folder / "ops.py").write_text(beside)
    program = LOOKS.format(folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(said)


def test_what_a_library_lacks_is_told_as_it_is(tmp_path: Path) -> None:
    """Not that there are none."""
    folder = tmp_path / "aot_tune"
    folder.mkdir()
    shutil.copy(Path(aot_tune.__file__), folder)
    (folder / "ops.py").write_text("import no_such_module\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import aot_tune; aot_tune.ops"
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError: No module named 'no_such_module'" in done.stderr
