"""One wheel of the project, built in isolation from a read-only copy, and a fresh environment that holds it."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from environments import (
    ROOT,
    Builder,
    Built,
    Compiler,
    Venv,
    copy_source,
    make_read_only,
    make_sdist,
    pip,
    tree_digest,
)


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a build and the package need, from which everything else is built without an index."""
    folder = tmp_path_factory.mktemp("wheelhouse")
    head = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[0]
    requirements = re.findall(r'^  "([^":]+)",$', head, re.MULTILINE)
    assert {"scikit-build-core", "rich"} <= {re.split("[<>=]", r)[0] for r in requirements}
    pip("wheel", "-q", "-w", folder, *requirements)
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The object cache and measurement store of the session's builds."""
    return tmp_path_factory.mktemp("cache") / "aot_tune"


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    """The g++ of the session's builds."""
    return Compiler.make(tmp_path_factory.mktemp("compiler"))


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's sdist, from which its wheel is built."""
    return make_sdist(tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory, sdist: Path) -> Path:
    """What the sdist holds, read-only; its workloads are cut to a problem an operator."""
    folder = copy_source(tmp_path_factory.mktemp("source") / "aot_tune", sdist)
    make_read_only(folder)
    return folder


@pytest.fixture(scope="session")
def builder(tmp_path_factory: pytest.TempPathFactory, wheelhouse: Path, cache: Path, compiler: Compiler) -> Builder:
    """Builds for this machine and for x86-64-v2, with quick effort."""
    env = {
        "AOT_TUNE_CACHE_DIR": str(cache),
        "AOT_TUNE_EFFORT": "quick",
        "AOT_TUNE_TARGETS": "cpu-x86-64-v2;native",
        "CXX": str(compiler.path),
    }
    jaxlib = importlib.util.find_spec("jaxlib")
    if jaxlib is not None and jaxlib.origin is not None:  # for test_jax_bundled; isolated builds see none
        env["AOT_TUNE_XLA_FFI"] = str(Path(jaxlib.origin).parent / "include")
    return Builder(wheelhouse, tmp_path_factory.mktemp("wheels"), env)


@pytest.fixture(scope="session")
def built(builder: Builder, source: Path, wheelhouse: Path) -> Built:
    """The project's wheel, also put into the wheelhouse."""
    before = tree_digest(source)
    made = builder.build(source, "first", read_only=True)
    assert tree_digest(source) == before
    (wheelhouse / made.wheel.name).write_bytes(made.wheel.read_bytes())
    return made


@pytest.fixture(scope="session")
def venv(tmp_path_factory: pytest.TempPathFactory, built: Built, wheelhouse: Path) -> Venv:
    """A fresh environment with the wheel and what it depends on."""
    made = Venv.make(tmp_path_factory.mktemp("fresh") / "venv")
    made.install("--find-links", wheelhouse, built.wheel)
    return made


@pytest.fixture(scope="session")
def ops(venv: Venv) -> ModuleType:
    """The installed operators, in this process."""
    path = venv.packages / "aot_tune" / "ops.abi3.so"
    loader = importlib.machinery.ExtensionFileLoader("ops", str(path))
    spec = importlib.util.spec_from_file_location("ops", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
