"""Random calls of the installed operators, legal and wrong ones, in all ways: some of those of tests/fuzz.py."""

from __future__ import annotations

import contextlib
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fuzz import Fuzz, prepare
from torch_library import shim_cache


def test_random_calls(ops: ModuleType, request: pytest.FixtureRequest) -> None:
    with shim_cache(request.config):
        fuzz = prepare(ops)
    made = [fuzz.call(7, number) for number in range(600)]
    wrong = [told for _, told in made if told]
    assert not wrong, "\n".join(wrong)
    kinds = {kind for kind, _ in made}
    assert {f"{way} {kind}" for way in ("raw", "python", "shim") for kind in ("legal", "extent", "rank")} <= kinds


def test_what_is_wrong_is_told(ops: ModuleType) -> None:
    """Of a module that computes a little off, writes to what it reads, takes wrong calls, or tells little."""

    def off(*arguments: Any, **named: Any) -> Any:
        return ops.softmax(*arguments, **named) * 1.05

    def writing(*arguments: Any, **named: Any) -> Any:
        found = ops.softmax(*arguments, **named)
        for given in arguments:
            given[...] = 1
        return found

    def taking(*arguments: Any, **named: Any) -> Any:
        with contextlib.suppress(ops.Error):
            return ops.softmax(*arguments, **named)

    def silent(*arguments: Any, **named: Any) -> Any:
        try:
            return ops.softmax(*arguments, **named)
        except ops.Error as error:
            raise type(error)("wrong") from None

    whole = prepare(ops, ways=())
    for function, words in (
        (off, "out is off by"),
        (writing, "the input x was written to"),
        (taking, "it raises nothing"),
        (silent, "not named: "),
    ):
        module: Any = SimpleNamespace(**{**vars(ops), "softmax": function})
        fuzz = Fuzz(module, {"softmax": whole.operators["softmax"]}, {})
        assert any(words in fuzz.call(7, number)[1] for number in range(40)), words


def test_torch_checks_random_calls(ops: ModuleType, request: pytest.FixtureRequest) -> None:
    with shim_cache(request.config):
        fuzz = prepare(ops)
    wrong = list(fuzz.checked_by_torch(7, 1))
    assert not wrong, "\n".join(wrong)
