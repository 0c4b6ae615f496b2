"""What templates call to apply formulas: the steps of an epilogue that compute one, and fragments by their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from aot_tune.expr.cpp_statements import ArgumentTexts, Dialect, Elements, statements
from aot_tune.expr.formulas import Program
from aot_tune.render.environment import Hooks
from aot_tune.spec import Compute, Operator
from aot_tune.spec.dtypes import dtype
from aot_tune.spec.fragment_programs import program_of, step_program
from aot_tune.support.errors import RenderError, did_you_mean

__all__ = ["FormulaFunctions"]

_STANDARD = {
    "exp": "std::exp", "log": "std::log", "sqrt": "std::sqrt", "tanh": "std::tanh", "erf": "std::erf",
    "abs": "std::fabs", "floor": "std::floor",
}  # fmt: skip
_LANES = {
    "exp": "expf_fast", "tanh": "tanh_fast", "erf": "erf_fast", "abs": "fabs_fast", "relu": "relu", "gelu": "gelu",
    "gelu_tanh": "gelu_tanh", "silu": "silu",
}  # fmt: skip


class FormulaFunctions:
    """The part of `CxxFunctions` for formulas."""

    _op: Operator
    _hooks: Hooks
    _named: set[str]
    _argument = ""
    """What stands before the name of a scalar."""

    def apply_fragment(
        self, name: str, indices: Sequence[str], variable: str, lanes: int = 1, count: str | None = None
    ) -> str:
        """A statement that takes the float `variable` through a fragment of the operator at these indices.

        With `lanes` it is a vector, whose values are along the last index; of these `count` exist.
        """
        if name not in self._op.fragments:
            raise RenderError(
                f"operator {self._op.name!r} has no fragment {name!r}", fix=did_you_mean(name, self._op.fragments)
            )
        wanted = list(self._op.fragments[name].indices)
        if isinstance(indices, str) or len(indices) != len(wanted):
            raise RenderError(
                f"apply_fragment({name!r}): its indices are {', '.join(wanted)}, {indices!r} were given",
                fix="give a list with a C++ expression for each",
            )
        lines = self._statements(name, program_of(self._op, name), Elements(variable, indices, lanes, count))
        return self._hooks.open("apply_fragment", lambda: " ".join(lines))

    def scalar(self, name: str) -> str:
        """A scalar of the call."""
        return f"{self._argument}{name}"

    def dtype_of(self, tensor: str) -> str:
        """The name of a tensor's element type."""
        return self._op.tensor(tensor).dtype.name

    def _compute(
        self, step: Compute, indices: Sequence[str], variable: str, lanes: int = 1, count: str | None = None
    ) -> list[str]:
        """Statements that take a variable through a step of the epilogue."""
        return self._statements("e", step_program(self._op, step), Elements(variable, indices, lanes, count))

    def _computing(self, step: Compute) -> Callable[[Sequence[str], str], str]:
        """The same as a function of indices and a variable."""
        return lambda indices, variable: " ".join(self._compute(step, indices, variable))

    def _statements(self, name: str, program: Program, at: Elements) -> list[str]:
        return statements(name, program, cast(ArgumentTexts, self), self._dialect(), at)

    def _real(self) -> str:
        """The type of floats that formulas are computed in: that of f64 where the operator has such a tensor."""
        return "double" if any(t.dtype.name == "f64" for t in self._op.tensors) else "float"

    def _dialect(self) -> Dialect:
        """How floats are written, and which functions there are; those of vectors where they are included."""
        included = self._real() == "float" and self._hooks.opened("epilogue_functions")
        return Dialect(self._real(), _STANDARD, _LANES if included else {}, self._rounded)

    def _rounded(self, dtype_name: str, value: str) -> str:
        self._named.add(dtype_name)
        return f"static_cast<float>({dtype(dtype_name).c}(static_cast<float>({value})))"
