"""A source is recognised by its tokens: comments, spaces and line breaks do not count, all else does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot_tune.render.renderer import token_text

TOKENS = (
    "a", "_b1", "R", "u8", "0x1p-3f", "1'000", "1e+5", ".5", "'x'", "L'\\''", '"a  b"', '"// no comment"', 'u8"/*"',
    'R"(raw // "  text)"', 'R"x(a)" b)x"', "+", "++", "-", "->", "->*", "<<=", ">", ">>", "<=>", "::", ":", "...",
    "(", ")", "{", "}", "[", "]", ";", ",", "=", "==", "!", "&", "&&", "\\u00e9",
)  # fmt: skip
GAPS = (" ", "\t", "\n", "\n\n  ", " /* a */ ", "/* a\n // b */", " // a\n", " // a \\\nb\n", " \\\n ")


@given(st.lists(st.sampled_from(TOKENS), max_size=20), st.data())
def test_gaps_do_not_count(tokens: list[str], data: st.DataObject) -> None:
    gaps = st.sampled_from(GAPS)
    one, two = ("".join(data.draw(gaps) + t for t in tokens) + data.draw(gaps) for _ in range(2))
    assert token_text(one) == token_text(two)


@given(st.lists(st.sampled_from(TOKENS), max_size=8), st.lists(st.sampled_from(TOKENS), max_size=8))
def test_tokens_count(one: list[str], two: list[str]) -> None:
    assert (token_text(" ".join(one)) == token_text(" ".join(two))) == (one == two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("a + +b", "a ++b"),
        ("a b", "ab"),
        ("1. f", "1.f"),
        ('"a b"', '"a  b"'),
        ("' '", "'  '"),
        ('R"(a b)"', 'R"(a  b)"'),
        ('R"(a\nb)"', 'R"(a b)"'),
        ("#define F(x) 1\nF", "#define F (x) 1\nF"),
        ("#define A 1\nb", "#define A 1 b"),
        ("#if A\nb\n#endif", "b"),
        ("a = b / * c", "a = b /* c */"),
    ],
)
def test_what_means_another_thing_is_another_text(one: str, two: str) -> None:
    assert token_text(one) != token_text(two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("#include <a>\nb", "  #include   <a>  // why\n\nb"),
        ("#define A(x) \\\n  (x + 1)\nb", "#define A(x) (x + 1)\nb"),
        ("#define A /* a\n   b */ 1\nc", "#define A 1\nc"),
        ('#define A "/* no comment"\nb', '#define  A  "/* no comment" // a comment\nb'),
        ("a // b \\\n still a comment\nc", "a c"),
        ("f( (a) )", "f((a))"),
        ("x=-b", "x = -b"),
    ],
)
def test_what_means_the_same_is_the_same_text(one: str, two: str) -> None:
    assert token_text(one) == token_text(two)


def test_what_never_ends_is_itself() -> None:
    """It does not compile; it is no other text either."""
    assert token_text("a /* b") != token_text("a /* c")
    assert token_text('a R"(b') != token_text("a")
