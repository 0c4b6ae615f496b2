"""What a Triton candidate is compiled from: the contract between the renderer and the toolchain."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from aot_tune.render.triton.fragment_source import TritonFragment
from aot_tune.support.errors import RenderError

__all__ = ["Recipe", "as_data", "identity_of", "of_data", "read_recipe", "with_recipe"]

_BEGIN, _END = "/* triton\n", "\n*/\n"
_NUMBER = "number"
"""The key of a number that JSON cannot hold, as text: it would make null of an infinity."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a function is compiled, for any target; it stands as a comment in front of the launcher's C++.

    Args:
        function: the reference, as in `TritonFunction`.
        digest: that of `Declarations`: the function's source and all that it depends on.
        signature: parameter to type, in order: `*bf16`, `i32`, `fp32`, `constexpr`, `tensordesc<bf16[64, 32]>`.
        constexprs: parameter to value, see `as_data`; None where it is left out.
        dtypes: parameter to the element type that it is, as Triton names it (`bf16`, `fp32`).
        divisible: parameters that 16 divides.
        ranges: pointers whose tensors span less than 2^31 bytes.
        options: launch options: `num_warps` and the like.
        fragments: parameter to the fragment whose function it is.
    """

    function: str
    digest: str
    signature: dict[str, str]
    constexprs: dict[str, Any] = {}
    dtypes: dict[str, str] = {}
    divisible: list[str] = []
    ranges: list[str] = []
    options: dict[str, int | bool] = {}
    fragments: dict[str, TritonFragment] = {}


def as_data(value: Any) -> Any:
    """A constant as JSON can hold it."""
    if isinstance(value, float) and not math.isfinite(value):
        return {_NUMBER: str(value)}
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return {_NUMBER: str(value)}
    return [as_data(v) for v in value] if isinstance(value, (list, tuple)) else value


def of_data(data: Any) -> Any:
    """The constant that `as_data` was given; lists were tuples."""
    if isinstance(data, dict) and _NUMBER in data:
        text = data[_NUMBER]
        return int(text) if text.lstrip("-").isdigit() else float(text)
    return tuple(of_data(d) for d in data) if isinstance(data, (list, tuple)) else data


def identity_of(recipe: Recipe) -> dict[str, object]:
    """What a recipe is recognised by: all of it but where the function lies."""
    _, _, name = recipe.function.rpartition(":")
    return {**_stated(recipe), "function": name}


def _stated(recipe: Recipe) -> dict[str, object]:
    """A recipe by its fields; as it was before there were fragments, where it has none."""
    fields = msgspec.structs.asdict(recipe)
    return {n: msgspec.to_builtins(v) for n, v in fields.items() if n != "fragments" or recipe.fragments}


def with_recipe(recipe: Recipe, launcher: str) -> str:
    """The source of a candidate."""
    text = msgspec.json.format(msgspec.json.encode(_stated(recipe)), indent=2).decode()
    if "*/" in text:
        raise RenderError(f"{recipe.function}: a constant holds '*/'", why="it is written into a comment of C++")
    return f"{_BEGIN}{text}{_END}{launcher}"


def read_recipe(source: str) -> Recipe:
    """The recipe of a source.

    Raises:
        ValueError: when the source has none.
    """
    if not source.startswith(_BEGIN) or _END not in source:
        raise ValueError("the source begins with no recipe of a Triton function")
    return msgspec.json.decode(source[len(_BEGIN) :].partition(_END)[0], type=Recipe)
