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
def linked_once(run_folder: Path) -> Callable[..., linked.Built]:
    """`linked_once(name, make)` is what `make(folder)` links: a second process takes the files of the first."""
    from filelock import FileLock

    def made(name: str, make: Callable[[Path], linked.Built]) -> linked.Built:
        with FileLock(run_folder / f"{name}.lock"):
            return make(run_folder / name)

    return made


@pytest.fixture(scope="session")
def built(linked_once: Callable[..., linked.Built]) -> linked.Built:
    """The library of `linked.library_spec`, linked."""
    import linked

    return linked_once("linked", lambda f: linked.link_library(linked.library_spec(f / "objects"), f / "out"))


@pytest.fixture(scope="session")
def ops(built: linked.Built) -> ModuleType:
    from linked import load_module

    return load_module(built.module)


@pytest.fixture(scope="session")
def odd(linked_once: Callable[..., linked.Built]) -> linked.Built:
    """The library of `odd_operators`, linked."""
    import linked
    import odd_operators

    return linked_once("odd", lambda f: linked.link_library(odd_operators.library_spec(f / "objects"), f / "out"))


@pytest.fixture(scope="session")
def odd_ops(odd: linked.Built) -> ModuleType:
    from linked import load_module

    return load_module(odd.module)


@pytest.fixture(scope="session")
def standin(linked_once: Callable[..., linked.Built]) -> linked.Built:
    """The library of `linked_cuda` with stand-ins for kernels and for the driver; no toolkit is needed."""
    from linked_cuda import stand_in

    return linked_once("standin", stand_in)


@pytest.fixture(scope="session")
def cuda_spec(standin: linked.Built) -> LibrarySpec:
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
