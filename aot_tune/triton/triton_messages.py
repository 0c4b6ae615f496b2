"""What the build and the processes that hold Triton tell each other: plain data, as JSON."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from aot_tune.render.triton.recipe import Recipe
from aot_tune.spec import Declarations

__all__ = [
    "Answer",
    "CompileReply",
    "CompileRequest",
    "CompilerReady",
    "DescriptorMap",
    "Fault",
    "FunctionRequest",
    "Given",
    "GivenKind",
    "Image",
    "InspectRequest",
    "ProblemFacts",
    "TensorFacts",
]

GivenKind = Literal["pointer", "integer", "quotient", "scalar", "constant", "descriptor", "buffer", "dtype", "fragment"]


class TensorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a tensor in every call: `shape` and `strides` hold `Expr.data`, strides in elements.

    `dtypes` are its element types as the spec names them (`bf16`); where there are several, the fact `dtype_fact` is
    the index of the one that a call has.
    """

    name: str
    dtypes: list[str]
    dtype_fact: str = ""
    shape: list[Any] = []
    strides: list[Any] = []
    optional: bool = False


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What a parameter of the function is passed.

    `expr` is `Expr.data` of an integer, `value` a constant or the default of a scalar, `block` the extents of a
    descriptor's blocks (`Expr.data`).
    """

    kind: GivenKind
    expr: Any = None
    value: Any = None
    tensor: TensorFacts | None = None
    block: list[Any] = []


class ProblemFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of the workload, for pruners: all facts of it by name."""

    id: str
    facts: dict[str, int]


class FunctionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A function to read.

    Args:
        name: the kernel's, for messages.
        function: the reference, as in `TritonFunction`.
        arguments: what the kernel's author passes, by parameter.
        operands: tensors, scalars and dims of the operator, which a parameter of their name is passed.
        parameters: names of the kernel's own parameters.
        problems: of the workload.
        pruners: whether they are asked.
    """

    name: str
    function: str
    arguments: dict[str, Given] = {}
    operands: dict[str, Given] = {}
    parameters: list[str] = []
    problems: list[ProblemFacts] = []
    pruners: bool = True


class InspectRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Functions to read for one target; `roots` are the folders that files are named below."""

    target: str
    roots: list[str]
    functions: list[FunctionRequest]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is no answer: the parts of an error."""

    what: str
    why: str = ""
    fix: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one function: what it declares, or why that is not known.

    `imported` are the files of a project's modules that were imported to read it and those before it.
    """

    name: str
    inspection: Declarations | None = None
    fault: Fault | None = None
    imported: list[str] = []


class CompileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A function to compile: the image is to be written to the file `image`.

    `texts` asks for what lies between as well.
    """

    recipe: Recipe
    image: str
    texts: bool = False


class DescriptorMap(msgspec.Struct, frozen=True, kw_only=True):
    """How the driver is to encode the tensor map of a descriptor: `block` is the box, outermost axis first.

    `element_type` and `swizzle` count as Triton does, `element_size` is in bytes.
    """

    parameter: str
    swizzle: int
    element_size: int
    element_type: int
    fp4_padded: bool
    block: list[int]


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """What an image is launched with: the constants of `kernel.h`, sizes in bytes; and what ptxas or LLVM said of it.

    `registers` (of a thread) and `spill_bytes` are -1 where nobody said.
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
    """What came of a compile: an image, or in `error` the line that matters; `log` is all that was printed.

    `lasting` says that the same would happen again; `stale` that the process has loaded another state of the source.
    `texts` are by name, such as `ttgir`, if they were asked for.
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
    fault: Fault | None = None
