"""Variants: a candidate and its object, the same in compiling, measuring, on a cluster and in linking."""

from __future__ import annotations

import msgspec

from aot_tune.compile.toolchain import Object, target_by_name
from aot_tune.render import Candidate, Rendered, combination
from aot_tune.spec import Expr, Target


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate with its source and, once it is compiled, its object.

    Args:
        recorded: digest of the code that a database has measured. It is set only if the source and the toolchain are
            those of the record, or if the build measures nothing.
        shared: path of its object as a shared library, once it is linked for a bench.
    """

    rendered: Rendered
    object: Object | None = None
    recorded: str = ""
    shared: str = ""

    @property
    def candidate(self) -> Candidate:
        return self.rendered.candidate

    @property
    def target(self) -> Target:
        return target_by_name(self.rendered.candidate.target)

    @property
    def id(self) -> str:
        return self.rendered.candidate.id

    @property
    def name(self) -> str:
        """For people, unique in an operator."""
        return self.rendered.candidate.name

    @property
    def symbol(self) -> str:
        """Its functions are `<symbol>_workspace` and `<symbol>_launch`, and for GPUs also `<symbol>_preload`."""
        return self.rendered.symbol

    @property
    def requires(self) -> tuple[Expr, ...]:
        """Guards. If one of them does not hold for a call, it does not serve the call."""
        return self.rendered.requires

    @property
    def guards(self) -> tuple[Expr, ...]:
        """The guards that a library checks. Of a generic one's, these tell it from its kernel's others."""
        return combination(self.requires) if self.candidate.generic else self.requires

    @property
    def made(self) -> Object:
        """Its object, which must be there."""
        assert self.object is not None
        return self.object

    @property
    def compiled(self) -> bool:
        """Whether there is an object to run or link."""
        return self.object is not None and self.object.status == "ok"

    @property
    def does_not_compile(self) -> bool:
        """Whether it was compiled, and there is no object."""
        return self.object is not None and self.object.status != "ok"

    @property
    def error(self) -> str:
        """Why there is no object."""
        return "it was not compiled" if self.object is None else self.object.error

    @property
    def text_bytes(self) -> int:
        """Size of its code; 0 if it is not known."""
        return 0 if self.object is None else self.object.resources.get("text", 0)

    @property
    def resources(self) -> dict[str, int]:
        """What its code uses, see `Object.resources`, with the dynamic shared memory that is declared."""
        known = {} if self.object is None else self.object.code_resources
        if not known or not self.rendered.shared:
            return known
        return known | {"shared": known.get("shared", 0) + self.rendered.shared, "dynamic_shared": self.rendered.shared}

    @property
    def code(self) -> str:
        """The digest of the code that measurements refer to; empty without an object and a record."""
        return self.recorded if self.object is None else self.object.code

    @property
    def rebuilt(self) -> bool:
        """Whether the code here differs from the code that was measured."""
        return bool(self.recorded) and self.code != self.recorded
