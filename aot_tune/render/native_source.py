"""The source of a kernel that is a function of the author's: its file as it is, and the code that calls it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from aot_tune.expr.integers import Ratio, Root
from aot_tune.render.candidate import Candidate
from aot_tune.render.environment import Hooks, mark_lines
from aot_tune.render.template_functions import NARROW, TENSOR, CxxFunctions, cpp_text
from aot_tune.spec import Expr, Operator, Target
from aot_tune.spec.dtypes import DTYPES
from aot_tune.spec.kernel import Kernel
from aot_tune.spec.native_function import Code, CudaFunction, NativeArgument, NativeFunction, Stream, Struct
from aot_tune.spec.triton_function import Buffer, DTypeOf
from aot_tune.support.errors import RenderError

__all__ = ["native_source"]

_NAMESPACE = "aot_tune_glue"
_INCLUDES = "".join(
    f"#include <{name}>\n" for name in ("cmath", "cstddef", "cstdint", "cstring", "tuple", "type_traits", "utility")
)
_CUDA_INCLUDES = "".join(f"#include <{name}.h>\n" for name in ("cuda_bf16", "cuda_fp16", "cuda_runtime")) + "\n"
_PASSING = cpp_text("native_call.h").replace('#include "dlpack_tensor.h"\n', TENSOR)
_ALIGNED = 256
"""Bytes that each buffer of a workspace is aligned to."""


def native_source(
    operator: Operator, kernel: Kernel, candidate: Candidate, target: Target, constants: Mapping[str, int]
) -> str:
    """The marked text of a candidate, for `map_lines`.

    Args:
        operator: with concrete dtypes.
        constants: facts that the candidate is specialised on.

    Raises:
        RenderError: for a template argument or a macro that is not known when the candidate is compiled.
    """
    return _Source(operator, kernel, candidate, target, constants).text()


class _Source:
    """One candidate's source."""

    def __init__(
        self, operator: Operator, kernel: Kernel, candidate: Candidate, target: Target, constants: Mapping[str, int]
    ) -> None:
        self._op, self._kernel, self._candidate = operator, kernel, candidate
        self._cuda = kernel.backend == "nvcc"
        self._hooks = Hooks()
        self._functions = CxxFunctions(operator, constants, self._hooks)
        self._known = dict(constants)
        self._known |= {f"parameter.{n}": int(v) for n, v in candidate.config.items() if isinstance(v, int)}
        self._known |= {f"dtype.{v}": operator.dtypes[v].index(d) for v, d in candidate.dtypes.items()}
        self._known |= {f"target.{n}": int(v) for n, v in target.facts.items()}
        self._where = f"kernel {operator.name}/{candidate.label}"
        self._buffers: list[Buffer] = []
        for function in kernel.functions:
            self._buffers += [b for b in function.buffers() if not any(b is one for one in self._buffers)]

    def text(self) -> str:
        files = {f.place: f.text for f in self._kernel.functions}
        fp8 = self._cuda and any(t.dtype.saturates for t in self._op.tensors)
        parts = ["#include <cuda_fp8.h>\n" if fp8 else "", _CUDA_INCLUDES if self._cuda else "", _INCLUDES, _PASSING]
        parts += [cpp_text("native_unsigned.h")] if any(s.dtype_name == "u64" for s in self._op.scalars) else []
        parts += [cpp_text("native_launch.cuh")] if self._cuda else []
        parts += [f"#define {name} {value}\n" for name, value in self._macros().items()]
        parts += [mark_lines(text, place) + "\n" for place, text in files.items()]
        parts += [mark_lines("\n", self._candidate.kernel), f"namespace {_NAMESPACE} {{\n\n"]
        parts += [self._workspace(), self._preload() if self._cuda else "", self._launch()]
        return self._hooks.finalize("".join([*parts, f"\n}}  // namespace {_NAMESPACE}\n"]))

    # -- what is known when it is compiled -----------------------------------------------------------------------

    def _macros(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for function in self._kernel.functions:
            if function.macros is not None:
                found |= {n: self._constant(v, f"macro {n!r}", macro=True) for n, v in function.macros.items()}
                continue
            taken = function.own_parameters()
            for name, value in self._candidate.config.items():
                if name not in taken and name in function.seen:
                    found[name] = self._printed(value, macro=True)
        return found

    def _called(self, function: NativeFunction) -> str:
        """The function's name with the arguments of its template."""
        declared = function.declared
        name = function.name if declared is None else declared.name
        given = function.template
        if not isinstance(given, Mapping):
            named = declared.template[: len(given)] if declared is not None else tuple(map(str, range(len(given))))
            given = dict(zip(named, given, strict=True))
        order = declared.template if declared is not None else tuple(given)
        found = []
        for one in order:
            if one in given:
                found.append(self._constant(given[one], f"template argument {one!r}"))
            elif one in self._candidate.config:
                found.append(self._printed(self._candidate.config[one]))
            else:
                break  # it and what follows it have defaults
        return f"::{name}<{', '.join(found)}>" if order else f"::{name}"

    def _constant(self, given: NativeArgument, what: str, *, macro: bool = False) -> str:
        if isinstance(given, Code):
            return self._code(given, what)
        if isinstance(given, DTypeOf):
            declared = self._op.tensor(given.tensor).dtype
            if not self._cuda and declared.name in NARROW:
                raise RenderError(
                    f"{self._where}: {what}: C++ has no type of its own for {declared.name}",
                    fix='write Code("...") with the name that the source has for it',
                )
            return declared.cuda if self._cuda else declared.c
        if isinstance(given, Expr):
            value = given.substitute(self._known)
            if value.op != "const":
                raise RenderError(
                    f"{self._where}: {what} is {given.key()}, which only a call knows",
                    why="it is compiled in",
                    fix="make it a constant by `requires`, such as dim('N') == 128, or by `pins`",
                )
            return self._printed(int(value.value), macro=macro)
        if isinstance(given, (bool, int, float)):
            return self._printed(given, macro=macro)
        if isinstance(given, str) and given in self._known:  # a dim
            return self._printed(self._known[given], macro=macro)
        raise RenderError(
            f"{self._where}: {what} is {str(given)[:60]!r}, which is not known when it is compiled",
            fix="give a number, parameter(...), target(...), DTypeOf(...) or Code(...)",
        )

    def _code(self, given: Code, what: str) -> str:
        text = given.text
        for name, value in given.values.items():
            text = text.replace(f"{{{name}}}", self._constant(value, f"{what}: {name!r}"))
        return text

    @staticmethod
    def _printed(value: object, *, macro: bool = False) -> str:
        if isinstance(value, bool):
            return str(int(value)) if macro else str(value).lower()
        return repr(value) if isinstance(value, float) else str(value)

    # -- functions of the library's contract ---------------------------------------------------------------------

    def _workspace(self) -> str:
        if not self._buffers:
            return self._functions.no_workspace()
        sizes = "".join(f"  *workspace_size += {self._bytes(b)};\n" for b in self._buffers)
        head = self._functions.kernel_signature("workspace")
        return f"{head} {{\n  *workspace_size = 0;\n{sizes}  return 0;\n}}\n"

    def _preload(self) -> str:
        kernels = dict.fromkeys(self._called(f) for f in self._kernel.functions if isinstance(f, CudaFunction))
        lines = "".join(f"  if (aot_status == 0) aot_status = load_function(&{k});\n" for k in kernels)
        head = self._functions.kernel_signature("preload")
        return f"{head} {{\n  int32_t aot_status = 0;\n{lines}  return aot_status;\n}}\n"

    def _launch(self) -> str:
        lines = ["int32_t aot_status = 0;"]
        if self._buffers:
            lines.append("char* aot_memory = static_cast<char*>(workspace);")
        for number, buffer in enumerate(self._buffers):
            size = self._bytes(buffer)
            lines += [f"char* const aot_buffer_{number} = aot_memory;", f"aot_memory += {size};"]
        for number, function in enumerate(self._kernel.functions):
            lines += self._step(number, function)
        body = "".join(f"  {line}\n" for line in [*lines, "return aot_status;"])
        return f"{self._functions.kernel_signature('launch')} {{\n{body}}}\n"

    def _step(self, number: int, function: NativeFunction) -> Iterator[str]:
        """The statements of one function: memory that is set to 0, structs, checks of the types, and the call."""
        earlier = [b for f in self._kernel.functions[:number] for b in f.buffers()]
        for buffer in function.buffers():
            if buffer.zero and not any(buffer is one for one in earlier):
                yield self._zero(buffer)
        name, arguments = f"aot_function_{number}", self._arguments(function)
        yield f"constexpr auto {name} = &{self._called(function)};"
        yield f"using aot_type_{number} = std::decay_t<decltype({name})>;"
        yield (
            f'static_assert(Signature<aot_type_{number}>::count == {len(arguments)}, "{function.name} takes another '
            f'number of arguments than the {len(arguments)} that are declared");'
        )
        for position, (called, value) in enumerate(arguments):
            passed = f"aot_{number}_{position}"
            yield from self._value(passed, value, f"aot_lost_{number}")
            said = f"{function.name}: argument {called} is declared as another kind than what it takes"
            yield f'static_assert(takes<aot_type_{number}, {position}, std::decay_t<decltype({passed})>>, "{said}");'
        values = "".join(f", aot_{number}_{i}" for i in range(len(arguments)))
        if isinstance(function, CudaFunction):
            call = f"launch_function({name}, {self._shape(function)}, stream{values})"
        else:
            call = f"call_function({name}{values})"
            call = f"last_error({call})" if self._cuda else call
        yield f"if (aot_status == 0) aot_status = {call};"

    def _arguments(self, function: NativeFunction) -> list[tuple[str, NativeArgument]]:
        given = function.arguments
        if not isinstance(given, Mapping):
            return [(str(i), one) for i, one in enumerate(given)]
        assert function.declared is not None
        names = {*self._op.dims, *self._op.arguments}
        left: dict[str, NativeArgument] = {
            p: None if text in ("NULL", "nullptr") else Code(text) for p, text in function.declared.defaults.items()
        }
        left |= {p: Stream() for p in function.declared.parameters if function.is_stream(p, self._kernel.backend)}
        return [(p, given[p] if p in given else p if p in names else left[p]) for p in function.declared.parameters]

    def _value(self, name: str, given: NativeArgument, lost: str) -> Iterator[str]:
        """The declaration of a variable that holds what is passed."""
        if isinstance(given, Struct):
            yield f"{given.type_name} {name}_value{{}};"
            yield f"bool {name}_lost = false;"
            for number, (field, one) in enumerate(given.fields.items()):
                yield from self._value(f"{name}_{number}", one, lost)
                yield f"assign({name}_value.{field}, {name}_{number}, &{name}_lost);"
            yield f"if ({name}_lost) return unavailable;"
            yield f"const Value<{given.type_name}> {name}{{{name}_value}};"
        else:
            yield f"const {self._passed(given)};".replace("@", name)

    def _passed(self, given: NativeArgument) -> str:
        """A declaration of `@`, which holds what is passed."""
        if given is None:
            return "Pointer @{nullptr}"
        if isinstance(given, Stream):
            return "Value @{static_cast<cudaStream_t>(stream)}" if self._cuda else "Pointer @{stream}"
        if isinstance(given, Code):
            return f"Value @{{{self._code(given, 'argument')}}}"
        if isinstance(given, Buffer):
            return f"Pointer @{{aot_buffer_{self._number(given)}}}"
        return self._named(given) if isinstance(given, str) else self._number_passed(given)

    def _number_passed(self, given: Any) -> str:
        if isinstance(given, float):
            return f"Real @{{{given!r}}}"
        if isinstance(given, Root):
            return f"Real @{{std::sqrt({self._quotient(given.of)})}}"
        return f"Real @{{{self._quotient(given)}}}" if isinstance(given, Ratio) else f"Integer @{{{self._expr(given)}}}"

    def _named(self, name: str) -> str:
        """A tensor, scalar, attribute or dim of the operator."""
        if name in self._op.dims:
            return f"Integer @{{{self._functions.dim(name)}}}"
        tensor = next((t for t in self._op.tensors if t.name == name), None)
        if tensor is not None:
            data = f"{name}->data" if not tensor.optional else f"{name} != nullptr ? {name}->data : nullptr"
            return f"Pointer @{{{data}}}"
        scalar = next((s for s in self._op.scalars if s.name == name), None)
        if scalar is not None and scalar.dtype_name.startswith("f"):
            return f"Real @{{{name}}}"
        kind = "Unsigned" if scalar is not None and scalar.dtype_name == "u64" else "Integer"
        return f"{kind} @{{{name if scalar is not None else self._functions.attr(name)}}}"

    # -- pieces --------------------------------------------------------------------------------------------------

    def _shape(self, function: CudaFunction) -> str:
        rows = []
        for what in ("grid", "block", "cluster"):
            extents = [self._expr(e) for e in function.extents(what)]
            rows.append("{" + ", ".join([*extents, "1", "1", "1"][:3]) + "}")
        shared = function.shared
        size = self._code(shared, "shared") if isinstance(shared, Code) else self._expr(shared)
        return f"Shape{{{', '.join(rows)}, {size}, {str(function.cooperative).lower()}}}"

    def _bytes(self, buffer: Buffer) -> str:
        size = f"({self._expr(buffer.count)}) * {DTYPES[buffer.dtype_name].itemsize}"
        return f"(({size}) + {_ALIGNED - 1}) / {_ALIGNED} * {_ALIGNED}"

    def _zero(self, buffer: Buffer) -> str:
        number, size = self._number(buffer), self._bytes(buffer)
        if not self._cuda:
            return f"std::memset(aot_buffer_{number}, 0, {size});"
        stream = "static_cast<cudaStream_t>(stream)"
        return f"if (aot_status == 0) aot_status = cudaMemsetAsync(aot_buffer_{number}, 0, {size}, {stream});"

    def _number(self, buffer: Buffer) -> int:
        """Which of the buffers one is: itself, not one that is equal."""
        return next(i for i, b in enumerate(self._buffers) if b is buffer)

    def _quotient(self, given: Ratio) -> str:
        above, below = (f"static_cast<double>({self._expr(part)})" for part in given.parts)
        return f"{above} / {below}"

    def _expr(self, given: Any) -> str:
        expr = given if isinstance(given, Expr) else Expr("const", value=int(given))
        return expr.substitute(self._known).cpp(self._fact)

    def _fact(self, fact: str) -> str:
        kind, _, rest = fact.partition(".")
        if not rest:
            return self._functions.dim(fact)
        if kind == "stride":
            tensor, _, axis = rest.rpartition(".")
            text = self._functions.stride(tensor, int(axis))
            optional = self._op.tensor(tensor).optional and text.startswith(tensor)
            return f"({tensor} != nullptr ? {text} : 0)" if optional else text
        if kind == "present":
            return f"int64_t{{{self._functions.present(rest)}}}"
        if kind == "attribute":
            return f"int64_t{{{self._functions.attr(rest)}}}"
        if fact == "device.multiprocessors":
            return "count_multiprocessors()"
        raise RenderError(f"{self._where}: {fact!r} is not known in a launch")
