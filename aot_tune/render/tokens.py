"""Sources of C++ as their tokens: what stays the same when only comments, spaces and line breaks change."""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["token_text"]

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
