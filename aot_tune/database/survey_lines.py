"""A survey as lines of a database: one for all shapes that differ in their dims alone, with columns of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from aot_tune.database.database_records import SurveyedShape
from aot_tune.spec import Problem
from aot_tune.support.digests import canonical

__all__ = ["SurveyLine", "shapes_of", "survey_lines"]


class SurveyLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Shapes that are alike but for their dims: extents by dim, and ns by candidate, one for each shape in a row.

    A candidate that was not timed on a shape has null there.
    """

    order: dict[str, tuple[int, ...]] = {}
    strides: dict[str, tuple[int, ...]] = {}
    present: tuple[str, ...] = ()
    attributes: dict[str, str] = {}
    alignment: dict[str, int] = {}
    dtypes: dict[str, str] = {}
    dims: dict[str, tuple[int, ...]]
    ns: dict[str, tuple[float | None, ...]]


_FORM = ("order", "strides", "present", "attributes", "alignment", "dtypes")


def survey_lines(shapes: Iterable[SurveyedShape]) -> Iterator[SurveyLine]:
    """The lines of a survey, in an order that does not depend on that of the shapes."""
    alike: dict[bytes, list[SurveyedShape]] = {}
    for shape in sorted(shapes, key=lambda s: s.problem.id):
        form = {name: getattr(shape.problem, name) for name in _FORM}
        alike.setdefault(canonical(form), []).append(shape)
    for _, own in sorted(alike.items()):
        yield _line(own)


def _line(shapes: Sequence[SurveyedShape]) -> SurveyLine:
    first = shapes[0].problem
    return SurveyLine(
        **{name: getattr(first, name) for name in _FORM},
        dims={d: tuple(s.problem.dims[d] for s in shapes) for d in first.dims},
        ns={c: tuple(s.ns.get(c) for s in shapes) for c in sorted({c for s in shapes for c in s.ns})},
    )


def shapes_of(line: SurveyLine) -> Iterator[SurveyedShape]:
    """The shapes of a line.

    Raises:
        ValueError: when its columns are not of one length.
    """
    lengths = {len(column) for column in (*line.dims.values(), *line.ns.values())}
    if len(lengths) != 1:
        raise ValueError("its columns are not of one length")
    form = {name: getattr(line, name) for name in _FORM}
    for number in range(lengths.pop()):
        ns = {c: time for c, column in line.ns.items() if (time := column[number]) is not None}
        yield SurveyedShape(problem=Problem(**form, dims={d: c[number] for d, c in line.dims.items()}), ns=ns)
