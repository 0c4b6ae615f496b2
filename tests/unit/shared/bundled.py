"""The operators that ship with the project, by name. Each is loaded once, when it is asked for."""

import functools
from collections.abc import Iterator, Mapping

from aot_tune.render import Renderer
from aot_tune.spec import Operator
from aot_tune.spec.load_operators import bundled_templates, load_operator, operator_folders

RENDERER = Renderer([bundled_templates()])
"""It reads each template once."""


@functools.cache
def _loaded(name: str) -> Operator:
    return load_operator(bundled_templates() / name)


class _Operators(Mapping[str, Operator]):
    def __getitem__(self, name: str) -> Operator:
        if name not in list(self):
            raise KeyError(name)
        return _loaded(name)

    def __iter__(self) -> Iterator[str]:
        return (folder.name for folder in operator_folders([bundled_templates()]))

    def __len__(self) -> int:
        return len(operator_folders([bundled_templates()]))


OPERATORS = _Operators()
