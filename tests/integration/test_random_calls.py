"""Random calls of the installed operators, legal and wrong ones, in all ways: some of those of tests/fuzz.py."""

from __future__ import annotations

from types import ModuleType

import pytest
from fuzz import prepare
from torch_library import shim_cache


def test_random_calls(ops: ModuleType, request: pytest.FixtureRequest) -> None:
    with shim_cache(request.config):
        fuzz = prepare(ops)
    made = [fuzz.call(7, number) for number in range(600)]
    wrong = [told for _, told in made if told]
    assert not wrong, "\n".join(wrong)
    kinds = {kind for kind, _ in made}
    assert {f"{way} {kind}" for way in ("raw", "python", "shim") for kind in ("legal", "extent", "rank")} <= kinds


def test_torch_checks_random_calls(ops: ModuleType, request: pytest.FixtureRequest) -> None:
    with shim_cache(request.config):
        fuzz = prepare(ops)
    wrong = list(fuzz.checked_by_torch(7, 1))
    assert not wrong, "\n".join(wrong)
