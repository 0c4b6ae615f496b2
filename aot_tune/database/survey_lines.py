"""A survey as lines of a record. Shapes that only differ in their dims share a line. Each candidate's times follow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from aot_tune.database.database_records import SurveyedShape
from aot_tune.spec import Problem
from aot_tune.support.digests import canonical, canonical_digest

__all__ = ["SurveyLine", "TimesLine", "shapes_of", "survey_lines"]

Columns = Mapping[str, Sequence[float | None]]


class SurveyLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Shapes that only differ in their dims. The extents are by dim, one for each shape in a row.

    In schema 4, the same line has the times by candidate, and there is no id.
    """

    id: str = ""
    order: dict[str, tuple[int, ...]] = {}
    strides: dict[str, tuple[int, ...]] = {}
    present: tuple[str, ...] = ()
    attributes: dict[str, str] = {}
    alignment: dict[str, int] = {}
    dtypes: dict[str, str] = {}
    dims: dict[str, tuple[int, ...]]
    ns: dict[str, tuple[float | None, ...]] = {}


class TimesLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """ns of a candidate on each shape of a survey line, or null if it was not timed."""

    survey: str
    candidate: str
    digest: str = ""
    ns: tuple[float | None, ...]


_FORM = ("order", "strides", "present", "attributes", "alignment", "dtypes")


def survey_lines(shapes: Iterable[SurveyedShape]) -> Iterator[tuple[SurveyLine, list[TimesLine]]]:
    """The lines of a survey. Their order does not depend on that of the shapes."""
    alike: dict[bytes, list[SurveyedShape]] = {}
    for shape in sorted(shapes, key=lambda s: s.problem.id):
        form = {name: getattr(shape.problem, name) for name in _FORM}
        alike.setdefault(canonical(form), []).append(shape)
    for _, own in sorted(alike.items()):
        yield _lines(own)


def form_id(line: SurveyLine) -> str:
    """8 hex digits for what the shapes of a line have in common."""
    return canonical_digest({name: getattr(line, name) for name in _FORM})[:8]


def _lines(shapes: Sequence[SurveyedShape]) -> tuple[SurveyLine, list[TimesLine]]:
    first = shapes[0].problem
    line = SurveyLine(
        **{name: getattr(first, name) for name in _FORM},
        dims={d: tuple(s.problem.dims[d] for s in shapes) for d in first.dims},
    )
    name = form_id(line)
    times = [
        TimesLine(survey=name, candidate=c, ns=tuple(s.ns.get(c) for s in shapes))
        for c in sorted({c for s in shapes for c in s.ns})
    ]
    return msgspec.structs.replace(line, id=name), times


def shapes_of(line: SurveyLine, columns: Columns) -> Iterator[SurveyedShape]:
    """The shapes of a line with the times of some candidates.

    Raises:
        ValueError: when its columns have different lengths.
    """
    lengths = {len(column) for column in (*line.dims.values(), *columns.values())}
    if len(lengths) != 1:
        raise ValueError("its columns have different lengths")
    form = {name: getattr(line, name) for name in _FORM}
    for number in range(lengths.pop()):
        ns = {c: time for c, column in columns.items() if (time := column[number]) is not None}
        yield SurveyedShape(problem=Problem(**form, dims={d: c[number] for d, c in line.dims.items()}), ns=ns)
