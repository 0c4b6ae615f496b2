"""Specs: expressions, problems, and the errors that name the value, the place and the remedy."""

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from bundled import OPERATORS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_operators import make_operator

from aot_tune.spec import (
    AddTensor,
    Attribute,
    Epilogue,
    Expr,
    Kernel,
    Parameter,
    Scalar,
    Tensor,
    ceildiv,
    dim,
    dims,
    maximum,
    minimum,
    off_by,
    parameter,
    problem,
    stride,
    uniform,
)
from aot_tune.spec.load_operators import load_operator, load_operators
from aot_tune.support.errors import SpecError

M, N = dims("M N")
P12 = Parameter("P", (1, 2))
GENERIC = Kernel("generic", "scale/generic.j2", generic=True)


X = Tensor("x", (M, N))
OUT = Tensor("out", (M, N), output=True)


BAD: list[tuple[str, Callable[[], object], str]] = [
    ("dtype", lambda: Tensor("x", (M,), "f23"), r"tensor 'x': unknown dtype 'f23'\n  fix: did you mean 'f32'"),
    ("tensor name", lambda: Tensor("x y", (M,)), "'x y' is not a valid name"),
    ("keyword", lambda: Tensor("while", (M,)), "reserved"),
    ("scalar of a float of 8 bits", lambda: Scalar("a", "f8e4m3"), "(?s)f8e4m3 cannot be passed by value.*use f32"),
    ("boolean scalar", lambda: Scalar("a", "bool", 2), r"scalar 'a': default 2 is not a boolean\n  fix: write True"),
    ("least", lambda: Scalar("a", default=-1, least=0), "0 is the least, and its default or `other` is below"),
    ("range of a scalar", lambda: Scalar("a", "u8", 300), "(?s)300 does not fit u8.*from 0 to 255"),
    ("argument", lambda: Tensor("workspace", (M,)), "reserved"),
    ("no axes", lambda: Tensor("x", ()), "has no axes"),
    ("generator", lambda: uniform(1, 1), r"uniform\(1, 1\) is empty"),
    ("attribute", lambda: Attribute("a", ()), "no choices"),
    ("choice twice", lambda: Attribute("a", ("x", "x")), "twice"),
    ("template absolute", lambda: Kernel("k", "/etc/passwd"), "'/etc/passwd' is not allowed"),
    ("template parent", lambda: Kernel("k", "a/../../b"), r"\.\./b' is not allowed"),
    ("template NUL", lambda: Kernel("k", "a\0b"), "not allowed"),
    ("template newline", lambda: Kernel("k", "a\nb"), "not allowed"),
    ("parameter value", lambda: Parameter("P", ('1);system("x")',)), r"value '1\);system"),
    ("parameter long", lambda: Parameter("P", ("x" * 10_000,)), "not a finite number, a boolean or an identifier"),
    ("parameter nan", lambda: Parameter("P", (float("nan"),)), "value nan"),
    ("constraint of fractions",
     lambda: Kernel("k", "k.j2", parameters=(Parameter("P", (0.5,)),), constraints=(parameter("P") == 1,)),
     "uses 'parameter.P'"),
    ("parameter twice", lambda: Parameter("P", (1, 1)), "lists a value twice"),
    ("parameter empty", lambda: Parameter("P", ()), "has no values"),
    ("order", lambda: Kernel("k", "k.j2", parameters=(Parameter("P", (1,)),), order=({"P": 2},)), "P=2"),
    ("constraint fact", lambda: Kernel("k", "k.j2", constraints=(M == 1,)), "constraint .* uses 'M'"),
    ("generic parameters", lambda: Kernel("g", "g.j2", generic=True, parameters=(Parameter("P", (1,)),)), "generic"),
    ("unbound dim", lambda: make_operator(flops=dim("Q")), "flops uses 'Q', which is not bound"),
    ("dim of no tensor", lambda: make_operator(dims=("M", "N", "K")), "dim 'K' is bound by no tensor"),
    ("dim of a quotient",
     lambda: make_operator(dims=("M", "N", "K"), tensors=(Tensor("x", (M, N, dim("K") // 2)), OUT)),
     r"dim 'K' is bound by no tensor and no scalar\n  why: .*but not from K // 2\n  fix: .*binds=.K"),
    ("dim of two unknown ones",
     lambda: make_operator(dims=("M", "N", "K", "L"), tensors=(X, Tensor("y", (dim("K") * dim("L"),)), OUT)),
     "dim 'K' is bound by no tensor"),
    ("dim of an optional tensor",
     lambda: make_operator(dims=("M", "N", "K"), tensors=(X, Tensor("y", (dim("K"),), optional=True), OUT)),
     "dim 'K' is bound by no tensor"),
    ("scalar binds a float", lambda: Scalar("s", "f32", binds="M"), r"binds the dim 'M', and is f32\n  why: extents"),
    ("scalar binds and has other", lambda: Scalar("s", "i64", other=3, binds="M"),
     "binds the dim 'M', and has `other`"),
    ("scalar binds nothing", lambda: make_operator(scalars=(Scalar("s", "i64", binds="MM"),)),
     r"scalar 's' binds the unknown dim 'MM'\n  fix: did you mean 'M'"),
    ("two scalars of a dim",
     lambda: make_operator(scalars=(Scalar("s", "i64", binds="M"), Scalar("t", "i32", binds="M"))),
     "scalars 's' and 't' bind the dim 'M'"),
    ("a negative extent", lambda: make_operator(tensors=(X, Tensor("y", (M - 4,)), OUT)),
     r"a shape: \(\(M - 4\) >= 0\) does not hold on problem 'M=3 N=5'"),
    ("dim of shape", lambda: make_operator(tensors=(Tensor("x", (M, N)), Tensor("out", (M, dim("Nn")), output=True))),
     "shape of tensor 'out' uses 'Nn', which is not bound\n  fix: did you mean 'N'"),
    ("no output", lambda: make_operator(tensors=(Tensor("x", (M, N)),)), "no output"),
    ("same names",
     lambda: make_operator(attributes=(Attribute("x", ("a",)),)), "attribute 'x' has the name of a tensor"),
    ("endless space",
     lambda: Kernel("k", "a/k.cpp.j2", parameters=tuple(Parameter(n, tuple(range(100))) for n in "ABCDE")),
     "its parameters have 10000000000 combinations"),
    ("duplicate kernel", lambda: make_operator(kernels=(GENERIC, GENERIC)), "declares kernel 'generic' twice"),
    ("no generic", lambda: make_operator(kernels=(Kernel("k", "k.j2"),)), "0 generic kernels"),
    ("empty workload", lambda: make_operator(workload=()), "workload is empty"),
    ("nothing to do", lambda: make_operator(workload=(problem(M=0, N=8),)),
     "'M=0 N=8', on which there is nothing to compute"),
    ("missing dim", lambda: make_operator(workload=(problem(M=1),)), "dim 'N' is not bound"),
    ("unknown dim", lambda: make_operator(workload=(problem(M=1, N=2, K=3),)), "unknown dim 'K'"),
    ("negative dim", lambda: problem(M=-1), "dim M=-1 is not"),
    ("boolean dim", lambda: problem(M=True), "dim M=True is not"),
    ("order of axes", lambda: make_operator(workload=(problem(M=1, N=2, order={"x": (0, 0)}),)), "not a permutation"),
    ("strides", lambda: make_operator(workload=(problem(M=1, N=2, strides={"x": (1,)}),)), "2 axes, 1 strides"),
    ("alignment", lambda: make_operator(workload=(problem(M=1, N=2, alignment={"x": 3}),)), "alignment 3"),
    ("presence", lambda: make_operator(workload=(problem(M=1, N=2, present=["x"]),)), "'x' is always present"),
    ("requires", lambda: make_operator(kernels=(GENERIC, Kernel("k", "k.j2", requires=(dim("Q") == 1,)))), "uses 'Q'"),
    ("pins", lambda: make_operator(kernels=(GENERIC, pinning("Q"))), "pins the unknown dim 'Q'"),
    ("epilogue", lambda: make_operator(epilogue=Epilogue("out", (AddTensor("bias", (1,)),))), "adds 'bias'"),
    ("generic that fills in", lambda: Kernel("k", "k.j2", generic=True, fills_in=True),
     "'k' fills in, but it is generic"),
    ("one stage", lambda: Kernel("k", "k.j2", stages=("cublaslt",)), "kernel 'k' has one stage, 'cublaslt'"),
    ("stage name", lambda: Kernel("k", "k.j2", stages=("a b", "c")), "'a b' is not a valid name"),
    ("scratch alone", lambda: Kernel("k", "k.j2", scratch=4 * M), "scratch memory but no stages"),
    ("scratch text", lambda: Kernel("k", "k.j2", stages=("a", "b"), scratch="4 * M"),
     "scratch '4 \\* M' is not an expression"),
    ("scratch of a stride",
     lambda: make_operator(kernels=(GENERIC, Kernel("k", "k.j2", stages=("a", "b"), scratch=M * stride("x", 0)))),
     "kernel 'k': scratch uses 'stride.x.0'"),
    ("stage without an epilogue",
     lambda: make_operator(kernels=(GENERIC, Kernel("k", "k.j2", stages=("a", "epilogue")))),
     "has no epilogue for a stage of kernel 'k'"),
    ("flops text",
     lambda: make_operator(flops="M"), r"operator 'scale': flops cannot be the text 'M'\n  fix: write dims"),
    ("flops None",
     lambda: make_operator(flops=None), r"operator 'scale': flops cannot be None\n  fix: give an integer"),
    ("flops by zero", lambda: make_operator(flops=M // (N - 5)), r"flops: division by zero in .* on problem 'M=3 N=5'"),
    ("axis text", lambda: Tensor("x", ("N",)),
     r"tensor 'x': an axis cannot be the text 'N'\n  fix: write dims\(\"N\"\)"),
    ("shape text", lambda: Tensor("x", "M N"),
     r"tensor 'x': its shape is the text 'M N'\n  fix: write dims\(\"M N\"\)"),
    ("axis float", lambda: Tensor("x", (1.5,)), r"tensor 'x': an axis cannot be 1\.5"),
    ("no problem", lambda: make_operator(workload=({"M": 1},)),
     r"'scale': its workload holds .*'M': 1.*not a problem\n  fix"),
    ("no reference",
     lambda: make_operator(reference={"out": 1}), r"'scale': reference .*out.* is not a function\n  fix"),
    ("NaN tolerance",
     lambda: make_operator(tolerance=float("nan")), r"'scale': tolerance nan is not a positive number"),
    ("tolerance of another", lambda: make_operator(tolerance={"outt": 2.0}),
     r"'scale': tolerance names 'outt', which is not an output\n  fix: did you mean 'out'"),
    ("off_by without integers", lambda: make_operator(tolerance=off_by(1)),
     r"'scale': tolerance: off_by has no effect\n  why: .*no output here is of an integer dtype\n  fix: give a"),
    ("tolerance of integers",
     lambda: make_operator(tolerance={"out": 2.0}, tensors=(X, Tensor("out", (M, N), "i8", output=True))),
     r"tolerance of 'out' 2\.0 has no effect\n  why: integers are compared as they are.*\n  fix: .*off_by\(1, share"),
    ("intermediates", lambda: make_operator(intermediates="f23"),
     r"intermediates cannot be 'f23'\n  fix: did you mean 'f32'"),
    ("intermediates as they are", lambda: make_operator(intermediates="f32"),
     r"'scale': intermediates='f32' has no effect\n  why: .*\n  fix: leave it out"),
    ("finite output", lambda: make_operator(tensors=(X, Tensor("out", (M, N), output=True, finite=True))),
     r"finite=True of tensor 'out' has no effect\n  why: .*only into floating-point inputs\n  fix: leave it out"),
    ("off_by 0", lambda: off_by(0), r"off_by\(0\) is not a step of integers\n  fix"),
    ("off_by share", lambda: off_by(1, share=2), r"off_by: share 2 is not a share\n  fix"),
    ("tolerance 0", lambda: make_operator(tolerance=0), r"'scale': tolerance 0 is not a positive number"),
    ("problem twice", lambda: make_operator(workload=(problem(M=1, N=2), problem(N=2, M=1))),
     r"operator 'scale': its workload lists problem '.*' twice\n  fix: remove one"),
    ("requires by zero", lambda: make_operator(kernels=(GENERIC, Kernel("k", "k.j2", requires=(M // (N - 5) == 1,)))),
     r"operator 'scale': kernel 'k': .*division by zero in .*N - 5.* on problem 'M=3 N=5'\n  fix: write maximum"),
    ("worthwhile by zero",
     lambda: make_operator(kernels=(GENERIC, Kernel("k", "k.j2", worthwhile=(M % (N - 5) == 1,)))),
     r"operator 'scale': kernel 'k': .*division by zero"),
    ("requires no expression", lambda: make_operator(kernels=(GENERIC, Kernel("k", "k.j2", requires=(True,)))),
     r"operator 'scale': kernel 'k': 'True' in requires or worthwhile is not an expression\n  fix"),
    ("order value", lambda: Kernel("k", "k.j2", parameters=(P12,), order=({"P": 3},)), r"fix: P is one of \[1, 2\]"),
    ("order name", lambda: Kernel("k", "k.j2", parameters=(P12,), order=({"Q": 3},)), r"Q=3.*\n  fix: use one of: P"),
    ("order, one", lambda: Kernel("k", "k.j2", order={"P": 1}),
     r"kernel 'k': order is not a tuple but \{'P': 1\}\n  fix: write \(one,\)"),
    ("requires, one", lambda: Kernel("k", "k.j2", requires=M == 1),
     r"kernel 'k': requires is not a tuple but \(M == 1\)"),
    ("values, one", lambda: Parameter("P", 8), "parameter 'P': values is not a tuple but 8"),
    ("shape, one", lambda: Tensor("x", M), "tensor 'x': shape is not a tuple but M"),
    ("workload, one",
     lambda: make_operator(workload=problem(M=1, N=2)), "operator 'scale': workload is not a tuple but"),
    ("dims, one", lambda: make_operator(dims="M"),
     r"operator 'scale': dims is not a tuple but 'M'\n  fix: write \('M',\)"),
    ("dims, a text", lambda: make_operator(dims="M, N"), r"dims is not a tuple but 'M, N'\n  fix: write \('M', 'N'\)"),
    ("present, a text", lambda: problem(M=1, present="bias"),
     r"problem: present is not a tuple but 'bias'\n  fix: write \('bias',\)"),
    ("range and values", lambda: make_operator(ranges={"M": (1, 8)}, values={"M": (1, 2)}),
     "(?s)'M' has both a range and values.*leave one out"),
    ("values of no dim", lambda: make_operator(values={"Q": (1,)}), "values name the unknown dim 'Q'"),
    ("no values", lambda: make_operator(values={"M": ()}), r"the values of 'M' are \(\)"),
    ("a value twice", lambda: make_operator(values={"M": (2, 2)}), r"the values of 'M' are \(2, 2\)"),
    ("a value, one", lambda: make_operator(values={"M": 2}), "the values of 'M' is not a tuple but 2"),
    ("regime of no conditions", lambda: make_operator(regimes={"few": ()}), "regime 'few' has no conditions"),
    ("regime of a bool", lambda: make_operator(regimes={"few": (True,)}), "or something else among them: .True"),
    ("regime, one", lambda: make_operator(regimes={"few": M < 3}), r"regime 'few' is not a tuple but \(M < 3\)"),
    ("regime of no fact",
     lambda: make_operator(regimes={"few": (dim("Q") < 3,)}), "'few' uses 'Q', which is not bound"),
    ("regime by zero", lambda: make_operator(regimes={"few": (M % (N - 5) == 1,)}),
     r"operator 'scale': regime 'few': .*division by zero in .*N - 5.* on problem 'M=3 N=5'\n  fix: write maximum"),
    ("regimes without end", lambda: make_operator(regimes={str(n): (M == 1,) for n in range(64)}),
     "(?s)'scale' has 64 regimes, at most 63 are possible.*leave out"),
    ("regime of others", lambda: make_operator(regimes={"other": (M < 3,)}), "regime 'other' has no name of its own"),
    ("condition", lambda: bool(M < 3), r"\(M < 3\) was used as a Python condition"),
]  # fmt: skip


def pinning(name: str) -> Kernel:
    return Kernel("k", "k.j2", parameters=(Parameter("FIX", (False, True)),), pins={"FIX": (name,)})


@pytest.mark.parametrize(("make", "message"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_specs_are_refused_with_the_value(make: Callable[[], object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make()


def test_problem_ids_are_equal_exactly_for_equal_problems() -> None:
    one = problem(M=1, N=2, order={"b": (1, 0)}, present=["r", "a"], attributes={"act": "relu"})
    two = problem(M=1, N=2, order={"b": [1, 0]}, present=["a", "r"], attributes={"act": "relu"})
    assert one == two
    assert one.id == two.id == "M=1 N=2 b:10 +a +r act=relu"
    assert one.id != problem(M=1, N=2).id


def test_facts_of_a_call_are_those_of_dispatch() -> None:
    facts = make_operator().facts(problem(M=1, N=5, order={"x": (1, 0)}))
    assert facts["M"] == 1
    assert (facts["stride.x.0"], facts["stride.x.1"]) == (5, 1)  # an axis of extent 1 has no stride of its own
    assert facts["alignment.x"] == 64


OPERATIONS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // (b + 1),
    "%": lambda a, b: a % (b + 1),
    "min": minimum,
    "max": maximum,
    "<": lambda a, b: a < b,
    "==": lambda a, b: a == b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "ceil": lambda a, b: ceildiv(a, b + 1),
}
expressions = st.recursive(
    st.integers(0, 50).map(lambda n: Expr("const", value=n)) | st.sampled_from([M, N]),
    lambda inner: st.tuples(st.sampled_from(sorted(OPERATIONS)), inner, inner).map(
        lambda t: OPERATIONS[t[0]](t[1], t[2])
    ),
    max_leaves=8,
)


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(expressions, min_size=40, max_size=40))
def test_cpp_text_has_the_value_that_python_computes(
    tmp_path_factory: pytest.TempPathFactory, many: list[Expr]
) -> None:
    folder = tmp_path_factory.mktemp("expressions")
    body = "".join(f"  out[{i}] = {e.cpp(lambda f: f)};\n" for i, e in enumerate(many))
    source = folder / "e.cpp"
    source.write_text(f'#include <cstdint>\nextern "C" void f(int64_t M, int64_t N, int64_t* out) {{\n{body}}}\n')
    library = folder / "e.so"
    subprocess.run(["g++", "-w", "-shared", "-fPIC", "-o", library, source], check=True)
    function = ctypes.CDLL(str(library)).f
    for m, n in ((0, 0), (1, 7), (40, 50), (13, 5)):  # 50 to the eighth fits int64
        out = (ctypes.c_int64 * len(many))()
        function(ctypes.c_int64(m), ctypes.c_int64(n), out)
        assert list(out) == [e.evaluate({"M": m, "N": n}) for e in many]


def test_bundled_operators_load_and_state_what_they_cost() -> None:
    operators = dict(OPERATORS)
    assert set(operators) >= {"gemm", "softmax", "rms_norm", "layer_norm", "silu_mul"}
    gemm = operators["gemm"]
    call = problem(M=2, N=3, K=5, present=["bias"])
    assert gemm.flops.evaluate(gemm.facts(call)) == 2 * 2 * 3 * 5 + 2 * 3
    assert gemm.compulsory_bytes(call) == 4 * (2 * 5 + 5 * 3 + 3 + 2 * 3)


def test_what_a_call_need_not_read_costs_no_bytes() -> None:
    attention = OPERATORS["flash_attention"]
    q, k = 2 * 6 * 40, 2 * 3 * 1344  # rows of 64 columns
    for causal, rows in (
        ("none", 2 * q + 2 * k),
        ("upper_left", 2 * q + 2 * 2 * 3 * 40),
        ("lower_right", 2 * q + 2 * k),
    ):
        attributes = {} if causal == "none" else {"causal": causal}
        call = problem(B=2, H=6, HK=3, M=40, N=1344, D=64, attributes=attributes)
        assert attention.compulsory_bytes(call) == 4 * 64 * rows
    more_queries = problem(B=2, H=6, HK=3, M=1344, N=40, D=64, attributes={"causal": "lower_right"})
    assert attention.compulsory_bytes(more_queries) == 4 * 64 * (2 * 6 * (40 + 1344) + 2 * 2 * 3 * 40)


def test_an_operator_folder_must_define_its_operator(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    with pytest.raises(SpecError, match=r"has no operator\.py"):
        load_operator(folder)
    for text, told in (
        ("operator = 3\n", "does not define `operator` with name 'mine'"),
        ("import nothing_like_this\n", r"fails: ModuleNotFoundError.*\n  why: operator\.py:1: import"),
        ("raise SystemExit(3)\n", r"operator\.py fails: SystemExit: 3"),
        (
            "from aot_tune.spec import Kernel\nKernel('k', 'k.j2', parameter=())\n",
            r"argument 'parameter'\n  why: operator\.py:2: .*\n  fix: did you mean 'param",
        ),
        (
            "from aot_tune.spec import Operator\nOperator(name='mine')\n",
            r"missing 6 .*\n  why: .*\n  fix: `python -c '.*help\(aot_tune.spec.Operator\)",
        ),
    ):
        (folder / "operator.py").write_text(text)
        with pytest.raises(SpecError, match=told):
            load_operator(folder)


def test_two_roots_with_one_operator_are_refused(tmp_path: Path) -> None:
    for root in ("one", "two"):
        (tmp_path / root / "mine").mkdir(parents=True)
        (tmp_path / root / "mine" / "operator.py").write_text("")
    with pytest.raises(SpecError, match="operator 'mine' is declared twice"):
        load_operators([tmp_path / "one", tmp_path / "two"])
    with pytest.raises(SpecError, match="there is no operator 'min'\n  fix: did you mean 'mine'"):
        load_operators([tmp_path / "one"], ["min"])


def test_a_tolerance_is_for_all_outputs_or_by_output() -> None:
    two = (X, Tensor("out", (M, N), output=True), Tensor("q", (M, N), "i8", output=True))
    plain = make_operator(tensors=two)
    out, q = plain.outputs
    assert (plain.factor(out), plain.step(q)) == (4.0, None)
    assert make_operator(tensors=two, tolerance=8).factor(out) == 8.0
    both = make_operator(tensors=two, tolerance={"out": 2.5, "q": off_by(1, share=0.01)})
    assert (both.factor(out), both.step(q)) == (2.5, off_by(1, share=0.01))
    one = make_operator(tensors=two, tolerance=off_by(2))
    assert (one.factor(out), one.step(q), one.step(out)) == (4.0, off_by(2), off_by(2))


@pytest.mark.parametrize(
    ("declared", "dtype", "wanted"),
    [("", "f32", "f32"), ("", "bf16", "bf16"), ("", "f16", "f16"), ("f32", "bf16", "f32"), ("bf16", "f32", "bf16")],
)
def test_intermediates_round_to_the_narrowest_dtype_unless_declared(declared: str, dtype: str, wanted: str) -> None:
    tensors = (Tensor("x", (M, N), "T"), Tensor("w", (N,)), Tensor("out", (M, N), "T", output=True))
    one = make_operator(tensors=tensors, dtypes={"T": ("f32", "f16", "bf16")}, intermediates=declared)
    assert one.rounds_to(problem(M=1, N=1, dtypes={"T": dtype})).name == wanted
