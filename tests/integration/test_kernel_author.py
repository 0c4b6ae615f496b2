"""The kernel author's example, built by every front end against the wheel; nothing unchanged is done twice."""

import re
import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from environments import (
    ROOT,
    Builder,
    Built,
    Compiler,
    Venv,
    environment,
    make_read_only,
    members,
    pip,
    run,
    tree_digest,
)

EXAMPLE = ROOT / "examples" / "kernel_author"

CALL = """
import numpy as np
from my_kernels import ops
x = np.linspace(-2, 3, 1000, dtype="f4")
y = np.from_dlpack(ops.affine(x, a=2.0, b=0.5))
assert np.abs(y - (2 * x + 0.5)).max() < 1e-6
assert (np.from_dlpack(ops.affine(x[::-3], a=2.0, b=0.5)) == y[::-3]).all()
try:
    ops.affine(x, a=2.0)
except TypeError as error:
    assert "affine() needs 'b'; it is called as affine(x, *, a, b, y=None" in str(error), error
else:
    raise SystemExit("a scalar without a default was not missed")
print(ops.operators, ops.is_tuned("affine", N=4096), ops.is_tuned("affine", N=4097))
"""


@pytest.fixture(scope="module")
def workshop(builder: Builder, tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """The session's builder with a cache of this module's own."""
    cache = tmp_path_factory.mktemp("author_cache") / "aot_tune"
    return replace(builder, env={**builder.env, "AOT_TUNE_CACHE_DIR": str(cache)})


@pytest.fixture(scope="module")
def author(tmp_path_factory: pytest.TempPathFactory, built: Built) -> Path:
    """A read-only copy of the example, as an author would have it. The wheel that it needs is in the wheelhouse."""
    del built
    folder = tmp_path_factory.mktemp("author") / "read only π"
    shutil.copytree(EXAMPLE, folder)
    make_read_only(folder)
    return folder


@pytest.fixture(scope="module")
def example(workshop: Builder, author: Path) -> Built:
    """Its wheel, built in isolation, where PYTHONPATH has modules that end it.

    They have the names of those that the tuner imports.
    """
    evil = author.parent / "evil"
    evil.mkdir()
    for name in ("numpy", "msgspec", "jinja2", "aot_tune", "filelock"):
        (evil / f"{name}.py").write_text(f"raise SystemExit('{name} came from PYTHONPATH')\n")
    before = tree_digest(author)
    made = replace(workshop, out=author.parent).build(author, "first", read_only=True, PYTHONPATH=str(evil))
    assert tree_digest(author) == before
    assert "came from PYTHONPATH" not in made.log
    return made


@pytest.fixture(scope="module")
def tools(venv: Venv, tmp_path_factory: pytest.TempPathFactory) -> Venv:
    """An environment of this module's own with what the wheel's has, for builds without isolation."""
    made = Venv.make(tmp_path_factory.mktemp("tools") / "venv")
    (made.packages / "wheel.pth").write_text(f"{venv.packages}\n")
    return made


def test_it_is_as_short_as_promised() -> None:
    files = [p for p in EXAMPLE.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    lines = [line for p in files for line in p.read_text().splitlines() if line.strip()]
    assert len(lines) <= 30
    assert len(files) == 4


def test_another_front_end_compiles_and_measures_nothing_again(
    example: Built, author: Path, workshop: Builder, compiler: Compiler, tmp_path: Path
) -> None:
    """uv has an isolation of its own; the cache holds wherever that is. What is installed answers without us."""
    assert example.wheel.name == "my_kernels-1.0-cp310-abi3-linux_x86_64.whl"
    assert example.measured > 0
    compiler.clear()
    venv = Venv.make(tmp_path / "venv")
    uv = shutil.which("uv") or Path(sys.executable).parent / "uv"
    houses = ["--no-index", "--find-links", workshop.wheelhouse]
    argv = [uv, "pip", "install", "-v", "--python", venv.python, "--no-cache", *houses, author, "numpy"]
    log = run(argv, env=environment(**workshop.env))
    assert Built(example.wheel, log).measured == 0
    assert compiler.candidates() == 0, log[-6000:]
    assert "my_kernels_runtime.dir" in example.log
    assert "my_kernels_runtime.dir" not in log
    said = run([venv.python, "-c", CALL], env=environment(PATH=str(tmp_path)))
    assert said.split() == ["('affine',)", "True", "False"]
    assert not (venv.packages / "aot_tune").exists()


def test_what_is_inside(example: Built) -> None:
    names = {n for n in members(example.wheel) if ".dist-info/" not in n}
    assert names == {
        f"my_kernels/{name}"
        for name in (
            *("ops.abi3.so", "ops.pyi", "py.typed", "report.json", "manifest.json", "lib/libmy_kernels.so"),
            "__main__.py",
            *("lib/pkgconfig/my_kernels.pc", "include/my_kernels.h"),
            *(f"include/aot_tune/{header}" for header in ("base.h", "tensor.h", "tensor.hpp")),
            *("cmake/my_kernelsConfig.cmake", "cmake/my_kernelsConfig-release.cmake"),
        )
    }


PAGE = (ROOT / "docs" / "your-package.md").read_text()
LISTS = """
cmake_minimum_required(VERSION 3.25)
project(program LANGUAGES CXX)
find_package(my_kernels REQUIRED)
add_executable(program main.cpp)
target_link_libraries(program PRIVATE my_kernels::my_kernels)
"""


def test_a_program_finds_it_and_its_report_is_read(example: Built, tmp_path: Path) -> None:
    with zipfile.ZipFile(example.wheel) as wheel:
        wheel.extractall(tmp_path)
    program = re.search(r"```cpp\n(#include.*?)```", PAGE, re.DOTALL)
    assert program is not None
    (tmp_path / "main.cpp").write_text(program[1])
    (tmp_path / "CMakeLists.txt").write_text(LISTS)
    build = tmp_path / "build"
    asked = [sys.executable, "-m", "my_kernels", "--cmake-dir"]
    found = run(asked, env=environment(PYTHONPATH=str(tmp_path)), cwd=tmp_path.parent).strip()
    assert found == str(tmp_path / "my_kernels" / "cmake")
    run(["cmake", "-S", tmp_path, "-B", build, f"-Dmy_kernels_DIR={found}"], env=environment())
    run(["cmake", "--build", build], env=environment())
    run([build / "program"], env=environment())
    report = [sys.executable, "-m", "aot_tune", "report", "--module", "my_kernels.ops"]
    assert "affine on cpu-x86-64" in run(report, env=environment(PYTHONPATH=f"{ROOT}:{tmp_path}"))


@pytest.mark.slow
def test_a_wheel_is_repaired_checked_and_used(example: Built, workshop: Builder, tmp_path: Path) -> None:
    """As in a release."""
    env = environment(PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin")
    said = run(["bash", ROOT / ".github" / "repair-wheel", example.wheel, tmp_path / "repaired"], env=env)
    assert "PASSED" in said
    (wheel,) = (tmp_path / "repaired").glob("my_kernels-1.0-cp310-abi3-manylinux*.whl")
    assert any(Path(name).name.startswith("libgomp") for name in members(wheel))
    venv = Venv.make(tmp_path / "venv")
    venv.install("--find-links", workshop.wheelhouse, wheel, "numpy")
    code = "import numpy as np, my_kernels.ops as k; print(k.affine(np.ones(2, 'f4'), a=2.0, b=0.5))"
    assert run([venv.python, "-c", code], env=environment(PATH=str(tmp_path))) == "[2.5 2.5]\n"


def test_an_editable_install_with_a_bundled_operator_does_not_measure(
    tools: Venv, workshop: Builder, tmp_path: Path
) -> None:
    """What an import may rebuild is never tuned by the way. `bundled` adds the templates of the installed wheel."""
    folder = tmp_path / "mine"
    shutil.copytree(EXAMPLE, folder)
    lists = folder / "CMakeLists.txt"
    text = lists.read_text().replace("TEMPLATES templates", "TEMPLATES templates bundled OPERATORS affine softmax")
    lists.write_text(text)
    env = environment(**{**workshop.env, "AOT_TUNE_CACHE_DIR": str(tmp_path / "cache")})
    argv = ["--python", tools.python, "install", "-v", "--no-deps", "--no-index", "--no-build-isolation", "-e", folder]
    log = pip(*argv, env=env)
    assert "measurements made" not in log
    assert "NOT TUNED" in log
    code = "import numpy as np; from my_kernels import ops; print(ops.operators, ops.softmax(np.zeros((1, 2), 'f4')))"
    assert run([tools.python, "-c", code]).split("\n")[0] == "('affine', 'softmax') [[0.5 0.5]]"
