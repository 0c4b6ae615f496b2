"""Attention over ragged batches and over pages: definitions, kernels for every call, what tests draw, bad input."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bundled import OPERATORS
from host_kernels import CpuKernel, CudaKernel
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import Trial, verdicts

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.stored_elements import stored_as, values_of
from aot_tune.spec import DTYPES, Drawn, Operator, all_of, problem

RAGGED, PAGED = OPERATORS["ragged_attention"], OPERATORS["paged_attention"]
CAUSAL = RAGGED.attributes[0].choices
DEFAULTS = {"scale": 0.0, "window": 0, "softcap": 0.0, "k_scale": 1.0, "v_scale": 1.0}
EPSILON = {"f32": 1e-5, "f16": 2e-3, "bf16": 2e-2}

Dims = Mapping[str, int]
Arrays = dict[str, Any]


# -- calls ------------------------------------------------------------------------------------------------------------


def offsets_of(lengths: Any) -> Any:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def drawn(op: Operator, seed: int, lengths: Any, keys: Any, dims: Dims, spare: int = 0) -> Arrays:
    """Inputs of sequences with so many queries and keys; `spare` rows of q belong to none."""
    values, b = np.random.default_rng(seed), len(lengths)
    h, hk, d, dv = (dims[n] for n in ("H", "HK", "D", "DV"))
    call: Arrays = {"q": values.standard_normal((sum(lengths) + spare, h, d)), "cu_q": offsets_of(lengths)}
    if op is RAGGED:
        call |= {"cu_k": offsets_of(keys), "k": values.standard_normal((sum(keys), hk, d))}
        return call | {"v": values.standard_normal((sum(keys), hk, dv))}
    page, width = dims["PAGE"], -(-max([*keys, 1]) // dims["PAGE"]) + 1
    call |= {"seq_lens": np.array(keys, np.int32), "k_pages": values.standard_normal((b * width + 2, page, hk, d))}
    call["page_table"] = values.permutation(b * width + 2)[: b * width].reshape(b, width).astype(np.int32)
    return call | {"v_pages": values.standard_normal((b * width + 2, page, hk, dv))}


def wanted(op: Operator, call: Arrays, options: Mapping[str, Any], causal: str) -> dict[str, Any]:
    """What the definition says."""
    with np.errstate(all="ignore"):
        return dict(op.reference(np, SimpleNamespace(**call, **{**DEFAULTS, **options}, causal=causal)))


class Passed:
    """A tensor in memory of 0xff; rows have a gap behind them, or lie in another order."""

    def __init__(self, dtype: str, values: Any, shape: tuple[int, ...], layout: int) -> None:
        self.dtype, rank = DTYPES[dtype], len(shape)
        order = [*reversed(range(rank - 1)), rank - 1] if layout == 2 else [*range(rank)]
        extents = [shape[axis] for axis in order]
        extents[-1] += 3 * (layout == 1)
        count = math.prod(extents)

        def elements(whole: Any) -> Any:
            return whole[64 : 64 + count].reshape(extents).transpose(np.argsort(order))[..., : shape[-1]]

        self.whole = np.empty(count + 128, self.dtype.bits_as)
        self.whole.view(np.uint8)[...] = 0xFF
        self.spare, self.view = np.ones(count + 128, bool), elements(self.whole)
        elements(self.spare)[...] = False
        if values is not None:
            self.view[...] = stored_as(self.dtype, values.astype(np.float32) if self.dtype.is_floating else values)

    @property
    def values(self) -> Any:
        return values_of(self.dtype, self.view.copy()).astype(np.float64 if self.dtype.is_floating else np.int32)

    def spare_is_untouched(self) -> bool:
        return bool((self.whole[self.spare].view(np.uint8) == 0xFF).all())


class Generic:
    """A kernel for every call in some dtypes, compiled for the host."""

    def __init__(self, op: Operator, backend: str, dtypes: Mapping[str, str], folder: Path) -> None:
        self.op, self.dtypes = op, dtypes
        kernel = next(k.name for k in op.generics if k.backend == backend)
        self.launch = (CpuKernel if backend == "cxx" else CudaKernel)(folder, op, kernel, dtypes=dtypes)

    def __call__(
        self, call: Arrays, options: Mapping[str, Any], causal: str, layout: int = 0, lse: bool = True
    ) -> tuple[dict[str, Any], Arrays]:
        """The results, and the call with its numbers as they were rounded."""
        rows, heads = call["q"].shape[:2]
        columns = next(call[name] for name in ("v", "v_pages") if name in call).shape[-1]
        shapes = {"out": (rows, heads, columns), "lse": (rows, heads)}
        passed = {
            t.name: Passed(t.dtype.name, call.get(t.name), shapes.get(t.name) or call[t.name].shape, layout)
            for t in self.launch.operator.tensors
            if lse or t.name != "lse"
        }
        numbers = {**DEFAULTS, **options, "causal": CAUSAL.index(causal)}
        assert self.launch(numbers, **{name: t.view for name, t in passed.items()}) == 0
        assert all(t.spare_is_untouched() for t in passed.values())
        results = {name: passed[name].values for name in ("out", "lse") if name in passed}
        return results, {name: passed[name].values for name in call}

    def check(self, call: Arrays, options: Mapping[str, Any], causal: str, layout: int = 0, lse: bool = True) -> None:
        results, rounded = self(call, options, causal, layout, lse)
        truth, near = wanted(self.op, rounded, options, causal), EPSILON[self.dtypes["T"]]
        for name, got in results.items():
            np.testing.assert_allclose(got, truth[name], rtol=near, atol=near, err_msg=f"{name} {options} {causal}")


KERNELS = (
    (RAGGED, "cxx", {"T": "f32"}),
    (PAGED, "cxx", {"T": "bf16", "C": "f8e4m3"}),
    (RAGGED, "nvcc", {"T": "bf16"}),
    (PAGED, "nvcc", {"T": "f16", "C": "f16"}),
)


BUILT: dict[int, Generic] = {}


def kernel_of(number: int, folders: pytest.TempPathFactory) -> Generic:
    if number not in BUILT:
        BUILT[number] = Generic(*KERNELS[number], folders.mktemp("generic"))
    return BUILT[number]


@pytest.fixture(scope="module", params=range(len(KERNELS)), ids=lambda n: f"{KERNELS[n][0].name}-{KERNELS[n][1]}")
def kernel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generic:
    return kernel_of(request.param, tmp_path_factory)


@pytest.fixture(scope="module", params=(0, 1), ids=lambda n: KERNELS[n][0].name)
def cpu_kernel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generic:
    return kernel_of(request.param, tmp_path_factory)


CALLS: tuple[tuple[Any, Any, Dims, dict[str, Any]], ...] = (
    # queries and keys of each sequence, of which some have none, or fewer keys than queries
    ((1, 1, 1), (70, 1, 133), {"H": 4, "HK": 2, "D": 32, "DV": 32, "PAGE": 16}, {}),
    ((3, 0, 66, 2), (80, 5, 66, 0), {"H": 3, "HK": 1, "D": 20, "DV": 12, "PAGE": 7}, {"k_scale": 0.5, "v_scale": 3.0}),
    ((5, 9), (140, 4), {"H": 5, "HK": 2, "D": 9, "DV": 33, "PAGE": 64}, {"window": 7}),
    ((2, 8), (100, 90), {"H": 2, "HK": 3, "D": 33, "DV": 8, "PAGE": 1}, {"window": 80, "softcap": 1.5}),
    ((1, 4), (3, 9), {"H": 1, "HK": 1, "D": 40, "DV": 270, "PAGE": 16}, {"softcap": 0.5, "scale": 0.7}),
)


@pytest.mark.slow
@pytest.mark.parametrize("causal", CAUSAL)
def test_generic_kernels_are_right(kernel: Generic, causal: str) -> None:
    for number, (queries, keys, dims, options) in enumerate(CALLS):
        call = drawn(kernel.op, number, queries, keys, dims, spare=number % 2 * 3)
        kernel.check(call, options, causal, layout=number % 3, lse=number != 3)


LENGTHS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 150)), min_size=1, max_size=5)
HEADS = st.tuples(st.integers(1, 4), st.integers(1, 3))


@pytest.mark.slow
@settings(max_examples=25)
@given(LENGTHS, HEADS, st.integers(1, 70), st.integers(0, 40), st.integers(0, 5))
def test_generic_kernels_for_cpus_are_right_on_any_shape(
    cpu_kernel: Generic, lengths: list[tuple[int, int]], heads: tuple[int, int], width: int, window: int, seed: int
) -> None:
    dims = {"H": heads[0], "HK": heads[1], "D": width, "DV": 1 + width * seed // 3, "PAGE": 1 + 7 * seed}
    call = drawn(cpu_kernel.op, seed, *zip(*lengths, strict=True), dims, spare=seed)
    options = {"window": window, "softcap": seed % 3 * 0.7}
    cpu_kernel.check(call, options, CAUSAL[seed % 2], layout=seed % 3, lse=seed != 4)


@pytest.mark.slow
def test_nothing_is_seen(kernel: Generic) -> None:
    """No queries, no keys, no sequences, no columns: zeros, and -inf as the logarithm."""
    dims = {"H": 2, "HK": 1, "D": 8, "DV": 8, "PAGE": 4}
    for queries, keys, spare in (((2, 3), (0, 0), 0), ((0, 0), (3, 4), 2), ((), (), 3)):
        call = drawn(kernel.op, 1, queries, keys, dims, spare)
        results, _ = kernel(call, {}, "lower_right")
        assert (results["out"] == 0).all()
        assert (results["lse"] == -math.inf).all()
    kernel.check(drawn(kernel.op, 1, (2,), (3,), dims | {"D": 0, "DV": 0}), {"scale": 1.0}, "none")


@pytest.mark.slow
def test_bad_offsets_lengths_and_pages_stay_within_the_tensors(kernel: Generic) -> None:
    """Results are wrong then, or those of the nearest legal numbers, but nothing else is written."""
    dims = {"H": 2, "HK": 2, "D": 16, "DV": 16, "PAGE": 16}
    far = 2**31 - 1
    for name, bad in (
        ("cu_q", [0, 9, 4]),
        ("cu_q", [-5, 3, far]),
        ("cu_q", [7, -far, 5]),
        ("cu_k", [9, 3, 70]),
        ("cu_k", [-far, far, 2]),
        ("seq_lens", [-3, far]),
        ("page_table", [[far, -1] * 3, [-far, 3] * 3]),
    ):
        call = drawn(kernel.op, 3, (4, 5), (70, 50), dims)
        if name in call:
            call[name] = np.resize(np.array(bad, np.int64).astype(np.int32), call[name].shape)
            kernel(call, {}, "lower_right")
            if name in ("seq_lens", "page_table"):
                kernel.check(call, {}, "lower_right")


# -- definitions, baselines, what tests draw ---------------------------------------------------------------------------


def in_torch(call: Arrays, causal: str, columns: int) -> SimpleNamespace:
    """A call as baselines get it, with an output of NaN."""
    import torch

    passed = {name: torch.from_numpy(value) for name, value in call.items()}
    out = torch.full((*call["q"].shape[:2], columns), math.nan, dtype=torch.float64)
    return SimpleNamespace(**passed, **DEFAULTS, causal=causal, out=out)


@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize("op", [RAGGED, PAGED], ids=lambda op: op.name)
def test_the_definition_is_what_torch_computes_sequence_by_sequence(op: Operator, causal: str) -> None:
    import torch

    call = drawn(op, 1, (3, 1, 7), (5, 40, 7), {"H": 6, "HK": 2, "D": 16, "DV": 24, "PAGE": 8})
    passed = in_torch(call, causal, 24)
    op.baselines[0].prepare(torch, passed)()
    np.testing.assert_allclose(passed.out.numpy(), wanted(op, call, {}, causal)["out"], atol=1e-12)


def with_signature(function: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def test_torchs_ragged_attention_gets_arguments_that_it_takes() -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    taken = inspect.signature(varlen.varlen_attn)
    for op in (RAGGED, PAGED):
        call = drawn(op, 1, (3, 1), (5, 40), {"H": 6, "HK": 2, "D": 16, "DV": 16, "PAGE": 8})
        passed, asked = in_torch(call, "lower_right", 16), list[dict[str, Any]]()

        def stand_in(taken: inspect.Signature, asked: list[dict[str, Any]] = asked) -> SimpleNamespace:
            def attend(q: Any, **more: Any) -> Any:
                asked.append(more)
                return q

            return SimpleNamespace(varlen_attn=with_signature(attend, taken))

        op.baselines[1].prepare(stand_in(taken), passed)()
        taken.bind(passed.q, **asked[0])
        assert (asked[0]["max_q"], asked[0]["max_k"], asked[0]["window_size"]) == (
            3,
            40 if op is RAGGED else 48,
            (-1, 0),
        )
        older = taken.replace(parameters=[p for n, p in taken.parameters.items() if n != "enable_gqa"])
        op.baselines[1].prepare(stand_in(older), passed)()
        assert asked[1].keys() == asked[0].keys() - {"enable_gqa"}
        without = taken.replace(parameters=[p for n, p in taken.parameters.items() if n != "cu_seq_q"])
        with pytest.raises(TypeError, match="varlen_attn of this torch has no cu_seq_q"):
            op.baselines[1].prepare(stand_in(without), passed)
        for dtypes, takes in (({"T": "bf16", "C": "bf16"}, [True, True]), ({}, [True, False])):
            one = problem(H=8, HK=2, D=64, DV=64, dtypes=dtypes)
            assert [baseline.supports(one) for baseline in op.baselines] == takes


def drawn_call(op: Operator, dims: Dims) -> SimpleNamespace:
    """Offsets, lengths and tables that tests draw."""
    call = SimpleNamespace(**dims)
    for tensor in op.inputs:
        if isinstance(tensor.values, Drawn):
            call.shape = tuple(extent.evaluate(dims) for extent in tensor.shape)
            values = np.asarray(tensor.values.function(np.random.default_rng(5), call)).astype(np.int32)
            assert values.shape == call.shape
            setattr(call, tensor.name, values)
    return call


def keys_read(op: Operator, call: SimpleNamespace) -> int:
    """Keys of sequences that have queries, each once."""
    asks = np.diff(call.cu_q) > 0
    if op is RAGGED:
        return int(np.diff(call.cu_k)[asks].sum())
    read = set()
    for table, length in zip(call.page_table[asks], call.seq_lens[asks], strict=True):
        pages = np.clip(table, 0, call.P - 1).repeat(call.PAGE)[:length]
        read.update((pages * call.PAGE + np.arange(length) % call.PAGE).tolist())
    return len(read)


@pytest.mark.parametrize("op", [RAGGED, PAGED], ids=lambda op: op.name)
def test_calls_to_time_read_what_is_counted(op: Operator) -> None:
    """And not much more."""
    cases = [p for p in op.workload_for("cuda") if math.prod(p.dims.get(n, 1) for n in ("B", "W", "PAGE")) < 200_000]
    for one in (*cases, *op.workload_for("cpu")):
        dims, keys = one.dims, op.inputs[1]
        assert keys.read is not None
        counted = keys.read.evaluate(op.facts(one)) // (min(dims["H"], dims["HK"]) * dims["D"])
        assert counted <= keys_read(op, drawn_call(op, dims)) <= 1.1 * counted + dims["B"]


@given(st.integers(0, 40), st.integers(0, 700), st.integers(0, 700), st.integers(1, 9), st.integers(0, 12))
def test_drawn_offsets_and_lengths_are_legal(b: int, m: int, n: int, page: int, width: int) -> None:
    call = drawn_call(RAGGED, {"B": b, "M": m, "N": n})
    for offsets, most in ((call.cu_q, m), (call.cu_k, n)):
        assert offsets[0] == 0
        assert (np.diff(offsets) >= 0).all()
        assert offsets[-1] <= most
    if n >= m:
        assert (np.diff(call.cu_k) >= np.diff(call.cu_q)).all()
    paged = drawn_call(PAGED, {"B": b, "M": m, "P": n + 1, "PAGE": page, "W": width})
    assert ((paged.seq_lens >= 0) & (paged.seq_lens <= page * width)).all()
    below = PAGED.tensor("page_table").below
    assert below is not None
    assert below.evaluate({"P": n + 1}) == n + 1
    if n >= b * width:
        assert len(set(paged.page_table.flat)) == b * width
        assert ((paged.page_table >= 0) & (paged.page_table <= n)).all()


def test_flops_are_about_those_of_drawn_lengths() -> None:
    for op in (RAGGED, PAGED):
        for one in op.workload_for("cuda"):
            call = drawn_call(op, one.dims)
            queries = np.diff(call.cu_q).astype(float)
            keys = np.diff(call.cu_k) if op is RAGGED else call.seq_lens
            pairs = queries * keys - (queries * (queries - 1) / 2 if one.attributes.get("causal") else 0)
            counted = op.flops.evaluate(op.facts(one)) / (2 * one.dims["H"] * (one.dims["D"] + one.dims["DV"]))
            assert counted == pytest.approx(pairs.sum(), rel=0.12), one.id


# -- Triton's interpreter ---------------------------------------------------------------------------------------------


def trials() -> Iterator[Trial]:
    """Blocks smaller than those of configs. Some sequences are empty, some queries see no key, in some tests all do."""
    blocks = {"BLOCK_M": 16, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}
    options: dict[str, float] = {"window": 19, "softcap": 1.5, "scale": 0.2}
    lower, f16 = {"causal": "lower_right"}, {"T": "f16"}
    small: dict[str, Any] = {"B": 4, "H": 3, "HK": 1, "M": 25, "N": 83}
    ragged = problem(**small, D=64, DV=64, dtypes=f16, attributes=lower, present=["lse"])
    yield Trial(RAGGED, "triton_64", blocks, Check(problem=ragged, scalars=options))
    yield Trial(RAGGED, "triton_64", blocks, Check(problem=ragged, special="q"))
    fewer = problem(**small | {"N": 17, "H": 2}, D=150, DV=128, dtypes=f16)
    yield Trial(RAGGED, "triton_192", blocks, Check(problem=fewer, scalars={"scale": 0.0}))
    # Descriptors clip columns, and read keys of the next sequence, which may be anything.
    clipped = problem(**small | {"N": 17, "H": 2}, D=152, DV=120, dtypes=f16)
    yield Trial(RAGGED, "triton_tma_192", blocks, Check(problem=clipped))
    yield Trial(RAGGED, "triton_tma_64", blocks, Check(problem=ragged, scalars=options))
    yield Trial(RAGGED, "triton_tma_64", blocks, Check(problem=ragged, special="v"))
    scales = {"k_scale": 0.5, "v_scale": -2.0}
    for width, name in ((64, "triton_64"), (64, "triton_split_64"), (128, "triton_split_128_f8")):
        cache = {"C": "f8e4m3" if "f8" in name else "f16"}
        pages: dict[str, Any] = {"B": 2, "H": 4, "HK": 2, "M": 7, "P": 11, "PAGE": 11, "W": 7, "D": width, "DV": width}
        paged = problem(**pages, dtypes={**f16, **cache}, attributes=lower, present=["lse"])
        config = blocks | ({"SPLIT": 2} if "split" in name else {})
        yield Trial(PAGED, name, config, Check(problem=paged, scalars=scales | (options if "f8" not in name else {})))
        if name == "triton_split_64":
            yield Trial(PAGED, name, config, Check(problem=paged, special="q"))
    few: dict[str, Any] = {"B": 9, "H": 2, "HK": 1, "M": 5, "P": 2, "PAGE": 1, "W": 3, "D": 500, "DV": 300}
    empty = problem(**few, dtypes={"T": "f16", "C": "f16"}, present=["lse"])
    yield Trial(PAGED, "triton_split_576", blocks | {"SPLIT": 2}, Check(problem=empty))
    # Pages of 8 bits make queries in bf16 ones in f16.
    eight: dict[str, Any] = {"dtypes": {"T": "bf16", "C": "f8e4m3"}, "attributes": lower, "present": ["lse"]}
    sizes: dict[str, Any] = {"B": 2, "H": 4, "HK": 2, "P": 20, "PAGE": 9, "W": 8, "D": 60, "DV": 40}
    long, short = (problem(**sizes, M=m, **eight) for m in (40, 7))
    every = problem(**sizes, M=2, dtypes=eight["dtypes"])
    latent = problem(B=2, H=3, HK=1, M=4, P=9, PAGE=16, W=4, D=576, DV=512, **eight)
    for name, check in (
        ("triton_64_f8", Check(problem=long, scalars=scales | options, special="q")),
        ("triton_split_64_f8", Check(problem=short, special="q")),
        ("triton_split_64_f8", Check(problem=every, special="v_pages")),
        ("triton_split_64_f8", Check(problem=short, odd="zeros")),
        ("triton_split_64_f8", Check(problem=short, odd="denormal numbers")),
        ("triton_split_576_f8", Check(problem=latent)),
    ):
        yield Trial(PAGED, name, blocks | ({"SPLIT": 2} if "split" in name else {}), check)
    far = 2**31 - 1
    for put in ({"cu_q": [far, -far, 9]}, {"cu_q": [9, 4, 30], "cu_k": [far, 5, -far, 80]}):
        for name in ("triton_64", "triton_tma_64"):
            yield Trial(RAGGED, name, blocks, Check(problem=ragged), put)
    for put in ({"cu_q": [5, 2], "seq_lens": [far, -far]}, {"page_table": [far, -far, 3]}):
        yield Trial(PAGED, "triton_split_128_f8", blocks | {"SPLIT": 2}, Check(problem=paged), put)


@pytest.mark.slow
def test_triton_kernels_are_right_in_the_interpreter() -> None:
    """With bad offsets, lengths and pages they write nothing beside their tensors."""
    pytest.importorskip("triton")
    cases = [*trials()]
    for one in cases:
        facts = one.operator.facts(one.check.problem) | {f"parameter.{n}": int(v) for n, v in one.config.items()}
        assert all_of((*one.operator.legal, *one.operator.kernel(one.kernel).requires), facts), one.kernel
    for one, verdict in zip(cases, verdicts(cases), strict=True):
        assert verdict.startswith("right: ") or (
            one.put and verdict.startswith("wrong: ") and "writes" not in verdict
        ), verdict
