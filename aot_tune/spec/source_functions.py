"""Functions that a C++ or CUDA source declares: their names, their parameters, and those of their templates.

A source is read as tokens, before any compiler sees it. Functions that macros make are not found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["SourceFunction", "included_names", "source_functions", "template_names", "words"]

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
    found = [*_INCLUDE.findall(text), *(_IN_ANGLES.findall(text) if in_angles else ())]
    return tuple(dict.fromkeys(found))


def template_names(text: str) -> frozenset[str]:
    """Names of the parameters of all templates of a source, also of classes and inside of classes."""
    texts = [t.text for t in _tokens(text)]
    heads = (texts[i : i + _LONGEST_HEAD] for i, t in enumerate(texts) if t == "template")
    return frozenset(name for head in heads for name in _template(head)[0] if name)


def source_functions(text: str) -> list[SourceFunction]:
    """The functions that a source declares or defines outside of classes, in order.

    A definition after a declaration of the same name and parameters counts once."""
    found: list[SourceFunction] = []
    for one in _functions(_tokens(text)):
        same = [f for f in found if f.name == one.name and len(f.parameters) == len(one.parameters)]
        if not same:
            found.append(one)
        elif not any(same[0].parameters) and any(one.parameters):
            found[found.index(same[0])] = one
    return found


def _tokens(text: str) -> list[_Token]:
    def blank(match: re.Match[str]) -> str:
        lines = "\n" * match[0].count("\n")
        return lines if match["comment"] or match["directive"] is not None else f'""{lines}'

    found, line = [], 1
    for row in _SKIPPED.sub(blank, text).split("\n"):
        found += [_Token(t, line) for t in _TOKEN.findall(row)]
        line += 1
    return found


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
    place = [s for s in spaces if s]
    while len(rest) > 1 and rest[-1] == "::":  # a definition outside of its namespace
        place.append(rest[-2])
        rest = rest[:-2]
    parameters = _split(tokens[at + 1 : end])
    return SourceFunction(
        name="::".join([*place, name]),
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
    for one in _split([_Token(t, 0) for t in texts[2:end]]):
        name = _parameter(one)
        names.append(name)
        if any(t.text == "=" for t in one):
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
    found = ""
    for text in texts[texts.index("=") + 1 :]:
        found += f" {text}" if found[-1:].isidentifier() and text[0].isidentifier() else text
    return found


def _matching(tokens: Sequence[_Token], at: int) -> int:
    """The position of the bracket that closes the one at `at`; the last token if there is none."""
    depth = 0
    for i in range(at, len(tokens)):
        depth += (tokens[i].text in _OPEN) - (tokens[i].text in _CLOSE)
        if depth == 0:
            return i
    return len(tokens) - 1
