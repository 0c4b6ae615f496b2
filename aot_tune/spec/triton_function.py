"""A @triton.jit function as a kernel: its arguments in terms of the operator's, and its grid.

Nothing here needs Triton. What the function itself declares (parameters, configs, heuristics) is in `Declarations`,
which a separate process reads for each target. Both together give the specialisations that a call may have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from aot_tune.expr.integer_expressions import Expr, Ratio, Root
from aot_tune.spec.dtypes import dtype
from aot_tune.spec.fragments import FragmentOf
from aot_tune.spec.names import check_among, check_identifier, check_several
from aot_tune.support.errors import SpecError

_REFERENCE = re.compile(
    r"(?P<place>[A-Za-z0-9_][A-Za-z0-9_./-]*):(?P<name>[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*)\Z"
)
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\Z")
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion")
"""Launch options that a config may set beside the function's constexprs."""
AMD_OPTIONS = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")
"""Values of a config that are launch options only on AMD's devices."""


@dataclass(frozen=True)
class Descriptor:
    """A tensor descriptor of a whole tensor, made by the host. Blocks have the extents `block`, one for each axis.

    The extents are integers or expressions of parameters. They replace the hook that sets `block_shape`. The tensor's
    last stride must be 1. Its other strides and its address must be multiples of 16 bytes, and so must the rows of an
    output. Other calls go to other variants. For a generic kernel, `legal` must state these conditions. `order` lists
    the tensor's axes in the descriptor's order, such as (1, 0) for a transpose. `block` and the conditions are then in
    that order.
    """

    tensor: str
    block: tuple[Expr | int, ...]
    padding: str = "zero"
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class Buffer:
    """Workspace memory: a pointer to `count` elements. With `zero`, it is set to 0 before each launch."""

    dtype_name: str
    count: Expr | int
    zero: bool = False


@dataclass(frozen=True)
class DTypeOf:
    """The element type of a tensor, such as `tl.bfloat16`: a constexpr."""

    tensor: str


KernelArgument = str | Expr | Ratio | Root | int | float | bool | None | Descriptor | Buffer | DTypeOf | FragmentOf
"""A Triton argument: a tensor's or scalar's name, an expression of the call, a quotient, or a constant."""

Grid = Sequence[Expr | int] | Callable[[Mapping[str, Any]], Sequence[Expr | int]]


class KernelParameter(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of a function. Without `align`, its divisibility is ignored; without `special`, all of its value is.

    `default` counts only with `has_default`. `annotation` is a type that the signature fixes, such as `i64`.
    """

    name: str
    constexpr: bool = False
    special: bool = True
    align: bool = True
    has_default: bool = False
    default: Any = None
    annotation: str = ""


class Declarations(msgspec.Struct, frozen=True, kw_only=True):
    """What a function declares for one target.

    Args:
        parameters: in order.
        configs: those of `@triton.autotune`, with constexprs and launch options together; empty without it.
        hooks: whether a config or the autotuner has hooks other than those of `reset_to_zero`.
        pruned: problem id to the configs (by index) that the autotuner's pruners leave, if it has pruners.
        heuristics: constexpr or launch option to its expression, as `Expr.data`.
        booleans: heuristics whose results are True and False, not integers.
        debug: the function is declared with `debug`, which keeps its assertions.
        digest: of the source of the function, of all that it calls, and of the globals that these read.
        files: the sources that were read, for the message about a change.
    """

    parameters: tuple[KernelParameter, ...]
    configs: tuple[dict[str, Any], ...] = ()
    keys: tuple[str, ...] = ()
    hooks: bool = False
    reset_to_zero: tuple[str, ...] = ()
    restore_value: tuple[str, ...] = ()
    pruned: dict[str, list[int]] = {}
    heuristics: dict[str, Any] = {}
    booleans: tuple[str, ...] = ()
    debug: bool = False
    digest: str = ""
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class TritonFunction:
    """A reference to a function, and how it is called.

    Args:
        function: `package.module:name`, or `file.py:name` with a file below a template root. The name may be
            `Class.name`.
        arguments: kernel argument to what is passed. One that is not listed is a tensor, scalar or dim of the same
            name, a parameter or heuristic, or its default.
        grid: one to three expressions. Or, as in Triton, a function of a mapping that gives the kernel's arguments and
            parameters by name. The function runs once, with expressions.
        options: launch options by name: integers, or expressions of the call and of parameters.
        launch_pdl: the kernel calls `gdc_wait`. On GPUs with such launches, from sm_90 on, it may begin before the
            kernel in front of it has ended.
        cooperative: all blocks must run at the same time.
        reset_to_zero: outputs and buffers, named as kernel arguments, that are set to 0 before each launch.
        narrow: integer arguments that have 32 bits in all code, as offsets of block pointers and descriptors must.
            Calls in which they do not fit go to another kernel.
        pruners: whether the autotuner's own pruners are used. Without them, all configs are tried on all problems.
        hooks_declared: says that `Descriptor.block` and the like declare what hooks of configs do. The hooks are left
            out.
        inspections: what the function declares, by target. The build fills this in.
    """

    function: str
    arguments: Mapping[str, KernelArgument]
    grid: Grid
    options: Mapping[str, Expr | int] = field(default_factory=dict)
    launch_pdl: bool = False
    cooperative: bool = False
    reset_to_zero: tuple[str, ...] = ()
    narrow: tuple[str, ...] = ()
    pruners: bool = True
    hooks_declared: bool = False
    inspections: Mapping[str, Declarations] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for several in ("reset_to_zero", "narrow"):
            check_several(getattr(self, several), f"Triton function {self.function!r}: {several}")
        if not _REFERENCE.match(self.function) or ".." in self.function:
            raise SpecError(
                f"{self.function[:80]!r} is not a reference to a Triton function",
                fix="write package.module:name, or path/file.py:name below the templates",
            )
        for name, given in {**self.options, **self.arguments}.items():
            if isinstance(given, Expr):
                _check_not_mixed(f"Triton function {self.function!r}: {name!r}", given)
        for name in self.options:
            check_among(name, OPTIONS, f"Triton function {self.function!r}: unknown launch option {name!r}")
        for name, given in self.arguments.items():
            if not isinstance(name, str) or not _PARAMETER.match(
                name
            ):  # a reserved word of C++ may be a name in Python
                check_identifier(name, f"Triton function {self.function!r}: argument")
            if isinstance(given, Buffer):
                dtype(given.dtype_name, f"Triton function {self.function!r}: argument {name!r}")
            elif not _can_be_passed(given):
                raise SpecError(
                    f"Triton function {self.function!r}: argument {name!r} is {str(given)[:60]!r}, "
                    f"a {type(given).__name__}",
                    why="arguments are names, expressions, numbers, booleans, None, Descriptor, Buffer, DTypeOf, "
                    "fragment, and tuples of constants",
                    fix="convert it: int(...) of a number of another package, DTypeOf(...) for an element type",
                )

    @property
    def place(self) -> str:
        """The module's name, or the file's path."""
        return self.function.partition(":")[0]

    @property
    def name(self) -> str:
        """The function's name in its module."""
        return self.function.partition(":")[2]

    def inspected(self, inspections: Mapping[str, Declarations]) -> TritonFunction:
        """The same reference, with the function's declarations by target."""
        return replace(self, inspections=dict(inspections))


def _check_not_mixed(where: str, given: Expr) -> None:
    facts = {f for f in given.facts() if not f.startswith("parameter.")}
    of_target = {f for f in facts if f.startswith("target.")}
    if of_target and facts - of_target:
        raise SpecError(
            f"{where} is {given.key()[:80]}: it mixes facts of the target and of the call",
            why="facts of a target are compiled in, and dispatch knows only facts of the call",
            fix="pass two arguments, or declare a kernel for each target by `constraints`",
        )


_ALONE = (Expr, Ratio, Root, Descriptor, DTypeOf, FragmentOf)
"""What must be passed by itself, not in a tuple."""


def _can_be_passed(given: object) -> bool:
    if isinstance(given, (tuple, list)):
        return all(_can_be_passed(g) and not isinstance(g, _ALONE) for g in given)
    return given is None or isinstance(given, (str, int, float, *_ALONE))
