"""Calls of operators on 8 bits, groups, pages and packed weights: drawn, and named; and tables of times. No device."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_tasks import installed_operator
from stats import geometric_mean
from unseen_shapes import ratio

from aot_tune.compile import target_by_name
from aot_tune.database.checks import tuned_kernels
from aot_tune.spec import Operator, Problem, problem
from aot_tune.spec.survey_shapes import survey_shapes

__all__ = ["COMPILED", "OPERATORS", "Item", "dtypes_of", "items", "named", "tables", "turns"]

OPERATORS = ("scaled_mm", "quantize_rows", "rms_norm_quantize", "silu_mul_quantize", "grouped_gemm")
OPERATORS += ("grouped_gemm_masked", "grouped_scaled_mm", "grouped_scaled_mm_masked", "ragged_attention")
OPERATORS += ("paged_attention", "gptq_mm", "awq_mm", "nf4_mm", "int8_mm")
COMPILED = "torch.compile"
_WHOLE = 2**30
"""The group of rows that have one scale."""
_DEEPSEEK = ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (18432, 7168), (4096, 7168), (7168, 2048))
_LLAMA = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
"""N and K of layers."""
_DEEP_GEMM = {(4, 8192): (1297, 1099), (8, 4096): (1288, 1093)}
_DEEP_GEMM_MASKED = {(1, 1024): (1233, 925), (2, 512): (1040, 916), (4, 256): (932, 815)}
"""TFLOPS that DeepGEMM publishes, by groups and rows of each: with N = 4096 and K = 7168, with 7168 and 2048."""


@dataclass(frozen=True)
class Item:
    """A call to measure.

    Args:
        name, wanted: of a named shape, and what it should reach.
        values: of whole numbers on the device, such as offsets, in place of drawn ones.
        bytes, flops: of the call, if they are not those of drawn values.
        compiled: whether it races with torch.compile.
    """

    operator: str
    problem: Problem
    name: str = ""
    wanted: str = ""
    values: Mapping[str, Sequence[int]] = field(default_factory=dict)
    bytes: int = 0
    flops: int = 0
    compiled: bool = False


def turns(several: Iterable[Sequence[Any]]) -> list[Any]:
    """The first of each, the second of each, and so on."""
    return [one for turn in itertools.zip_longest(*several) for one in turn if one is not None]


def items(operators: Sequence[str], count: int, seed: int, compiled: int, target: str = "cuda-sm_90a") -> list[Item]:
    """Named calls and drawn ones in turn, and operators in turn: a time limit cuts all of them evenly.

    Args:
        count: of shapes drawn for each choice of dtypes, as a survey draws them, but other ones.
        compiled: how many drawn calls of each operator on rows race with torch.compile.
    """
    drawn = []
    for name in operators:
        operator = installed_operator(name)
        kernels = tuned_kernels(operator, target_by_name(target))
        shapes = turns(survey_shapes(operator, "cuda", count, kernels, f" formats {seed}").values()) if count else []
        rows = name.endswith("quantize") or name == "quantize_rows"
        drawn.append([Item(name, p, compiled=rows and i < compiled) for i, p in enumerate(shapes)])
    known = named()
    return turns([turns([[i for i in known if i.operator == name] for name in operators]), turns(drawn)])


def named() -> list[Item]:
    """Calls for which there are limits."""
    found = [_scaled(1024, 18432, 7168, "block scales", "970 TFLOPS")]
    found += [_scaled(16, n, k, "16 rows, block scales", "2 x torch or 0.85 of a copy") for n, k in _DEEPSEEK]
    for name, d, present in (
        ("quantize_rows", 7168, ()),
        ("rms_norm_quantize", 7168, ("weight", "residual", "residual_out")),
        ("silu_mul_quantize", 14336, ()),
    ):
        for r, group in ((4096, 128), (16384, 128), (16384, _WHOLE)):
            wanted = "0.90 of a copy, 1.5 x torch.compile" if r == 4096 else "0.90 of a copy"
            shape = problem(R=r, D=d, GROUP=group, present=present)
            found.append(Item(name, shape, "64 MB on", wanted, compiled=r == 4096))
    for name in ("grouped_gemm", "grouped_gemm_masked", "grouped_scaled_mm", "grouped_scaled_mm_masked"):
        found += [_grouped(name, 8, m, 4096, 7168, "8 experts", "1.3 x the loop") for m in (128, 1024)]
    for operator, shapes in (
        ("grouped_scaled_mm", _DEEP_GEMM),
        ("grouped_scaled_mm_masked", _DEEP_GEMM_MASKED),
    ):
        for (e, m), figures in shapes.items():
            for (n, k), tflops in zip(((4096, 7168), (7168, 2048)), figures, strict=True):
                found.append(_grouped(operator, e, m, n, k, "DeepGEMM's", f"{tflops} TFLOPS"))
    found += [_paged(dtype, page) for dtype in ("bf16", "f8e4m3") for page in (16, 64)]
    found += [_ragged(b, s) for b, s in ((8, 1024), (4, 4096), (2, 16384))]
    found += [_one_row(name, n, k) for n, k in _LLAMA for name in ("gptq_mm", "awq_mm", "nf4_mm", "int8_mm")]
    return found


def _scaled(m: int, n: int, k: int, name: str, wanted: str) -> Item:
    order = dict.fromkeys(("b", "scale_a", "scale_b"), (1, 0))
    shape = problem(M=m, N=n, K=k, MA=m, KA=-(-k // 128), NB=-(-n // 128), order=order)
    return Item("scaled_mm", shape, name, wanted)


def _grouped(operator: str, e: int, m: int, n: int, k: int, name: str, wanted: str) -> Item:
    """With m rows of each expert."""
    masked, width = operator.endswith("masked"), 1 if "scaled" in operator else 2
    rows = {"C": m} if masked else {"M": e * m}
    return Item(
        operator,
        problem(E=e, **rows, N=n, K=k, order={"b": (0, 2, 1)}),
        name,
        wanted,
        values={"counts": [m] * e} if masked else {"ends": [m * (i + 1) for i in range(e)]},
        bytes=e * (width * (m * k + n * k) + 2 * m * n + (4 * m * k // 128 if width == 1 else 0)),
        flops=2 * e * m * n * k,
    )


def _paged(dtype: str, page: int, b: int = 16, keys: int = 16384, h: int = 32, hk: int = 8, d: int = 128) -> Item:
    """One query for each sequence, and `keys` keys."""
    w, width = keys // page, 2 if dtype == "bf16" else 1
    dtypes = {"T": "bf16", "C": dtype}
    return Item(
        "paged_attention",
        problem(B=b, M=b, H=h, HK=hk, P=b * w, W=w, PAGE=page, D=d, DV=d, dtypes=dtypes),
        "decode, 16 K keys, batch 16",
        "0.90 of a copy",
        values={"seq_lens": [keys] * b},
        bytes=2 * b * keys * hk * d * width + 2 * 2 * b * h * d,
        flops=4 * b * h * d * keys,
    )


def _ragged(b: int, s: int, h: int = 32, hk: int = 8, d: int = 128) -> Item:
    """Prompts of the same length."""
    offsets = [s * i for i in range(b + 1)]
    shape = problem(
        B=b, M=b * s, H=h, HK=hk, N=b * s, D=d, DV=d, attributes={"causal": "lower_right"}, dtypes={"T": "bf16"}
    )
    moved, flops = 2 * 2 * b * s * (h + hk) * d, 2 * b * h * d * s * (s + 1)
    values = {"cu_q": offsets, "cu_k": offsets}
    return Item("ragged_attention", shape, "prompts of one length", "0.95 x dense", values, moved, flops)


def _one_row(operator: str, n: int, k: int) -> Item:
    groups = {"nf4_mm": k // 64, "int8_mm": 1}.get(operator, k // 128)
    order = {"w": (1, 0)} if operator == "int8_mm" else {}
    shape = problem(M=1, N=n, K=k, G=groups, order=order, dtypes={"T": "bf16"})
    return Item(operator, shape, "one row", "" if operator == "int8_mm" else "3 x bf16")


def dtypes_of(operator: Operator, given: Problem) -> str:
    """The dtype of each variable."""
    return " ".join(given.dtypes.get(variable, choices[0]) for variable, choices in operator.dtypes.items())


def tables(rows: Sequence[Mapping[str, Any]]) -> str:
    """Of drawn calls by operator and dtypes, and of named calls, in Markdown; then what went wrong."""
    head = "operator|dtypes|shapes|failed|x best of torch|below 0.95|least|of a copy|x torch.compile"
    drawn = [row for row in rows if not row["name"]]
    found = sorted({(row["operator"], row["dtypes"]) for row in drawn})
    several = [[row for row in drawn if (row["operator"], row["dtypes"]) == key] for key in found]
    parts = [_table(head, [[*key, *_summary(some)] for key, some in zip(found, several, strict=True)])]
    head = "operator|name|shape|us|TFLOPS|GB/s|x others|of a copy|wanted"
    parts.append(_table(head, [_figures(row) for row in rows if row["name"]]))
    errors = [f"* {row['operator']} {row['shape']}: {row['error']}" for row in rows if "error" in row]
    notes: dict[str, list[str]] = {}
    for row in rows:
        for note in row.get("notes", ()):
            notes.setdefault(f"{row['operator']}: {note}", []).append(row["shape"])
    return "\n\n".join([*parts, *errors, *(f"* {note} ({len(at)} x, as {at[0]})" for note, at in notes.items())])


def _table(head: str, lines: Iterable[Sequence[Any]]) -> str:
    columns = head.split("|")
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in (columns, ["---"] * len(columns), *lines))


def _summary(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    timed = [row for row in rows if "us" in row]
    ratios = [(ratio(row)[0], row["shape"]) for row in timed if len(row["us"]) > 1]
    least = min(ratios, default=None)
    below = f"{sum(r < 0.95 for r, _ in ratios) / len(ratios):.0%}" if ratios else ""
    copies = [_of_copy(row) for row in timed if "copy" in row]
    compiled = [_over(row, COMPILED) for row in timed if COMPILED in row["us"]]
    of = [f"{geometric_mean(some):.2f}" if some else "" for some in ([r for r, _ in ratios], copies, compiled)]
    return [len(timed), len(rows) - len(timed), of[0], below, f"{least[0]:.2f} {least[1]}" if least else "", *of[1:]]


def _figures(row: Mapping[str, Any]) -> list[Any]:
    start = [row["operator"], row["name"], row["shape"]]
    if "us" not in row:
        return [*start, "failed", "", "", "", "", row["wanted"]]
    us = statistics.median(row["us"]["ours"])
    others = "; ".join(f"{name} {_over(row, name):.2f}" for name in row["us"] if name != "ours")
    speeds = [f"{row['flops'] / us / 1e6:.0f}", f"{row['bytes'] / us / 1e3:.0f}"]
    copied = f"{_of_copy(row):.2f}" if "copy" in row else ""
    return [*start, f"{us:.1f}", *speeds, others, copied, row["wanted"]]


def _over(row: Mapping[str, Any], name: str) -> float:
    """Our speed over that of another way."""
    return statistics.median(row["us"][name]) / statistics.median(row["us"]["ours"])


def _of_copy(row: Mapping[str, Any]) -> float:
    return statistics.median(row["copy"]) / statistics.median(row["us"]["ours"])
