"""The template engine: sandboxed, strict about names, confined to its roots, able to say where each line came from.

Hooks are places in a rendered text that are filled in after the template has run, each exactly once.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, overload

import jinja2
from jinja2 import BaseLoader, StrictUndefined, TemplateError, TemplateNotFound, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream
from jinja2.sandbox import ImmutableSandboxedEnvironment

from aot_tune.spec.names import check_template_path
from aot_tune.support import limited_code
from aot_tune.support.errors import RenderError, SpecError, did_you_mean

SourceLine = tuple[str, int]
"""A template's path below its root, and a line counted from 1."""
_BEGIN, _END = "\x02", "\x03"
"""Around a mark `template:line`."""
_MARK = re.compile(f"{_BEGIN}[^{_END}]*{_END}")
_HOOK = re.compile("\x04([a-z_]+)#([0-9]+)\x05")


def text_templates(folder: Path) -> jinja2.Environment:
    """The templates of a folder of this package, which are trusted."""
    return jinja2.Environment(  # noqa: S701 - they are C++
        loader=jinja2.FileSystemLoader(folder),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


class _LineMarks(Extension):
    """Puts an invisible mark before every line of template text, so that rendered lines can be traced back."""

    def filter_stream(self, stream: TokenStream) -> Iterable[Token]:
        name = stream.name or ""
        for token in stream:
            if token.type != "data":
                yield token
                continue
            pieces = token.value.split("\n")
            marked = [f"{_BEGIN}{name}:{token.lineno + i}{_END}{piece}" for i, piece in enumerate(pieces)]
            yield Token(token.lineno, token.type, "\n".join(marked))


class _Loader(BaseLoader):
    """Reads templates below the given roots, first match wins; a link that leads outside its root is refused."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = [Path(r) for r in roots]

    def get_source(self, environment: Any, template: str) -> tuple[str, str, Callable[[], bool]]:
        del environment
        check_template_path(template, "template")
        for root in self.roots:
            path = root / template
            if not path.is_file():
                continue
            if not path.resolve().is_relative_to(root.resolve()):
                raise RenderError(
                    f"template {template!r} leads outside its root {root}",
                    why=f"it resolves to {path.resolve()}",
                    fix="put the file itself below the template root",
                )
            return path.read_text(encoding="utf-8-sig"), template, lambda: True
        raise TemplateNotFound(template)

    def list_templates(self) -> list[str]:
        return sorted({str(p.relative_to(r)) for r in self.roots for p in r.rglob("*.j2")})


class Environment:
    """A template engine over template roots."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._loader = _Loader(roots)
        self._jinja = ImmutableSandboxedEnvironment(
            loader=self._loader,
            undefined=StrictUndefined,
            extensions=[_LineMarks],
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,
        )

    def render(self, template: str, names: dict[str, Any]) -> str:
        """Render a template, with line marks for `map_lines`. Raises RenderError with file and line."""
        try:
            with limited_code.limited():
                return self._jinja.get_template(template).render(names)
        except limited_code.TooLongError as error:
            raise RenderError(
                _placed(error, template, f"it is not rendered within {limited_code.SECONDS:g} s"),
                fix="end its loops, or let the compiler do what they unroll",
            ) from None
        except MemoryError as error:
            raise RenderError(
                _placed(error, template, f"its text takes more than {limited_code.MEMORY >> 30} GiB"),
                fix="end its loops, or repeat less",
            ) from None
        except TemplateNotFound as error:
            missing = str(error.name)
            raise RenderError(
                f"template {missing!r} is not below a template root",
                why=f"looked in {', '.join(map(str, self._loader.roots))}",
                fix=_elsewhere(missing, self._loader.list_templates()),
            ) from error
        except TemplateSyntaxError as error:
            raise RenderError(f"{error.name or template}:{error.lineno}: {error.message}") from error
        except (RenderError, SpecError) as error:
            raise RenderError(_placed(error, template, error.what), why=error.why, fix=error.fix) from error
        except RecursionError as error:
            raise RenderError(
                _placed(error, template, "includes or macros that never end"),
                why="a template includes or calls itself, perhaps by way of others",
                fix="put an end to it with a condition, or include less",
            ) from None
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            public = [n for n in names if not n.startswith("_")]
            match = re.match(r"'(\w+)' is undefined", str(error))
            fix = did_you_mean(match.group(1), public) if match else ""
            raise RenderError(_placed(error, template, str(error)), fix=fix) from error


def _elsewhere(missing: str, there: Sequence[str]) -> str:
    """The remedy for a template that no root has."""
    if missing.startswith("common/") and not any(t.startswith("common/") for t in there):
        return "add the bundled templates, which have it: TEMPLATES templates bundled OPERATORS <yours>"
    same = [t for t in there if PurePosixPath(t).name == PurePosixPath(missing).name]
    return did_you_mean(missing, same or there)


def _placed(error: BaseException, template: str, message: str) -> str:
    """`message` behind the innermost template line that the error passed through."""
    places = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith((".j2", template))]
    if not places:
        return f"{template}: {message}"
    return f"{places[-1].filename}:{places[-1].lineno}: {message}"


def mark_lines(text: str, name: str) -> str:
    """A text that is no template with marks as a rendered one has them: each line is its own."""
    rows = text.removesuffix("\n").replace("\r\n", "\n").split("\n")
    return "\n".join(f"{_BEGIN}{name}:{number}{_END}{row}" for number, row in enumerate(rows, 1))


def map_lines(marked: str) -> tuple[str, Sequence[SourceLine]]:
    """Split a rendered text from its line marks: the text, and for each of its lines the template line it came from."""
    text = "\n".join(line.rstrip() for line in _MARK.sub("", marked).split("\n"))
    return text, _Origins(marked)


class _Origins(Sequence[SourceLine]):
    """The template lines of a marked text's lines, found when the first is asked for: few texts have errors."""

    def __init__(self, marked: str) -> None:
        self._marked = marked

    @overload
    def __getitem__(self, at: int) -> SourceLine: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[SourceLine]: ...
    def __getitem__(self, at: int | slice) -> SourceLine | Sequence[SourceLine]:
        return self._found[at]

    def __len__(self) -> int:
        return self._marked.count("\n") + 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Origins) and other._marked == self._marked

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def _found(self) -> list[SourceLine]:
        origin: SourceLine = ("", 0)
        origins: list[SourceLine] = []
        places: dict[str, SourceLine] = {}
        for line in self._marked.split("\n"):
            before, *pieces = line.split(_BEGIN)
            origins.append(origin)
            leading = not before  # of several marks in a row, the last one stands before the text
            for piece in pieces:
                mark, _, rest = piece.partition(_END)
                origin = places.get(mark) or places.setdefault(mark, _place(mark))
                if leading:
                    origins[-1], leading = origin, not rest
        return origins


def _place(mark: str) -> SourceLine:
    name, _, line = mark.rpartition(":")
    return name, int(line)


class Hooks:
    """Named places of one rendering and what will fill them.

    A place is opened by `open` while the template runs and filled by `finalize` when all of it is known, so that what
    comes late (an epilogue, a helper function for it) can change text that was rendered early.
    """

    def __init__(self) -> None:
        self._fill: dict[str, Callable[[], str]] = {}
        self._names: list[str] = []

    def open(self, name: str, fill: Callable[[], str]) -> str:
        """Return a place for the text of `fill`, which is called by `finalize`."""
        key = f"{name}#{len(self._names)}"
        self._names.append(name)
        self._fill[key] = fill
        return f"\x04{key}\x05"

    def opened(self, name: str) -> bool:
        """Whether a place of that name exists."""
        return name in self._names

    def open_once(self, name: str, fill: Callable[[], str]) -> str:
        """As `open`, for a place that a template has only once. Raises RenderError when it is there already."""
        if self.opened(name):
            raise RenderError(f"{name}() is used twice", why="its text may stand only once", fix="remove one")
        return self.open(name, fill)

    def finalize(self, text: str) -> str:
        """Fill every place. Raises RenderError when a place was dropped from the text, or stands in it twice."""
        used: set[str] = set()

        def fill(match: re.Match[str]) -> str:
            key = f"{match.group(1)}#{match.group(2)}"
            if key in used:
                raise RenderError(
                    f"the result of {match.group(1)}() stands twice in the rendered text",
                    why="the template kept it in a variable, or repeats a block that has it",
                    fix="write the call itself wherever its result is wanted",
                )
            used.add(key)
            return self._fill[key]()

        filled = _HOOK.sub(fill, text)
        left = sorted({k.split("#")[0] for k in set(self._fill) - used})
        if left:
            raise RenderError(
                f"the results of {', '.join(left)} were never written",
                why="a hook was called and its text dropped",
                fix="write {{ ... }} around the call, or do not call it",
            )
        return filled
