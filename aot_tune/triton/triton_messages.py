"""The messages between the build and the processes that hold Triton: plain data, as JSON."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from aot_tune.render.triton.recipe import Recipe
from aot_tune.spec import Declarations
from aot_tune.support.errors import SentError

GivenKind = Literal["pointer", "integer", "quotient", "scalar", "constant", "descriptor", "buffer", "dtype", "fragment"]


class TensorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a tensor in every call. `shape` and `strides` are `Expr.data`; strides are in elements.

    `dtypes` are its element types by the spec's names (`bf16`). If there are several, the fact `dtype_fact` is the
    index of the one that a call has.
    """

    name: str
    dtypes: list[str]
    dtype_fact: str = ""
    shape: list[Any] = []
    strides: list[Any] = []
    optional: bool = False


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What is passed for a parameter of the function.

    `expr` is `Expr.data` of an integer. `value` is a constant or a scalar's default. `block` has the extents of a
    descriptor's blocks as `Expr.data`.
    """

    kind: GivenKind
    expr: Any = None
    value: Any = None
    tensor: TensorFacts | None = None
    block: list[Any] = []


class ProblemFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of the workload, for pruners: all of its facts by name."""

    id: str
    facts: dict[str, int]


class FunctionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A function to read.

    Args:
        name: the kernel's name, for messages.
        function: the reference, as in `TritonFunction`.
        arguments: what the kernel's author passes, by parameter.
        operands: tensors, scalars and dims of the operator. A parameter with such a name gets it.
        parameters: names of the kernel's own parameters.
        problems: the problems of the workload.
        pruners: whether the pruners are asked.
    """

    name: str
    function: str
    arguments: dict[str, Given] = {}
    operands: dict[str, Given] = {}
    parameters: list[str] = []
    problems: list[ProblemFacts] = []
    pruners: bool = True


class InspectRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Functions to read for one target. `roots` are the folders that may hold files of functions."""

    target: str
    roots: list[str]
    functions: list[FunctionRequest]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one function: its declarations, or why they are unknown.

    `imported` are the files of a project's modules that were imported to read it and the functions before it.
    """

    name: str
    inspection: Declarations | None = None
    fault: SentError | None = None
    imported: list[str] = []


class CompileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A function to compile. The image is written to the file `image`.

    `texts` also asks for the intermediate texts.
    """

    recipe: Recipe
    image: str
    texts: bool = False


class DescriptorMap(msgspec.Struct, frozen=True, kw_only=True):
    """How the driver must encode the tensor map of a descriptor. `block` is the box, outermost axis first.

    `element_type` and `swizzle` are Triton's numbers. `element_size` is in bytes.
    """

    parameter: str
    swizzle: int
    element_size: int
    element_type: int
    fp4_padded: bool
    block: list[int]


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """How an image is launched: the constants of `kernel.h`, with sizes in bytes; and what ptxas or LLVM reported.

    `registers` (of a thread) and `spill_bytes` are -1 if nothing was reported.
    """

    name: str
    warps: int
    warp_size: int
    ctas: int
    shared: int
    global_scratch: int
    global_scratch_alignment: int
    profile_scratch: int
    profile_scratch_alignment: int
    cooperative: bool
    pdl: bool
    tma: bool
    descriptor_rounding: bool
    descriptors: list[DescriptorMap]
    size: int
    tensor_memory: int = 0
    registers: int = -1
    spill_bytes: int = -1


class CompileReply(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a compile: an image, or in `error` the line that matters. `log` is everything that was printed.

    `lasting`: it would happen again. `stale`: the process has loaded another state of the source. `texts` are by name,
    such as `ttgir`, if they were requested.
    """

    image: Image | None = None
    texts: dict[str, str] = {}
    error: str = ""
    log: str = ""
    lasting: bool = True
    stale: bool = False


class CompilerReady(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's first line: it is ready, or `fault` says why it never will be."""

    version: str = ""
    fault: SentError | None = None
