"""From a candidate to its source text, and to the digest of what that text says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import msgspec

from aot_tune.render.candidate import Candidate, requirements
from aot_tune.render.environment import Environment, Hooks, SourceLine, map_lines
from aot_tune.render.native_source import native_source
from aot_tune.render.template_functions import SYMBOL, CudaFunctions, CxxFunctions
from aot_tune.render.triton.kernel_source import render_triton
from aot_tune.render.triton.recipe import identity_of
from aot_tune.spec import CompileOptions, Expr, Operator, Target
from aot_tune.spec.kernel import with_config
from aot_tune.spec.targets import ELSEWHERE, WHY
from aot_tune.support.digests import canonical_digest
from aot_tune.support.errors import RenderError

__all__ = ["Rendered", "Renderer", "token_text"]

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
    with beside what every candidate is.
    """

    candidate: Candidate
    source: str
    digest: str
    symbol: str
    lines: Sequence[SourceLine]
    requires: tuple[Expr, ...] = ()
    compile: CompileOptions = CompileOptions()


class Renderer:
    """Renders candidates from template roots; one instance may serve a whole build.

    `compile` is what the library's sources are compiled with, by backend, beside a kernel's own options.
    """

    def __init__(self, roots: Sequence[Path], compile: Mapping[str, CompileOptions] | None = None) -> None:  # noqa: A002
        self.roots = tuple(roots)
        self._compile = dict(compile or {})
        self._environment = Environment(roots)

    def render(self, operator: Operator, candidate: Candidate, target: Target) -> Rendered:
        """Render one candidate.

        Raises:
            RenderError: for any fault in the template, with its file and line.
        """
        kernel = operator.kernel(candidate.kernel)
        requires = requirements(operator, candidate)
        constants = {fact: value for e in (*operator.legal, *requires) for fact, value in e.pinned()}
        if kernel.triton is not None:
            concrete = operator.concrete(candidate.dtypes)
            recipe, text = render_triton(concrete, candidate, target, constants)
            return _rendered(operator, candidate, target, requires, text, recipe=identity_of(recipe))
        options = kernel.options(self._compile.get(kernel.backend, CompileOptions()))
        if kernel.functions:
            text = native_source(operator.concrete(candidate.dtypes), kernel, candidate, target, constants)
            return _rendered(operator, candidate, target, requires, text, options=options)
        hooks = Hooks()
        language = CudaFunctions if kernel.template.endswith(".cu.j2") else CxxFunctions
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


def _rendered(
    operator: Operator,
    candidate: Candidate,
    target: Target,
    requires: tuple[Expr, ...],
    text: str,
    *,
    recipe: dict[str, object] | None = None,
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
    )


def token_text(source: str) -> str:
    """A text that is equal for two sources of C++ exactly when their tokens are.

    A line of the preprocessor counts as a whole, with each run of spaces as one: `#define F (x)` is not `#define F(x)`.
    """
    found: list[str] = []
    pending = ""
    for line in source.split("\n"):
        text = pending + line
        tokens = _tokens(text)
        if tokens is None:
            pending = f"{text}\n"
            continue
        pending = ""
        if tokens:
            found.append(tokens)
    if pending:  # what never ends cannot be compiled: any text that is its own will do
        found.append(pending)
    return "\n".join(found)


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
    found = []
    for match in _TOKEN.finditer(text):
        token, comment = match.group("token", "comment")
        if comment == "/*" or (match["end"] is not None and match["raw"] is None):
            return None
        if token is not None:
            found.append(token)
    return "\n".join(found)
