"""Tolerances of the CUDA family, on the host's tensors, and what a reference may make.

What rounds as kernels do is right, forty planted faults are refused, in every dtype; TF32 is where it is declared.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundled import OPERATORS
from small_operators import make_operator

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.spec import Operator, Problem, Tensor, dims, problem

torch = pytest.importorskip("torch")

from aot_tune.bench.worker.cuda_memory import Truths, tensor_of, torch_dtype  # noqa: E402
from aot_tune.bench.worker.cuda_truth import ArrayApi, draw_inputs, exact_values, write_limits  # noqa: E402
from aot_tune.bench.worker.inputs import layout  # noqa: E402
from aot_tune.bench.worker.reference_results import read_limits  # noqa: E402

HOST = torch.device("cpu")
DTYPES = ("f32", "f16", "bf16")
M, N, K = dims("M N K")
Arrays = Mapping[str, Any]
Outputs = dict[str, Any]


def multiplied(xp: Any, call: Any) -> Outputs:
    return {"out": xp.matmul(call.a, call.b) + call.bias}


def normalized(xp: Any, call: Any) -> Outputs:
    total = call.x + call.residual
    rstd = 1 / xp.sqrt(xp.mean(total * total, axis=-1, keepdims=True) + 1e-5)
    return {"total": total, "rstd": rstd[..., 0], "out": total * rstd * call.weight}


def weighted(xp: Any, call: Any) -> Outputs:
    """Softmax, then a sum of rows by it: one step of decoding."""
    e = xp.exp(call.s - xp.max(call.s, axis=-1, keepdims=True))
    return {"out": xp.matmul(e / xp.sum(e, axis=-1, keepdims=True), call.v)}


def operator(name: str, extents: str, reference: Any, *tensors: Tensor) -> Operator:
    return make_operator(name=name, extents=extents, tensors=tensors, dtypes={"T": DTYPES}, reference=reference)


PRODUCT = operator(
    "product",
    "M N K",
    multiplied,
    Tensor("a", (M, K), "T"),
    Tensor("b", (K, N), "T"),
    Tensor("bias", (N,), "T"),
    Tensor("out", (M, N), "T", output=True),
)
NORM = operator(
    "norm",
    "M N",
    normalized,
    Tensor("x", (M, N), "T"),
    Tensor("residual", (M, N), "T"),
    Tensor("weight", (N,), "T"),
    Tensor("total", (M, N), "T", output=True),
    Tensor("rstd", (M,), "f32", output=True),
    Tensor("out", (M, N), "T", output=True),
)
DECODE = operator(
    "decode",
    "M N K",
    weighted,
    Tensor("s", (M, K), "T"),
    Tensor("v", (K, N), "T"),
    Tensor("out", (M, N), "f32", output=True),
)
SIZES = {"product": {"M": 48, "N": 40, "K": 1027}, "norm": {"M": 40, "N": 515}, "decode": {"M": 24, "N": 40, "K": 131}}


class Bench:
    """An operator on a problem: its inputs, and what a result is compared with."""

    def __init__(self, operator: Operator, one: Problem, folder: Path) -> None:
        self.operator, self.check = operator.concrete(one.dtypes), Check(problem=one)
        self.dtype = torch_dtype(self.operator.inputs[0])
        write_limits(self.operator, self.check, folder / "limits", 5, HOST)
        storages = draw_inputs(self.operator, self.check, 5, HOST)
        exact = exact_values(self.operator, self.check, storages, HOST)
        limits = read_limits(folder / "limits")
        self.expected = {n: Truths(self.operator.tensor(n), v, limits[n]) for n, v in exact.items()}
        self.arrays = {
            t.name: tensor_of(layout(self.operator, self.check, t), storages[t.name], torch_dtype(t)).float()
            for t in self.operator.inputs
            if t.name in storages
        }

    def fault(self, found: Outputs) -> str:
        """What is wrong with results, which are rounded to the outputs' dtypes."""
        told = []
        for name, value in found.items():
            tensor = self.operator.tensor(name)
            told.append(self.expected[name].judge(value.to(torch_dtype(tensor)))[0])
        return "; ".join(filter(None, told))

    def narrow(self, value: Any) -> Any:
        """Rounded to the operator's dtype."""
        return value.to(self.dtype).float()


Computes = Callable[[Bench], Outputs]


def product(bench: Bench, depth: int = 1027) -> Outputs:
    a, b = bench.arrays["a"][:, :depth], bench.arrays["b"][:depth]
    return {"out": a @ b + bench.arrays["bias"]}


def product_rounds_before_bias(bench: Bench) -> Outputs:
    return {"out": bench.narrow(bench.arrays["a"] @ bench.arrays["b"]) + bench.arrays["bias"]}


def product_backwards(bench: Bench) -> Outputs:
    a, b = bench.arrays["a"].flip(1), bench.arrays["b"].flip(0)
    total = torch.zeros(48, 40)
    for k in range(a.shape[1]):
        total += a[:, k, None] * b[k]
    return {"out": total + bench.arrays["bias"]}


def rstd(squares: Any) -> Any:
    return 1 / torch.sqrt(squares.mean(1) + 1e-5)


def norm(bench: Bench, width: int = 515, rounded: bool = True) -> Outputs:
    """As production kernels do it: the statistic is of the sum as it was stored."""
    total = bench.arrays["x"] + bench.arrays["residual"]
    kept = bench.narrow(total) if rounded else total
    found = 1 / torch.sqrt((kept[:, :width] ** 2).sum(1) / 515 + 1e-5)
    return {"total": total, "rstd": found, "out": kept * found[:, None] * bench.arrays["weight"]}


def decode(bench: Bench, keys: int = 131, rounded: bool = True) -> Outputs:
    """As production kernels do it: weights are rounded before they meet the matrix unit."""
    s, v = bench.arrays["s"][:, :keys], bench.arrays["v"][:keys]
    e = torch.exp(s - s.amax(1, keepdim=True))
    p = e / e.sum(1, keepdim=True)
    return {"out": (bench.narrow(p) if rounded else p) @ v}


RIGHT: list[tuple[Operator, Computes]] = [
    (PRODUCT, product),
    (PRODUCT, product_rounds_before_bias),
    (PRODUCT, product_backwards),
    (NORM, norm),
    (NORM, lambda b: norm(b, rounded=False)),
    (DECODE, decode),
    (DECODE, lambda b: decode(b, rounded=False)),
]


CHANGES: dict[str, Callable[[Any], object]] = {
    "rows change places": lambda out: out[3:5].copy_(out[3:5].flip(0)),
    "a tile is transposed": lambda out: out[:16, :16].copy_(out[:16, :16].T.clone()),
    "a wrong tile": lambda out: out[:8, 8:16].copy_(out[:8, 16:24].clone()),
    "one is wrong": lambda out: out[7, 5].mul_(-1),
    "the last column": lambda out: out[:, -1].copy_(out[:, -2].clone()),
    "a stale row": lambda out: out[-1].zero_(),
    "a mean over the padded width, 640 in place of 515": lambda out: out.mul_((640 / 515) ** 0.5),
    "not written": lambda out: out[0, 0].fill_(torch.nan),
    "infinite": lambda out: out[1, 1].fill_(torch.inf),
}
"""What goes wrong with an output of any operator."""


def changed(right: Computes, change: Callable[[Any], object]) -> Computes:
    def run(bench: Bench) -> Outputs:
        found = {n: v.clone() for n, v in right(bench).items()}
        change(found["out"])
        return found

    return run


def with_(right: Computes, **changes: Callable[[Bench, Outputs], Any]) -> Computes:
    """A right kernel, some of whose outputs are these."""
    return lambda bench: (found := right(bench)) | {n: change(bench, found) for n, change in changes.items()}


def races(bench: Bench, found: Outputs) -> Any:
    """Half of the sum of a few elements is lost."""
    found["out"][::7, ::9] = product(bench, 512)["out"][::7, ::9]
    return found["out"]


def accumulates_narrowly(bench: Bench) -> Outputs:
    """In bf16, or in f16 where the operator's dtype is that; in bf16 in place of f32."""
    kind = torch.float16 if bench.dtype == torch.float16 else torch.bfloat16
    a, b = bench.arrays["a"], bench.arrays["b"]
    total = torch.zeros(48, 40, dtype=kind)
    for k in range(a.shape[1]):
        total += (a[:, k, None] * b[k]).to(kind)
    return {"out": total.float() + bench.arrays["bias"]}


def scores(bench: Bench, change: Callable[[Any], Any]) -> Outputs:
    return {"out": change(bench.arrays["s"]) @ bench.arrays["v"]}


FAULTS: list[tuple[Operator, Computes, str]] = [
    *(
        (one, changed(right, change), name)
        for one, right in ((PRODUCT, product), (NORM, norm), (DECODE, decode))
        for name, change in CHANGES.items()
    ),
    (PRODUCT, lambda b: product(b, 1024), "drops the tail"),
    (PRODUCT, lambda b: product(b, 1026), "K off by one"),
    (
        PRODUCT,
        with_(product, out=lambda b, f: f["out"] + torch.outer(b.arrays["a"][:, 512], b.arrays["b"][512])),
        "a term twice",
    ),
    (PRODUCT, with_(product, out=lambda b, f: f["out"] - b.arrays["bias"]), "no bias"),
    (PRODUCT, with_(product, out=races), "a race"),
    (PRODUCT, accumulates_narrowly, "accumulates narrowly"),
    (NORM, lambda b: norm(b, 448), "drops the tail"),
    (NORM, with_(norm, rstd=lambda b, _: rstd(b.arrays["x"] ** 2)), "statistic of another tensor"),
    (NORM, with_(norm, rstd=lambda b, f: rstd(b.narrow(f["total"]).abs())), "another mean"),
    (NORM, with_(norm, rstd=lambda _, f: f["rstd"].roll(1)), "statistic of another row"),
    (
        NORM,
        with_(norm, out=lambda b, f: f["out"] / b.arrays["weight"] * b.arrays["weight"].roll(1)),
        "weight of a neighbour",
    ),
    (NORM, with_(norm, total=lambda b, _: b.arrays["x"]), "output left out"),
    (DECODE, lambda b: decode(b, 112), "drops the tail"),
    (DECODE, lambda b: scores(b, lambda s: torch.exp(s - s.amax(1, keepdim=True))), "not normalized"),
    (DECODE, lambda b: scores(b, lambda s: torch.softmax(torch.round(s * 2) / 2, 1)), "scores of two bits of fraction"),
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_rounds_as_kernels_do_is_right_and_what_is_wrong_is_refused(tmp_path: Path, dtype: str) -> None:
    benches = {
        o.name: Bench(o, problem(**SIZES[o.name], dtypes={"T": dtype}), tmp_path / o.name)
        for o in (PRODUCT, NORM, DECODE)
    }
    for operator, kernel in RIGHT:
        assert benches[operator.name].fault(kernel(benches[operator.name])) == "", operator.name
    assert len(FAULTS) >= 40
    for operator, kernel, name in FAULTS:
        assert benches[operator.name].fault(kernel(benches[operator.name])) != "", (operator.name, name)


def split(a: Any, b: Any, parts: int) -> Any:
    """The product as a kernel computes it that splits K."""
    sums = [x @ y for x, y in zip(a.chunk(parts, 1), b.chunk(parts, 0), strict=True)]
    total = sums[0]
    for one in sums[1:]:
        total = total + one
    return total


def test_tf32_passes_where_the_problem_has_it_and_nowhere_else(tmp_path: Path) -> None:
    def rounded(x: Any) -> Any:
        return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    shape = {"M": 96, "N": 160, "K": 1024}
    for math, least, most in (("tf32", 0, 0.9), ("ieee", 1, float("inf"))):
        bench = Bench(OPERATORS["gemm"], problem(**shape, attributes={"math": math}), tmp_path / math)
        a, b = bench.arrays["a"], bench.arrays["b"]
        for parts in (1, 4, 16):
            assert bench.expected["out"].judge(split(a, b, parts))[1] < 0.9
            assert least < bench.expected["out"].judge(split(rounded(a), rounded(b), parts))[1] < most


ARRAYS = {
    "zeros": lambda xp, n: xp.zeros((n,)),
    "ones": lambda xp, n: xp.ones(n),
    "arange": lambda xp, n: xp.arange(n),
    "linspace": lambda xp, n: xp.linspace(0.0, 1.0, n),
    "full": lambda xp, n: xp.full((n,), 0.1),
    "eye": lambda xp, n: xp.eye(n)[0],
    "asarray": lambda xp, n: xp.asarray([0.1] * n),
    "compared": lambda xp, n: xp.where(xp.arange(n) > 3, xp.asarray(0.1), xp.zeros(n)),
    "tril": lambda xp, n: xp.tril(xp.ones((n, n)))[n // 2],
}
"""Arrays that a reference makes, of so many elements."""


def test_arrays_that_a_reference_makes_are_where_the_others_are() -> None:
    """The device `meta` is as far from the host's as a GPU is: what is on both is refused there, too."""
    away, check = torch.device("meta"), Check(problem=problem(N=8, dtypes={"T": "bf16"}))
    storages = {"x": torch.empty(16, dtype=torch.uint8, device=away)}
    for make in ARRAYS.values():
        operator = make_operator(
            extents="N",
            dtypes={"T": ("f32", "bf16")},
            reference=lambda xp, call, make=make: {"out": call.x * 1.0 + make(xp, call.x.shape[0])},
        )
        concrete = operator.concrete(check.problem.dtypes)
        for wide in (True, False):
            assert exact_values(concrete, check, storages, away, wide=wide)["out"].device == away
        assert torch.get_default_dtype() == torch.float32
        assert torch.zeros(1).device == HOST
    with pytest.raises((RuntimeError, NotImplementedError)):  # refused, by one or the other as versions of torch differ
        _ = torch.empty(8, device=away) + torch.arange(8)


CALLS = """
repeat(x, 2, axis=1); repeat(x, n, axis=0); tile(x, (2, 1)); std(x, axis=1); var(x, axis=0, ddof=1); median(x, axis=1)
sort(x, axis=0); argsort(x, axis=1); take(x, n); take(x, n, axis=1); take_along_axis(x, argsort(x, axis=1), axis=1)
split(x, 2, axis=1)[1]; transpose(y, (2, 0, 1)); transpose(x); swapaxes(y, 0, 2); moveaxis(y, 0, -1)
concat([x, x], axis=1); clip(x, None, 0.5); maximum(x, 0); where(x > 0, x, 0.0); where(x > 0, x, -inf)
where(x > 0, 1, 0); cumsum(x, axis=1); prod(x, axis=0); argmax(x, axis=1); max(x, axis=(0, 1))
max(x, axis=1, keepdims=True); any(x > 0, axis=1); sum(x > 0); sum(x, axis=(0, 1), keepdims=True); mean(n)
squeeze(x[:1], axis=0); expand_dims(x[0], axis=0); flip(x); roll(x, 1, axis=0); pad(x, ((0, 1), (2, 0))); dot(x, x.T)
einsum('ij,kj->ik', x, x); stack([x, x], axis=1); round(x, 1); power(x, 2); sqrt(4.0); sqrt(n); arange(4)
linspace(0, 1, 5); ones(3, dtype=float32); full(2, 3); tril(x); zeros_like(x); asarray([1, 2])
broadcast_to(x, (2, 3, 4)); nonzero(x > 0)[0]; unique(n); searchsorted(sort(x[0]), x[1]); astype(x, int32)
reshape(x, (-1,)); astype(x, 'float16'); permute_dims(y, (1, 0, 2)); matrix_transpose(y); linalg.norm(x, axis=1)
atan2(x, x); isin(n, n[:2]); n // 2 + left_shift(n, 1); diff(x, axis=1); quantile(x, 0.3, axis=1); x[:, newaxis] * pi
array_split(x, 3, axis=1)[2]
"""


class _Names(dict[str, Any]):
    """Names of arrays and, for all others, of numpy or what stands for it."""

    def __init__(self, xp: Any, make: Callable[[Any], Any]) -> None:
        rng = np.random.default_rng(1)
        x, y = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 4), (2, 3, 4)))
        super().__init__(x=make(x), y=make(y), n=make(np.array([2, 1, 3])), __builtins__={})
        self._xp = xp

    def __missing__(self, name: str) -> Any:
        return getattr(self._xp, name)


def test_functions_on_tensors_are_numpys() -> None:
    theirs, ours = _Names(np, np.asarray), _Names(ArrayApi(), torch.from_numpy)
    for line in CALLS.replace("\n", ";").split(";"):
        if call := line.strip():
            got = eval(call, {}, ours)  # a line of CALLS above, by the names of arrays and functions alone
            want = np.asarray(eval(call, {}, theirs))
            assert isinstance(got, torch.Tensor), call
            assert (got.numpy().dtype, got.numpy().shape) == (want.dtype, want.shape), call
            assert np.allclose(got.numpy(), want, rtol=1e-5), call
    with pytest.raises(AttributeError, match="numpy's interp is missing on torch's tensors"):
        ArrayApi().interp  # noqa: B018
