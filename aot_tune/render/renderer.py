"""From a candidate to its source text, and to the digest of what that text says.

The source of a kernel that is a function of the author's is its file as it is, and the code that calls it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import msgspec

from aot_tune.expr.integer_expressions import Ratio, Root, as_expr
from aot_tune.render.candidate import Candidate, requirements
from aot_tune.render.environment import Environment, Hooks, SourceLine, map_lines, mark_lines
from aot_tune.render.template_functions import (
    NARROW,
    SYMBOL,
    TENSOR,
    CudaFunctions,
    CxxFunctions,
    HipFunctions,
    cpp_text,
)
from aot_tune.render.triton.kernel_source import render_triton
from aot_tune.render.triton.recipe import identity_of
from aot_tune.spec import CompileOptions, Expr, Operator, Target
from aot_tune.spec.dtypes import DTYPES
from aot_tune.spec.kernel import Kernel, with_config
from aot_tune.spec.native_function import Code, CudaFunction, NativeArgument, NativeFunction, Stream, Struct
from aot_tune.spec.targets import ELSEWHERE, WHY
from aot_tune.spec.triton_function import Buffer, DTypeOf
from aot_tune.support.digests import canonical_digest
from aot_tune.support.errors import RenderError

CONSTANTS = "// aot_tune: constants of"
"""Begins the line behind which a source defines constants. The candidate's symbol follows."""

_NAMESPACE = "aot_tune_glue"
_INCLUDES = "".join(
    f"#include <{name}>\n" for name in ("cmath", "cstddef", "cstdint", "cstring", "tuple", "type_traits", "utility")
)
_CUDA_INCLUDES = "".join(f"#include <{name}.h>\n" for name in ("cuda_bf16", "cuda_fp16", "cuda_runtime")) + "\n"
_PASSING = cpp_text("native_call.h").replace('#include "dlpack_tensor.h"\n', TENSOR)
_HIDDEN = 'extern "C" __attribute__((visibility("hidden")))'
_ALIGNED = 256
"""Bytes that each buffer of a workspace is aligned to."""
_TOKEN = re.compile(
    r"""
    \s+ | //[^\n]* | (?P<comment> /\* (?:.*?\*/)? ) |
    (?P<token>
        [A-Za-z_]\w*(?![\w"'])
      | [;,(){}\[\]]
      | (?:u8|[uUL])?R"(?P<end>[^()\\\s]{0,16})\( (?P<raw> .*?\)(?P=end)" )?
      | (?:u8|[uUL])?"(?:\\.|[^"\\\n])*"
      | (?:u8|[uUL])?'(?:\\.|[^'\\\n])*'
      | [A-Za-z_]\w*
      | \.?\d(?:[eEpP][+-]|'?[\w.])*
      | <<=|>>=|<=>|->\*|\.\.\.|::|\+\+|--|->|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%^&|]=|\.\*|\#\#
      | .
    )
    """,
    re.DOTALL | re.VERBOSE,
)
_DIRECTIVE = re.compile(r"\s*#")
_COMMENT = re.compile(r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|//[^\n]*|/\*.*?\*/""", re.DOTALL)


class _TargetNames(SimpleNamespace):
    """What templates see of a target."""

    def __getattr__(self, name: str) -> NoReturn:
        if name == "multiprocessors":
            raise RenderError("target.multiprocessors is no number of a target", why=WHY, fix=ELSEWHERE)
        raise AttributeError(name)


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate's source, and the guards that it `requires` to hold for a call.

    `digest` says whether a measurement of it still holds: it is of the target, of the guards and checks that decide
    what it is verified on, and of its C++ as tokens. For a Triton function it is of the recipe too, for a vendor's
    algorithm of that alone. `symbol` is the candidate's, whatever its source.

    `lines` holds, for each line of `source`, the template and line that it came from. `compile` is what it is compiled
    with beside what every candidate is. `shared`: bytes of dynamic shared memory that its launches are
    declared to take, at most; 0 where only C++ or a call tells.
    """

    candidate: Candidate
    source: str
    digest: str
    symbol: str
    lines: Sequence[SourceLine]
    requires: tuple[Expr, ...] = ()
    compile: CompileOptions = CompileOptions()
    shared: int = 0


class Renderer:
    """Renders candidates from template roots, for a whole build. `compile`: the library's options, by backend."""

    def __init__(self, roots: Sequence[Path], compile: Mapping[str, CompileOptions] | None = None) -> None:  # noqa: A002
        self.roots = tuple(roots)
        self._compile = dict(compile or {})
        self._environment = Environment(roots)

    def render(self, operator: Operator, candidate: Candidate, target: Target) -> Rendered:
        """Render one candidate. Raises RenderError for any fault in the template, with its file and line."""
        kernel = operator.kernel(candidate.kernel)
        requires = requirements(operator, candidate)
        constants = {fact: value for e in (*operator.legal, *requires) for fact, value in e.pinned()}
        if kernel.triton is not None:
            concrete = operator.concrete(candidate.dtypes)
            recipes, text = render_triton(concrete, candidate, target, constants)
            return _rendered(operator, candidate, target, requires, text, recipe=identity_of(recipes))
        options = kernel.options(self._compile.get(kernel.backend, CompileOptions()))
        if kernel.functions:
            text = _native_source(operator.concrete(candidate.dtypes), kernel, candidate, target, constants)
            return _rendered(operator, candidate, target, requires, text, options=options)
        hooks = Hooks()
        languages = {".cu.j2": CudaFunctions, ".hip.j2": HipFunctions}
        language = next((f for end, f in languages.items() if kernel.template.endswith(end)), CxxFunctions)
        scratch = None if kernel.scratch is None else with_config(kernel, kernel.scratch, candidate.config)
        functions = language(operator.concrete(candidate.dtypes), constants, hooks, scratch)
        names = {**functions.names(), **candidate.config, "target": _TargetNames(name=target.name, **target.facts)}
        try:
            text = hooks.finalize(self._environment.render(kernel.template, names))
        except RenderError as error:
            what = (
                error.what
                if kernel.template in error.what or ".j2:" in error.what
                else (f"{kernel.template}: {error.what}")
            )
            raise RenderError(
                f"{what} (kernel {operator.name}/{candidate.label})", why=error.why, fix=error.fix
            ) from error
        if not hooks.opened("prelude"):
            raise RenderError(
                f"{kernel.template}: it has no prelude()",
                why="the types of a kernel's arguments are declared there",
                fix="write {{ prelude() }} at the top",
            )
        for function in functions.required:
            if not hooks.opened(f"kernel_signature_{function}"):
                raise RenderError(
                    f"{kernel.template}: it has no kernel_signature({function!r})",
                    why="the library calls this function of every candidate",
                    fix=f"write {{{{ kernel_signature({function!r}) }}}} and its body"
                    + (", or {{ no_workspace() }} for a kernel that needs none" if function == "workspace" else ""),
                )
        needed = scratch is not None and (scratch.op, scratch.value) != ("const", 0)
        if needed and not hooks.opened("scratch"):
            raise RenderError(
                f"{kernel.template}: it has no scratch()",
                why=f"kernel {operator.name}/{kernel.name} declares scratch memory between its stages",
                fix="add {{ scratch() }} to the bytes that `workspace` returns, or leave scratch= out",
            )
        return _rendered(operator, candidate, target, requires, text, options=options)

    def with_places(self, rendered: Rendered) -> str:
        """A candidate's source with the place of each line in its template, as debuggers read it."""
        files: dict[str, str] = {}
        lines, following = [], ("", 0)
        continued = False
        for line, place in zip(rendered.source.split("\n"), rendered.lines, strict=True):
            if place[0] and place != following and not continued:
                paths = (root / place[0] for root in self.roots)
                file = files.setdefault(place[0], str(next((p for p in paths if p.is_file()), place[0])))
                lines.append(f'#line {place[1]} "{file}"')
            lines.append(line)
            following, continued = (place[0], place[1] + 1), line.endswith("\\")
        return "\n".join(lines)


def _rendered(
    operator: Operator,
    candidate: Candidate,
    target: Target,
    requires: tuple[Expr, ...],
    text: str,
    *,
    recipe: object = None,
    options: CompileOptions = CompileOptions(),  # noqa: B008 - it is frozen
) -> Rendered:
    """A marked text as a candidate's source.

    Its digest is of the target, the guards and the operator's checks, and of the code. A vendor's call is its
    algorithm, whatever calls it. All others are their tokens; `recipe` is what a source has of a Triton function, in a
    comment, and `options` are the author's, where there are any.
    """
    source, lines = map_lines(text)
    vendors = operator.kernel(candidate.kernel).algorithms is not None
    code: object = [candidate.backend, candidate.config] if vendors else [recipe, token_text(source)]
    checks, with_options = [p.id for p in operator.checks], [options.plain()] if options else []
    digest = canonical_digest([target.name, [e.key() for e in requires], checks, code, *with_options])
    symbol = f"aot_tune_{operator.name}_{candidate.id}"
    return Rendered(
        candidate=candidate,
        source=source.replace(SYMBOL, symbol),
        digest=digest,
        symbol=symbol,
        lines=lines,
        requires=requires,
        compile=options,
        shared=_declared_shared(operator.kernel(candidate.kernel), candidate, target),
    )


def _declared_shared(kernel: Kernel, candidate: Candidate, target: Target) -> int:
    """The most dynamic shared memory of a kernel's functions, as far as config and target alone decide it."""
    facts: dict[str, int] = {f"parameter.{name}": int(v) for name, v in candidate.config.items() if isinstance(v, int)}
    facts |= {f"target.{name}": value for name, value in target.facts.items()}
    stated = [f.shared for f in kernel.functions if isinstance(f, CudaFunction)]
    expressions = [as_expr(s) for s in stated if not isinstance(s, Code)]
    return max((e.evaluate(facts) for e in expressions if e.facts() <= facts.keys()), default=0)


def _native_source(
    operator: Operator, kernel: Kernel, candidate: Candidate, target: Target, constants: Mapping[str, int]
) -> str:
    """The marked text of a candidate, for `map_lines`.

    Args:
        operator: with concrete dtypes.
        constants: facts that the candidate is specialised on.

    Raises:
        RenderError: for a template argument or a macro that is not known when the candidate is compiled.
    """
    return _NativeSource(operator, kernel, candidate, target, constants).text()


def _of_launch(kernel: Kernel) -> set[str]:
    """Parameters that only the launch of a kernel's functions reads, and not their code."""
    used, compiled = set[str](), set[str]()
    for function in kernel.functions:
        used |= {f.removeprefix("parameter.") for _, e in function.expressions() for f in e.facts()}
        compiled |= set(function.declared.template) if function.declared is not None else set()
        compiled |= set(function.seen) if function.macros is None else set()
        compiled |= function.own_parameters()
        places = ("template", "macro")
        facts = {f for what, e in function.expressions() if what.startswith(places) for f in e.facts()}
        compiled |= {f.removeprefix("parameter.") for f in facts}
    return used - compiled


class _NativeSource:
    """One candidate's source.

    Parameters that only the launch reads are constants at its end, behind a line of `CONSTANTS`. A toolchain compiles
    what is before that line once for all their values.
    """

    def __init__(
        self, operator: Operator, kernel: Kernel, candidate: Candidate, target: Target, constants: Mapping[str, int]
    ) -> None:
        self._op, self._kernel, self._candidate = operator, kernel, candidate
        self._cuda = kernel.backend == "nvcc"
        self._hooks = Hooks()
        self._functions = CxxFunctions(operator, constants, self._hooks)
        self._known = dict(constants)
        numbers = {n: int(v) for n, v in candidate.config.items() if isinstance(v, int)}
        launched = _of_launch(kernel) if self._cuda else set()
        self._launched = {n: v for n, v in numbers.items() if n in launched}
        self._known |= {f"parameter.{n}": v for n, v in numbers.items() if n not in launched}
        self._known |= {f"dtype.{v}": operator.dtypes[v].index(d) for v, d in candidate.dtypes.items()}
        self._known |= {f"target.{n}": int(v) for n, v in target.facts.items()}
        self._where = f"kernel {operator.name}/{candidate.label}"
        self._buffers: list[Buffer] = []
        for function in kernel.functions:
            self._buffers += [b for b in function.buffers() if not any(b is listed for listed in self._buffers)]

    def text(self) -> str:
        files = {f.place: f.text for f in self._kernel.functions}
        fp8 = self._cuda and any(t.dtype.saturates for t in self._op.tensors)
        parts = ["#include <cuda_fp8.h>\n" if fp8 else "", _CUDA_INCLUDES if self._cuda else "", _INCLUDES, _PASSING]
        parts += [cpp_text("native_unsigned.h")] if any(s.dtype_name == "u64" for s in self._op.scalars) else []
        parts += [cpp_text("native_launch.cuh")] if self._cuda else []
        parts += [f"#define {name} {value}\n" for name, value in self._macros().items()]
        parts += [f"{_HIDDEN} const int64_t {SYMBOL}_{name};\n" for name in self._launched]
        parts += [mark_lines(text, path) + "\n" for path, text in files.items()]
        parts += [mark_lines("\n", self._candidate.kernel), f"namespace {_NAMESPACE} {{\n\n"]
        parts += [self._workspace(), self._preload() if self._cuda else "", self._launch()]
        parts += [f"\n}}  // namespace {_NAMESPACE}\n"]
        if self._launched:
            parts += [f"{CONSTANTS} {SYMBOL}\n#include <cstdint>\n"]
            parts += [f"{_HIDDEN} const int64_t {SYMBOL}_{n};\n" for n in self._launched]
            parts += [f"const int64_t {SYMBOL}_{n} = {v};\n" for n, v in self._launched.items()]
        return self._hooks.finalize("".join(parts))

    # -- what is known when it is compiled -----------------------------------------------------------------------

    def _macros(self) -> dict[str, str]:
        macros: dict[str, str] = {}
        for function in self._kernel.functions:
            if function.macros is not None:
                macros |= {n: self._constant(v, f"macro {n!r}", macro=True) for n, v in function.macros.items()}
                continue
            taken = function.own_parameters()
            for name, value in self._candidate.config.items():
                if name not in taken and name in function.seen:
                    macros[name] = self._printed(value, macro=True)
        return macros

    def _called(self, function: NativeFunction) -> str:
        """The function's name with the arguments of its template."""
        declared = function.declared
        name = function.name if declared is None else declared.name
        given = function.template
        if not isinstance(given, Mapping):
            named = declared.template[: len(given)] if declared is not None else tuple(map(str, range(len(given))))
            given = dict(zip(named, given, strict=True))
        order = declared.template if declared is not None else tuple(given)
        values = []
        for parameter in order:
            if parameter in given:
                values.append(self._constant(given[parameter], f"template argument {parameter!r}"))
            elif parameter in self._candidate.config:
                values.append(self._printed(self._candidate.config[parameter]))
            else:
                break  # it and what follows it have defaults
        return f"::{name}<{', '.join(values)}>" if order else f"::{name}"

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
            if buffer.zero and not any(buffer is other for other in earlier):
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
            message = f"{function.name}: argument {called} is declared as another kind than what it takes"
            yield f'static_assert(takes<aot_type_{number}, {position}, std::decay_t<decltype({passed})>>, "{message}");'
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
            return [(str(i), argument) for i, argument in enumerate(given)]
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
            for number, (field, argument) in enumerate(given.fields.items()):
                yield from self._value(f"{name}_{number}", argument, lost)
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
        if kind == "parameter" and rest in self._launched:
            return f"{SYMBOL}_{rest}"
        raise RenderError(f"{self._where}: {fact!r} is not known in a launch")


def token_text(source: str) -> str:
    """A text that is equal for two sources of C++ exactly when their tokens are.

    A line of the preprocessor counts as a whole, with each run of spaces as one: `#define F (x)` is not `#define F(x)`.
    """
    texts: list[str] = []
    pending = ""
    for line in source.split("\n"):
        text = pending + line
        tokens = _tokens(text)
        if tokens is None:
            pending = f"{text}\n"
            continue
        pending = ""
        if tokens:
            texts.append(tokens)
    if pending:  # what never ends cannot be compiled: any text that is its own will do
        texts.append(pending)
    return "\n".join(texts)


@lru_cache(maxsize=1 << 15)
def _tokens(text: str) -> str | None:
    """The tokens of whole lines, one a line; None where a comment, a string or a line goes on behind them.

    Candidates of one template have most of their lines in common, so these are remembered.
    """
    if text.endswith("\\"):
        return None
    text = text.replace("\\\n", "")
    if _DIRECTIVE.match(text):
        if "/*" in _COMMENT.sub("", text):
            return None
        return f"{' '.join(_COMMENT.sub(lambda m: m.group(1) or ' ', text).split())}\n"
    tokens = []
    for match in _TOKEN.finditer(text):
        token, comment = match.group("token", "comment")
        if comment == "/*" or (match["end"] is not None and match["raw"] is None):
            return None
        if token is not None:
            tokens.append(token)
    return "\n".join(tokens)
