"""The steps of a release, by hand: the sdist, the wheel of an example that is built from it, its repair, its checks."""

from __future__ import annotations

import shutil
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from environments import ROOT, Builder, Built, Venv, environment, members, run

TOOLS = Path(sys.executable).parent


def test_the_sdist_has_what_a_build_needs_and_no_more(made_wheel: Path) -> None:
    (sdist,) = (made_wheel / "sdist").iterdir()
    run([TOOLS / "twine", "check", "--strict", sdist])
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = [
        "CMakeLists.txt",
        "pyproject.toml",
        "LICENSE",
        "NOTICE",
        "CHANGELOG.md",
        "docs/start.md",
        "aot_tune/build.py",
    ]
    assert set(needed) <= names
    assert any(name.startswith("tuning/") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", ".ci/", "wheelhouse/"))]


@pytest.mark.slow
def test_an_examples_wheel_is_repaired_checked_and_used(built: Built, builder: Builder, tmp_path: Path) -> None:
    """Built in isolation with the wheel that comes from the sdist; the repair is that of a release."""
    del built
    example = tmp_path / "kernel_author"
    shutil.copytree(ROOT / "examples" / "kernel_author", example)
    made = replace(builder, out=tmp_path).build(example, "plain", AOT_TUNE_MODE="generic")
    env = environment(PATH=f"{TOOLS}:/usr/bin:/bin")
    said = run(["bash", ROOT / ".github" / "repair-wheel", made.wheel, tmp_path / "repaired"], env=env)
    assert "PASSED" in said
    (wheel,) = (tmp_path / "repaired").glob("my_kernels-1.0-cp310-abi3-manylinux*.whl")
    assert any(Path(name).name.startswith("libgomp") for name in members(wheel))
    venv = Venv.make(tmp_path / "venv")
    venv.install("--find-links", builder.wheelhouse, wheel, "numpy")
    code = "import numpy as np, my_kernels.ops as k; print(k.affine(np.ones(2, 'f4'), a=2.0, b=0.5))"
    assert run([venv.python, "-c", code], env=environment(PATH=str(tmp_path))) == "[2.5 2.5]\n"
