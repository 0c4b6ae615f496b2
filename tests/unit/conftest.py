"""What the tests of one stage share among their files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent / "shared"))

if TYPE_CHECKING:
    import linked

    from aot_tune.link import LibrarySpec
    from aot_tune.render import Rendered


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[..., linked.Built]:
    """`once(name, make)` is what `make(folder)` links, in a folder of all processes of a run: the first one does it."""
    from filelock import FileLock

    whole = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        whole = whole.parent

    def made(name: str, make: Callable[[Path], linked.Built]) -> linked.Built:
        with FileLock(whole / f"{name}.lock"):
            return make(whole / name)

    return made


@pytest.fixture(scope="session")
def built(once: Callable[..., linked.Built]) -> linked.Built:
    """The library of `linked.library_spec`, linked."""
    import linked

    return once("linked", lambda f: linked.link_library(linked.library_spec(f / "objects"), f / "out"))


@pytest.fixture(scope="session")
def ops(built: linked.Built) -> ModuleType:
    """Its Python module."""
    from linked import load_module

    return load_module(built.module)


@pytest.fixture(scope="session")
def odd(once: Callable[..., linked.Built]) -> linked.Built:
    """The library of `odd_operators`, linked."""
    import linked
    import odd_operators

    return once("odd", lambda f: linked.link_library(odd_operators.library_spec(f / "objects"), f / "out"))


@pytest.fixture(scope="session")
def odd_ops(odd: linked.Built) -> ModuleType:
    """Its Python module."""
    from linked import load_module

    return load_module(odd.module)


@pytest.fixture(scope="session")
def standin(once: Callable[..., linked.Built]) -> linked.Built:
    """The library of `linked_cuda` with stand-ins for kernels and for the driver; no toolkit is needed."""
    from linked_cuda import stand_in

    return once("standin", stand_in)


@pytest.fixture(scope="session")
def cuda_spec(standin: linked.Built) -> LibrarySpec:
    """What that was linked of."""
    return standin.spec


@pytest.fixture
def make_cuda(make_rendered: Callable[..., Rendered]) -> Callable[..., Rendered]:
    """A rendered candidate of a CUDA source: `make_cuda(source, target)`."""

    def make(text: str, target: str = "cuda-sm_80") -> Rendered:
        rendered = make_rendered(0, text, target)
        candidate = type(rendered.candidate)(
            operator="test", kernel="kernel", backend="nvcc", target=target, config={"N": 0}
        )
        return type(rendered)(
            candidate=candidate,
            source=rendered.source,
            digest=rendered.digest,
            symbol=rendered.symbol,
            lines=[("test/kernel.cu.j2", n + 101) for n in range(text.count("\n") + 1)],
        )

    return make
