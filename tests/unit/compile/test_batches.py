"""Compiling candidates of several backends at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from aot_tune.compile import Batch, CompileProgress, Jobs, ObjectCache, compile_batches
from aot_tune.render import Rendered


def stand_in(
    name: str,
    get: Callable[[Rendered], object],
    find: Callable[[Rendered], object] = lambda _rendered: None,
) -> ObjectCache:
    """A cache of a backend that compiles by calling `get`, and looks up with `find`."""

    def known(rendered: Rendered, _target: object, maker: dict[str, str]) -> object:
        assert maker == {"toolchain": name}
        return find(rendered)

    cache = SimpleNamespace(
        toolchain=SimpleNamespace(name=name, identity=dict),
        elsewhere=None,
        maker=lambda _target: {"toolchain": name},
        get=lambda rendered, _target: get(rendered),
        find=known,
    )
    return cast("ObjectCache", cache)


def of_backend(rendered: Rendered, backend: str) -> Rendered:
    return msgspec.structs.replace(rendered, candidate=msgspec.structs.replace(rendered.candidate, backend=backend))


def test_an_error_in_one_backend_ends_the_others(make_rendered: Any) -> None:
    begun = list[str]()

    def bad(_rendered: Rendered) -> None:
        raise OSError("no space left")

    def good(rendered: Rendered) -> str:
        begun.append(rendered.candidate.id)
        time.sleep(0.005)
        return rendered.candidate.id

    one = Jobs(count=1, reason="")
    many = tuple(of_backend(make_rendered(n), "good") for n in range(2000))
    batches = [
        Batch(stand_in("bad", bad), (of_backend(make_rendered(9999), "bad"),), one),
        Batch(stand_in("good", good), many, one),
    ]
    with pytest.raises(OSError, match="no space left"):
        compile_batches(batches)
    assert len(begun) < len(many)


def test_what_a_cache_holds_is_there_at_once_and_needs_no_compiler(make_rendered: Any) -> None:
    main, release, order = threading.get_ident(), threading.Event(), list[str]()
    held, new = of_backend(make_rendered(1), "one"), of_backend(make_rendered(2), "one")

    def get(rendered: Rendered) -> str:
        assert rendered is new
        assert threading.get_ident() != main
        assert release.wait(30), "what the cache holds waits for the compiler"
        return rendered.candidate.id

    def find(rendered: Rendered) -> str | None:
        assert threading.get_ident() == main
        return rendered.candidate.id if rendered is held else None

    def seen(progress: CompileProgress) -> None:
        order.append(cast("str", progress.object))
        release.set()

    batch = Batch(stand_in("one", get, find), (new, held), Jobs(count=1, reason=""))
    made = cast("dict[str, str]", compile_batches([batch], seen))
    assert order == [held.candidate.id, new.candidate.id]
    assert made == {i: i for i in order}
