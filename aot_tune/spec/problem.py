"""A problem: an operator at concrete dims, dtypes, strides, alignment, optional tensors and attribute values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import msgspec

from aot_tune.spec.names import check_several
from aot_tune.support.digests import canonical
from aot_tune.support.errors import SpecError

DEFAULT_ALIGNMENT = 64
"""The alignment in bytes of a problem's tensors, unless the problem states less."""


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """Plain data. What is not stated is the default.

    The default is row-major, aligned to 64 bytes, without optional tensors, and with the first choice of each dtype
    variable.

    `order` lists a tensor's axes from the slowest to the fastest. `strides` gives the strides themselves, in elements.
    """

    dims: dict[str, int]
    order: dict[str, tuple[int, ...]] = {}
    strides: dict[str, tuple[int, ...]] = {}
    present: tuple[str, ...] = ()
    attributes: dict[str, str] = {}
    alignment: dict[str, int] = {}
    dtypes: dict[str, str] = {}

    @cached_property
    def id(self) -> str:
        """A canonical one-line text: equal for equal problems, readable in tables and files."""
        parts = [f"{k}={v}" for k, v in self.dims.items()]
        parts += [f"{t}:{''.join(map(str, o))}" for t, o in sorted(self.order.items())]
        parts += [f"{t}:({','.join(map(str, s))})" for t, s in sorted(self.strides.items())]
        parts += [f"+{t}" for t in sorted(self.present)]
        parts += [f"{a}={c}" for a, c in sorted(self.attributes.items())]
        parts += [f"{t}@{n}" for t, n in sorted(self.alignment.items())]
        parts += [f"{v}={d}" for v, d in sorted(self.dtypes.items())]
        return " ".join(parts)

    @cached_property
    def key(self) -> str:
        """Equal for equal problems, in whatever order their dims were written."""
        return canonical(self).decode()


def problem(
    *,
    order: Mapping[str, Sequence[int]] | None = None,
    strides: Mapping[str, Sequence[int]] | None = None,
    present: Sequence[str] = (),
    attributes: Mapping[str, str] | None = None,
    alignment: Mapping[str, int] | None = None,
    dtypes: Mapping[str, str] | None = None,
    **dims: int,
) -> Problem:
    """Write a problem down: `problem(M=16, N=4096, K=4096, order={"b": (1, 0)})`.

    Raises:
        SpecError: when a dim is not a non-negative integer, or `present` is a single name instead of a list.
    """
    check_several(present, "problem: present")
    for name, extent in dims.items():
        if isinstance(extent, bool) or not isinstance(extent, int) or extent < 0:
            raise SpecError(f"dim {name}={extent!r} is not a non-negative integer")
    return Problem(
        dims=dict(dims),
        order={t: tuple(o) for t, o in sorted((order or {}).items())},
        strides={t: tuple(s) for t, s in sorted((strides or {}).items())},
        present=tuple(sorted(present)),
        attributes=dict(sorted((attributes or {}).items())),
        alignment=dict(sorted((alignment or {}).items())),
        dtypes=dict(sorted((dtypes or {}).items())),
    )
