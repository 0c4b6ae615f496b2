"""A function of a C++ or CUDA source as a kernel: its arguments in terms of the operator, and its launch.

The source stays as it is. It gets the values of a config as macros or as template arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from aot_tune.expr.integer_expressions import Expr, ExprLike, Ratio, Root, as_expr
from aot_tune.spec.dtypes import dtype
from aot_tune.spec.triton_function import Buffer, DTypeOf
from aot_tune.support.errors import SpecError

_SKIPPED = re.compile(
    r"""
    (?P<comment>//[^\n]*|/\*.*?\*/)
    | (?P<directive>^[ \t]*\#(?:[^\n\\]|\\.)*)
    | R"(?P<end>[^()\\\s]{0,16})\(.*?\)(?P=end)"
    | "(?:\\.|[^"\\\n])*"
    | '(?:\\.|[^'\\\n])+'
    """,
    re.DOTALL | re.VERBOSE | re.MULTILINE,
)
_SKIPPED_IN_LINE = re.compile(r'//[^\n]*|/\*.*?\*/|"[^"\n]*"', re.DOTALL)
_TOKEN = re.compile(r"[A-Za-z_]\w*|::|->|\.?\d(?:[eEpP][+-]|[\w.'])*|\S")
_WORD = re.compile(r"[A-Za-z_]\w*")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_IN_ANGLES = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([^>\n]+)>", re.MULTILINE)
_LONGEST_HEAD = 500
"""The most tokens of a template's head."""
_OPEN, _CLOSE = "([{", ")]}"
_NO_TYPES = frozenset(("return", "else", "do", "new", "delete", "throw", "goto", "case", "co_return", "sizeof"))


@dataclass(frozen=True)
class SourceFunction:
    """A function of a source.

    Args:
        name: with the namespaces around it, `ops::rms_norm`.
        parameters: names in order; empty for one without a name.
        is_kernel: whether it is a `__global__` function.
        template: names of its template's parameters, in order.
        defaulted: those of them that have a default.
        line: its line, counted from 1.
        defaults: parameters with a default, with its text.
    """

    name: str
    parameters: tuple[str, ...]
    is_kernel: bool = False
    template: tuple[str, ...] = ()
    defaulted: frozenset[str] = frozenset()
    line: int = 0
    defaults: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Token:
    text: str
    line: int


def words(text: str) -> frozenset[str]:
    """All identifiers of a source, also those in preprocessor lines, but not those in comments and strings."""

    def keep(match: re.Match[str]) -> str:
        return " " if match["directive"] is None else _SKIPPED_IN_LINE.sub(" ", match[0])

    return frozenset(_WORD.findall(_SKIPPED.sub(keep, text)))


def included_names(text: str, *, in_angles: bool = False) -> tuple[str, ...]:
    """The names that a source includes in quotes and, if asked for, in angle brackets."""
    names = [*_INCLUDE.findall(text), *(_IN_ANGLES.findall(text) if in_angles else ())]
    return tuple(dict.fromkeys(names))


def template_names(text: str) -> frozenset[str]:
    """Names of the parameters of all templates of a source, also of classes and inside of classes."""
    texts = [t.text for t in _tokens(text)]
    heads = (texts[i : i + _LONGEST_HEAD] for i, t in enumerate(texts) if t == "template")
    return frozenset(name for head in heads for name in _template(head)[0] if name)


def source_functions(text: str) -> list[SourceFunction]:
    """The functions that a source declares or defines outside of classes, in order.

    A definition after a declaration of the same name and parameters counts once."""
    functions: list[SourceFunction] = []
    for function in _functions(_tokens(text)):
        same = [f for f in functions if f.name == function.name and len(f.parameters) == len(function.parameters)]
        if not same:
            functions.append(function)
        elif not any(same[0].parameters) and any(function.parameters):
            functions[functions.index(same[0])] = function
    return functions


def _tokens(text: str) -> list[_Token]:
    def blank(match: re.Match[str]) -> str:
        lines = "\n" * match[0].count("\n")
        return lines if match["comment"] or match["directive"] is not None else f'""{lines}'

    tokens, line = [], 1
    for row in _SKIPPED.sub(blank, text).split("\n"):
        tokens += [_Token(t, line) for t in _TOKEN.findall(row)]
        line += 1
    return tokens


def _functions(tokens: Sequence[_Token]) -> Iterator[SourceFunction]:
    """Walk over declarations at the level of namespaces. Bodies of functions and classes are skipped."""
    spaces: list[str] = []
    start, at = 0, 0
    while at < len(tokens):
        text = tokens[at].text
        if text in ("(", "["):
            end = _matching(tokens, at)
            function = _function(tokens, start, at, end, spaces) if text == "(" else None
            if function is not None:
                yield function
            at = end + 1
        elif text == ";":
            start = at = at + 1
        elif text == "}":
            if spaces:
                spaces.pop()
            start = at = at + 1
        elif text == "{":
            space = _namespace(tokens[start:at])
            if space is None:
                at = _matching(tokens, at) + 1
            else:
                spaces.append(space)
                at += 1
            start = at
        else:
            at += 1


def _namespace(head: Sequence[_Token]) -> str | None:
    """The name of a namespace that begins here, empty for `extern "C"` or without a name; None if none begins."""
    texts = [t.text for t in head if t.text != "inline"]
    if texts[:1] == ["namespace"]:
        return "".join(t for t in texts[1:] if _WORD.fullmatch(t) or t == "::")
    return "" if texts and texts[0] == "extern" and len(texts) == 3 else None


def _function(tokens: Sequence[_Token], start: int, at: int, end: int, spaces: Sequence[str]) -> SourceFunction | None:
    """The function whose parameters are between `at` and `end`, if there is a function at that place."""
    name = tokens[at - 1].text if at > start else ""
    after = tokens[end + 1].text if end + 1 < len(tokens) else ";"
    if not _WORD.fullmatch(name) or after not in ("{", ";", "noexcept", "->", "__attribute__"):
        return None
    texts = [t.text for t in tokens[start : at - 1]]
    template, defaulted, rest = _template(texts)
    types = [t for t in rest if t != '"' and (_WORD.fullmatch(t) or t in "*&>")]
    if not types or not _NO_TYPES.isdisjoint(types) or "=" in rest or name == "__launch_bounds__":
        return None
    scope = [s for s in spaces if s]
    while len(rest) > 1 and rest[-1] == "::":  # a definition outside of its namespace
        scope.append(rest[-2])
        rest = rest[:-2]
    parameters = _split(tokens[at + 1 : end])
    return SourceFunction(
        name="::".join([*scope, name]),
        parameters=tuple(_parameter(p) for p in parameters),
        is_kernel="__global__" in texts,
        template=template,
        defaulted=defaulted,
        line=tokens[at - 1].line,
        defaults={_parameter(p): text for p in parameters if (text := _default(p))},
    )


def _template(texts: Sequence[str]) -> tuple[tuple[str, ...], frozenset[str], list[str]]:
    """The parameters of a template's head, those with a default, and the tokens after the head."""
    if texts[:2] != ["template", "<"]:
        return (), frozenset(), list(texts)
    angles, brackets, end = 0, 0, 1
    for end in range(1, len(texts)):
        brackets += (texts[end] in _OPEN) - (texts[end] in _CLOSE)
        angles += {"<": 1, ">": -1}.get(texts[end], 0) if brackets == 0 else 0
        if angles == 0:
            break
    names, defaulted = [], set()
    for declaration in _split([_Token(t, 0) for t in texts[2:end]]):
        name = _parameter(declaration)
        names.append(name)
        if any(t.text == "=" for t in declaration):
            defaulted.add(name)
    return tuple(names), frozenset(defaulted), list(texts[end + 1 :])


def _split(tokens: Sequence[_Token]) -> list[list[_Token]]:
    """The tokens between commas that are not inside of brackets. A single `void` counts as nothing."""
    parts: list[list[_Token]] = [[]]
    brackets = angles = 0
    for token in tokens:
        brackets += (token.text in _OPEN) - (token.text in _CLOSE)
        angles += {"<": 1, ">": -1}.get(token.text, 0) if brackets == 0 else 0
        if token.text == "," and brackets == angles == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    if len(parts) == 1 and [t.text for t in parts[0]] in ([], ["void"]):
        return []
    return parts


def _parameter(tokens: Sequence[_Token]) -> str:
    """The name in a parameter's declaration; empty if it has none."""
    texts = [t.text for t in tokens]
    texts = texts[: texts.index("=")] if "=" in texts else texts
    pointer = next((i for i in range(len(texts) - 2) if texts[i] == "(" and texts[i + 1] in "*&"), None)
    if pointer is not None:  # float (*name)[4]
        return next((t for t in texts[pointer + 2 :] if _WORD.fullmatch(t)), "")
    texts = texts[: texts.index("[")] if "[" in texts else texts
    if len(texts) < 2 or not _WORD.fullmatch(texts[-1]) or texts[-2] == "::":
        return ""
    return texts[-1]


def _default(tokens: Sequence[_Token]) -> str:
    """The text of a parameter's default. Empty if there is none, or if it has a quoted text, which is not kept."""
    texts = [t.text for t in tokens]
    if "=" not in texts or '"' in texts:
        return ""
    default = ""
    for text in texts[texts.index("=") + 1 :]:
        default += f" {text}" if default[-1:].isidentifier() and text[0].isidentifier() else text
    return default


def _matching(tokens: Sequence[_Token], at: int) -> int:
    """The position of the bracket that closes the one at `at`; the last token if there is none."""
    depth = 0
    for i in range(at, len(tokens)):
        depth += (tokens[i].text in _OPEN) - (tokens[i].text in _CLOSE)
        if depth == 0:
            return i
    return len(tokens) - 1


_REFERENCE = re.compile(r"(?P<path>[^:\s\x00-\x1f][^:\x00-\x1f]*?\.\w+):(?P<name>[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*)")
_CUDA = (".cu", ".cuh")
_STREAMS = ("stream", "cuda_stream", "s")
HEADERS = (".h", ".hpp", ".hh")
_CXX = (".cpp", ".cc", ".cxx", ".c++", *HEADERS)


@dataclass(frozen=True)
class Code:
    """An expression or a type of C++ that is printed as it is: `Code("Layout::kRowMajor")`.

    Args:
        text: the code, with `{name}` in place of each value.
        values: name to a value that is known when a candidate is compiled, as for a template: `Code("Traits<{WARPS},
            {T}>", {"WARPS": parameter("WARPS"), "T": DTypeOf("x")})`.
    """

    text: str
    values: Mapping[str, NativeArgument] = field(default_factory=dict)


@dataclass(frozen=True)
class Stream:
    """The stream of the call, for a launcher: a `cudaStream_t`."""


@dataclass(frozen=True)
class Struct:
    """A struct that is passed by value. Fields that are not listed are zero.

    Args:
        type_name: its name in C++, `ops::Params`.
        fields: name of a field to its value, as for an argument. `shape.batch` names a field of a field.
    """

    type_name: str
    fields: Mapping[str, NativeArgument]


NativeArgument = str | Expr | Ratio | Root | int | float | bool | None | Buffer | DTypeOf | Code | Stream | Struct
"""What is passed as an argument: a tensor's or scalar's name, an expression, a constant, or a record from above."""


@dataclass(frozen=True)
class NativeFunction:
    """A reference to a function, and its arguments; see `CudaFunction` and `Launcher`.

    The fields after `macros` are filled in when the operator is loaded: the file's text, its name for messages, the
    function's declaration, all names in the file and in headers beside it, and its folder.
    """

    function: str
    arguments: Mapping[str, NativeArgument] | Sequence[NativeArgument] = ()
    template: Mapping[str, NativeArgument] | Sequence[NativeArgument] = ()
    macros: Mapping[str, NativeArgument] | None = None
    text: str = field(default="", compare=False, repr=False)
    place: str = field(default="", compare=False, repr=False)
    declared: SourceFunction | None = field(default=None, compare=False, repr=False)
    seen: tuple[str, ...] = field(default=(), compare=False, repr=False)
    folder: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        match = _REFERENCE.fullmatch(self.function) if isinstance(self.function, str) else None
        if match is None:
            raise SpecError(
                f"{str(self.function)[:80]!r} is not a reference to a function",
                fix='write "folder/file.cu:name", with its namespace, if any: "file.cu:ops::name"',
            )
        if PurePosixPath(match["path"]).suffix not in (*_CUDA, *_CXX):
            raise SpecError(
                f"{self.function!r}: by its suffix, the file is not a source of C++ or CUDA",
                fix=f"use one of {', '.join((*_CUDA, *_CXX))}",
            )
        for what, given in (("arguments", self.arguments), ("template", self.template), ("macros", self.macros or {})):
            if not isinstance(given, (Mapping, tuple, list)):
                raise SpecError(
                    f"{self.function!r}: {what} are {str(given)[:80]!r}",
                    fix="write a dict of parameter name to what is passed, or a tuple in the function's order",
                )
        if not self.arguments:  # all of them are found by their names
            object.__setattr__(self, "arguments", {})
        for what, part in self.parts():
            _check(f"{self.function!r}: {what}", part)

    @property
    def path(self) -> str:
        """The source's file, as declared."""
        return self._matched("path")

    @property
    def name(self) -> str:
        """The function's name, as declared."""
        return self._matched("name")

    def _matched(self, group: str) -> str:
        match = _REFERENCE.fullmatch(self.function)
        assert match is not None, "it was checked when it was made"
        return match[group]

    @property
    def backend(self) -> str:
        """The backend that compiles it, if the kernel names none."""
        return backend_of_suffix(self.path) or "cxx"

    def is_stream(self, name: str, backend: str) -> bool:
        """Whether a parameter of this name gets the call's stream. It does unless something else is passed as it."""
        return isinstance(self, Launcher) and backend == "nvcc" and name in _STREAMS

    def given(self) -> list[tuple[str, NativeArgument]]:
        """What is passed or compiled in, each with its place: arguments, template arguments, macros."""
        rows: list[tuple[str, NativeArgument]] = []
        several = (("argument", self.arguments), ("template argument", self.template), ("macro", self.macros or {}))
        for what, given in several:
            pairs = given.items() if isinstance(given, Mapping) else enumerate(given)
            rows += [(f"{what} {name!r}", value) for name, value in pairs]
        return rows

    def parts(self) -> list[tuple[str, NativeArgument]]:
        """What is given, and all that it is made of."""
        return [part for row in self.given() for part in _parts(*row)]

    def expressions(self) -> list[tuple[str, Expr]]:
        """All expressions in it, each with its purpose."""
        sizes = [(what, as_expr(part.count)) for what, part in self.parts() if isinstance(part, Buffer)]
        return [*((what, part) for what, part in self.parts() if isinstance(part, Expr)), *sizes]

    def own_parameters(self) -> frozenset[str]:
        """Parameters of the kernel that its template or a `Code` uses. They become no macros."""
        codes = [part for _, part in self.parts() if isinstance(part, Code)]
        filled = [part for code in codes for _, part in _parts("", code) if isinstance(part, Expr)]
        facts = {fact for expr in filled for fact in expr.facts()}
        taken = self.declared.template if self.declared is not None else ()
        return frozenset(taken) | {f.removeprefix("parameter.") for f in facts if f.startswith("parameter.")}

    def buffers(self) -> list[Buffer]:
        """Its buffers, in the order of the arguments."""
        return [part for _, part in self.parts() if isinstance(part, Buffer)]


@dataclass(frozen=True)
class CudaFunction(NativeFunction):
    """A `__global__` function and its launch.

    Args:
        function: `folder/file.cu:name`. The file is below the operator's folder, a template root or the project's
            folder, or its path is absolute. A name in a namespace is `file.cu:ops::name`.
        arguments: parameter of the function to what is passed, or all values in order. A parameter that is not listed
            gets the tensor, scalar or dim of its own name, or else its default in the source. Integers that do not fit
            are never passed: such calls go to the next variant.
        grid, block: one to three expressions of the call and of parameters each.
        shared: bytes of dynamic shared memory. More than 48 KiB are requested from the driver. Use `Code` if only C++
            knows the number: `Code("Traits<128>::kSharedBytes")`.
        template: parameter of the function's template to its value. One that is not listed is the kernel's parameter of
            the same name.
        macros: name to a value that is known when a candidate is compiled. Parameters of the kernel that the template
            does not take become macros of the same name.
        cluster: blocks of a cluster, one to three extents. Needs sm_90 or later.
        cooperative: whether all blocks must run at the same time.
    """

    @property
    def backend(self) -> str:
        """The backend that compiles it, also if it is in a header."""
        return "nvcc" if self.path.endswith(HEADERS) else super().backend

    grid: Sequence[ExprLike] | ExprLike = 1
    block: Sequence[ExprLike] | ExprLike = 1
    shared: ExprLike | Code = 0
    cluster: Sequence[ExprLike] | ExprLike = ()
    cooperative: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backend != "nvcc" and not self.path.endswith(HEADERS):
            raise SpecError(
                f"{self.function!r}: a __global__ function cannot be in a file of plain C++",
                why="the suffix decides which compiler sees it",
                fix="name it .cu or .cuh, or declare a function of the host by Launcher",
            )
        for what in ("grid", "block"):
            if not 1 <= len(self.extents(what)) <= 3:
                raise SpecError(
                    f"{self.function!r}: its {what} does not have one to three extents", fix=f"{what}=(x, y)"
                )
        self.extents("cluster")
        if not isinstance(self.shared, Code):
            as_expr(self.shared, f"{self.function!r}: shared")

    def given(self) -> list[tuple[str, NativeArgument]]:
        """What is passed or compiled in, each with its place: arguments, template arguments, macros, shared memory."""
        return [*super().given(), *([("shared", self.shared)] if isinstance(self.shared, Code) else [])]

    def extents(self, what: str) -> tuple[Expr, ...]:
        """The extents of the grid, the block or the cluster."""
        given = getattr(self, what)
        several = given if isinstance(given, (tuple, list)) else (given,)
        return tuple(as_expr(e, f"{self.function!r}: {what}") for e in several)

    def expressions(self) -> list[tuple[str, Expr]]:
        """All expressions in it, each with its purpose."""
        launch = [(what, e) for what in ("grid", "block", "cluster") for e in self.extents(what)]
        shared = [] if isinstance(self.shared, Code) else [("shared", as_expr(self.shared))]
        return [*super().expressions(), *launch, *shared]


@dataclass(frozen=True)
class Launcher(NativeFunction):
    """A host function that computes, or launches what computes.

    Args:
        function: `folder/file.cu:name`, or a function of a C++ file for a kernel on CPUs. If a library of
            `CompileOptions(libraries=...)` has the function, name a header that declares it.
        arguments: as for `CudaFunction`, and `Stream()`. A parameter named `stream` gets the stream by itself.
        template, macros: as for `CudaFunction`.

    Its result counts: a cudaError_t or another integer other than 0 means failure. It must not wait for the device. It
    must not allocate if calls are to be captured in graphs: use a `Buffer` for memory of its own.
    """


def backend_of_suffix(path: str) -> str:
    """The backend that compiles a file, by its suffix (without `.j2` for a template); empty if unknown."""
    suffix = PurePosixPath(path.removesuffix(".j2")).suffix
    return "nvcc" if suffix in _CUDA else "hipcc" if suffix == ".hip" else "cxx" if suffix in _CXX else ""


def _parts(what: str, given: NativeArgument) -> Iterator[tuple[str, NativeArgument]]:
    """What is given, and what it is made of: fields of a struct, and values in code, which are compiled in."""
    yield what, given
    if isinstance(given, Struct):
        for name, value in given.fields.items():
            yield from _parts(f"{what}: field {name!r}", value)
    elif isinstance(given, Code):
        for name, value in given.values.items():
            yield from _parts(f"macro {name!r} in {what}", value)


def _check(where: str, given: object) -> None:
    if isinstance(given, Buffer):
        dtype(given.dtype_name, where)
    elif isinstance(given, Code):
        for name in given.values:
            if f"{{{name}}}" not in given.text:
                raise SpecError(
                    f"{where}: {given.text[:60]!r} has no placeholder for {name!r}", fix=f"write {{{name}}} in it"
                )
    elif given is not None and not isinstance(given, (str, int, float, Expr, Ratio, Root, DTypeOf, Stream, Struct)):
        raise SpecError(
            f"{where} is {str(given)[:60]!r}, a {type(given).__name__}",
            why="arguments are names, expressions, numbers, booleans, None, Buffer, DTypeOf, Code, Stream and Struct",
            fix="convert it: int(...) of a number of another package, Code(...) for an expression of C++",
        )
