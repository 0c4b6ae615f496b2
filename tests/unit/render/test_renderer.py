"""Rendering: hooks, specialisation, line maps, errors of templates, and tokens by which a source is recognised."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_operators import make_operator

from aot_tune.render import Rendered, Renderer, candidate_for
from aot_tune.render.renderer import token_text
from aot_tune.spec import Activate, Attribute, Epilogue, Kernel, Operator, Parameter, Target, Tensor, dims
from aot_tune.support.errors import RenderError, SpecError

M, N = dims("M N")
TARGET = Target(name="cpu-x86-64", family="cpu", level=1, facts={"vector_bytes": 16, "registers": 16})
GPU = Target(name="cuda-sm_90a", family="cuda", level=90)
BODY = "{{ prelude() }}{{ kernel_signature('launch') }} {\n  return 0;\n}\n{{ no_workspace() }}"


def operator_of(*kernels: Kernel, epilogue: Epilogue | None = None) -> Operator:
    tensors = (Tensor("x", (M, N)), Tensor("bias", (N,), optional=True), Tensor("out", (M, N), output=True))
    attributes = (Attribute("activation", ("none", "relu")),)
    generic = Kernel("generic", "generic.j2", generic=True)
    return make_operator(tensors=tensors, attributes=attributes, epilogue=epilogue, kernels=(generic, *kernels))


def render(root: Path, text: str, *, kernel: Kernel | None = None, epilogue: Epilogue | None = None) -> str:
    (root / "generic.j2").write_text(text)
    (root / "k.j2").write_text(text)
    op = operator_of(*([kernel] if kernel else []), epilogue=epilogue)
    used = kernel or op.generics[0]
    config = next(used.configs(TARGET.facts))
    candidate = candidate_for(op, used, config, TARGET, op.workload[0])
    return Renderer([root]).render(op, candidate, TARGET).source


def test_activation_without_its_functions_names_the_remedy(tmp_path: Path) -> None:
    epilogue = Epilogue("out", (Activate("activation"),))
    stores = BODY + "{{ store_output('out', ['i', 'j'], 'v') }}"
    with pytest.raises(RenderError, match=r"common/math\.h\.j2"):
        render(tmp_path, stores, epilogue=epilogue)
    (tmp_path / "k.cu.j2").write_text(stores)
    op = operator_of(Kernel("gpu", "k.cu.j2", backend="nvcc"), epilogue=epilogue)
    with pytest.raises(RenderError, match=r"common/math\.cuh\.j2"):
        Renderer([tmp_path]).render(op, candidate_for(op, op.kernel("gpu"), {}, GPU), GPU)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("line one\n{{ nothing }}", r"generic\.j2:2: 'nothing' is undefined"),
        ("\n\n{% if %}", r"generic\.j2:3: "),
        ("{{ size('y', 0) }}", r"generic\.j2:1: operator 'scale' has no tensor 'y'"),
        ("{{ size('x', 2) }}", r"generic\.j2:1: 'x' has no axis 2"),
        ("{{ attr_value('activation', 'rela') }}", r"did you mean 'relu'"),
        ("{{ unroll(0) }}", r"generic\.j2:1: unroll\(0\)"),
        ("{{ ''.__class__.__mro__ }}", r"generic\.j2:1: .*unsafe"),
        ("{% include 'missing.j2' %}", r"'missing\.j2' is not below a template root"),
        ("{% include 'common/simd.h.j2' %}", r"fix: add the bundled templates, .*TEMPLATES templates bundled"),
        ("{{ load('x', ['i', 'j'], 8) }}" + BODY, r"generic\.j2:1: lanes > 1 on 'x'"),  # whose stride is unknown
        ("{{ load('x', ['i']) }}", r"'x' has 2 axes, 1 index was given.*\n  fix: give one for each axis"),
        (
            "{{ address('x', ['i', 'j', 'k']) }}",
            r"'x' has 2 axes, 3 indices were given.*\n  fix: give that many or fewer",
        ),
        ("{{ store('x', ['i', 'j'], '0') }}", r"store\('x'\): it is an input.*\n  fix: store to an output: out"),
        ("{% include '../generic.j2' %}", r"not allowed"),
        ("{{ prelude() }}" + BODY, r"generic\.j2:1: prelude\(\) is used twice"),
        (
            "{% set text = prelude() %}{{ text }}{{ text }}",
            r"the result of prelude\(\) stands twice .*\n.*\n  fix: write",
        ),
        ("{% set dropped = prelude() %}", r"prelude were never written"),
        (
            "{{ no_workspace() }}",
            r"generic\.j2: it has no prelude\(\).*\n  why: .*\n  fix: write \{\{ prelude\(\) \}\} at the top",
        ),
        ("{{ prelude() }}", r"generic\.j2: it has no kernel_signature\('workspace'\)"),
    ],
)
def test_template_errors_say_where(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises((RenderError, SpecError), match=message):
        render(tmp_path, text)


def test_template_error_inside_an_include_points_into_it(tmp_path: Path) -> None:
    (tmp_path / "inner.j2").write_text("fine\n{{ nothing }}\n")
    with pytest.raises(RenderError, match=r"inner\.j2:2: 'nothing' is undefined"):
        render(tmp_path, BODY + "{% include 'inner.j2' %}")


def test_templates_that_never_end_are_errors_with_a_place(tmp_path: Path) -> None:
    (tmp_path / "one.j2").write_text("{% include 'two.j2' %}")
    (tmp_path / "two.j2").write_text("\n{% include 'one.j2' %}")
    with pytest.raises(RenderError, match=r"(one\.j2:1|two\.j2:2): includes or macros that never end"):
        render(tmp_path, BODY + "{% include 'one.j2' %}")
    with pytest.raises(RenderError, match=r"\.j2:\d: includes or macros that never end"):
        render(tmp_path, "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(1) }}" + BODY)


def test_a_byte_order_mark_gets_into_no_source(tmp_path: Path) -> None:
    (tmp_path / "inner.j2").write_bytes(b"\xef\xbb\xbfint x;\r\n")
    assert "\nint x;\n" in render(tmp_path, BODY + "\n{% include 'inner.j2' %}\n")


def test_link_out_of_the_root_is_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside.j2"
    outside.write_text("secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link.j2").symlink_to(outside)
    with pytest.raises(RenderError, match="leads outside its root"):
        render(root, "{% include 'link.j2' %}" + BODY)


def test_each_rendered_line_knows_its_template_line(tmp_path: Path) -> None:
    (tmp_path / "inner.j2").write_text("// inner one\n// inner two\n")
    text = (
        "// first\n{% include 'inner.j2' %}\n// after\n{% for i in range(2) %}\n// loop {{ i }}\n{% endfor %}\n" + BODY
    )
    (tmp_path / "generic.j2").write_text(text)
    op = operator_of()
    rendered = Renderer([tmp_path]).render(op, candidate_for(op, op.generics[0], {}, TARGET), TARGET)
    where = dict(zip(rendered.source.split("\n"), rendered.lines, strict=True))
    assert where["// inner two"] == ("inner.j2", 2)
    assert where["// after"] == ("generic.j2", 3)
    assert where["// loop 0"] == where["// loop 1"] == ("generic.j2", 5)
    assert where["  return 0;"][0] == "generic.j2"


def test_a_source_is_recognised_by_its_tokens_and_a_symbol_by_its_candidate(tmp_path: Path) -> None:
    def rendered(text: str, template: str = "k.j2", **config: int) -> Rendered:
        (tmp_path / template).parent.mkdir(exist_ok=True)
        (tmp_path / template).write_text(text)
        op = operator_of(Kernel("k", template, parameters=(Parameter("WIDTH", (1, 2)),)))
        candidate = candidate_for(op, op.kernel("k"), {"WIDTH": 1, **config}, TARGET)
        return Renderer([tmp_path]).render(op, candidate, TARGET)

    text = BODY + "\nint width() { return {{ WIDTH }}; } // why\n"
    first = rendered(text)
    for same in (text.replace("why", "another reason"), text.replace("; }", ";\n  }"), f"/* a licence */\n{text}"):
        again = rendered(same)
        assert again.source != first.source
        assert (again.digest, again.symbol) == (first.digest, first.symbol)
    moved = rendered(text, "folder/other.j2")
    assert (moved.digest, moved.symbol) == (first.digest, first.symbol)
    changed = rendered(text.replace("return {{", "return -{{"))
    assert (changed.digest != first.digest, changed.symbol) == (True, first.symbol)
    wider = rendered(text, WIDTH=2)
    assert wider.digest != first.digest
    assert wider.symbol == f"aot_tune_scale_{wider.candidate.id}" != first.symbol


def test_a_changed_guard_is_another_source(tmp_path: Path) -> None:
    """What was verified under a guard says nothing of calls that the guard kept away."""
    (tmp_path / "generic.j2").write_text(BODY)
    (tmp_path / "k.j2").write_text(BODY)
    digests = set()
    for requires in ((), (N % 8 == 0,), (N % 16 == 0,)):
        kernel = Kernel("k", "k.j2", requires=requires)
        op = operator_of(kernel)
        rendered = Renderer([tmp_path]).render(op, candidate_for(op, kernel, {}, TARGET), TARGET)
        digests.add(rendered.digest)
    assert len(digests) == 3


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
