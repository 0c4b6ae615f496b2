"""The operators that ship with the project, by name."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from aot_tune.spec import Operator
from aot_tune.spec.load_operators import bundled_templates, load_operators

__all__ = ["OPERATORS"]


class _Operators(Mapping[str, Operator]):
    """They are loaded when one is asked for."""

    @functools.cached_property
    def _loaded(self) -> dict[str, Operator]:
        return {name: operator for name, (_, operator) in load_operators([bundled_templates()]).items()}

    def __getitem__(self, name: str) -> Operator:
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)


OPERATORS = _Operators()
