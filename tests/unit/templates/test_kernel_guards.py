"""Which calls kernels of products take, and which they are worth a try for: wrong ones are wrong results on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from bundled import OPERATORS

from aot_tune.compile.device_targets import CUDA_TARGETS
from aot_tune.render import candidate_for, requirements
from aot_tune.spec import all_of, problem
from aot_tune.spec.kernel import may_serve

HOPPER = next(t for t in CUDA_TARGETS if t.name == "cuda-sm_90a")
Facts = Mapping[str, Any]

PLAIN: Facts = {"M": 128, "N": 64, "K": 32}
BATCH: Facts = {"B": 6, **PLAIN}
HEADS: Facts = {"B": 2, "H": 4, "HK": 2, "M": 3, "N": 256, "D": 64}
LOWER: Facts = {"attributes": {"causal": "lower_right"}}
COLUMNS: Facts = {"b": (1, 0)}
TF32: Facts = {"T": "f32", "attributes": {"math": "tf32"}}
EACH = ("a", "b", "out")
BOTH = ("bias", "residual")


def tma(piece: int, **usual: Any) -> tuple[Facts, list[Facts], list[Facts]]:
    """A usual call of wgmma kernels, others that TMA can read, and what it cannot; 16 bytes are `piece` elements."""
    odd, behind = 512 - piece // 2, (512, 1)
    read: list[Facts] = [
        {"M": 1},
        {"N": piece},
        {"K": piece},
        {"M": 2**20 - 1},
        {"N": 2**27 - piece},
        {"strides": {"a": (512 + piece, 1), "b": (1, 512 + 2 * piece), "out": (1024 + piece, 1)}},
        {"present": BOTH},
        {"present": BOTH, "strides": {"residual": (516, 1)}, "alignment": dict.fromkeys(BOTH, 32 // piece * 2)},
        {"present": BOTH, "strides": {"residual": (0, 1)}},
    ]
    other: list[Facts] = [
        {"N": odd, "strides": {"b": (1, 512), "out": behind}},
        {"K": odd, "strides": {"a": behind, "b": (1, 512)}},
        {"K": 0},
        {"M": 2**20},
        {"N": 2**27},
        {"K": 2**31},
        {"order": {}},
        {"order": {"a": (1, 0), "b": (1, 0)}},
        *({"strides": {t: s}} for t in ("a", "out") for s in ((512 + piece // 2, 1), (0, 1), (-512, 1), (1024, 2))),
        *({"strides": {"b": s}} for s in ((1, 512 + piece // 2), (1, 0), (1, -512), (1, 2**39), (2, 1024), behind)),
        *({"alignment": {t: 8}} for t in EACH),
        *({"present": (t,), "alignment": {t: 4}} for t in BOTH),
        {"present": ("bias",), "strides": {"bias": (2,)}},
        *({"present": ("residual",), "strides": {"residual": s}} for s in ((514, 1), (1, 64), (1024, 2))),
    ]
    return {"M": 64, "N": 512, "K": 512, "order": COLUMNS, **usual}, read, other


def whole_pieces(**usual: Any) -> tuple[Facts, list[Facts], list[Facts]]:
    """The same of CUTLASS's kernels of gemm."""
    taken: list[Facts] = [{"M": 77}, {"strides": {"a": (72, 1)}}, {"strides": {"out": (72, 1)}}]
    refused: list[Facts] = [
        {"N": 60},
        {"K": 36},
        {"order": {"a": (1, 0)}},
        *({"alignment": {t: 8}} for t in EACH),
        *({"strides": {t: s}} for t in ("a", "out") for s in ((68, 1), (0, 1))),
    ]
    return {**PLAIN, **usual}, taken, refused


GUARDS: dict[tuple[str, str], tuple[Facts, Sequence[Facts], Sequence[Facts]]] = {
    ("gemm", "cuda_wgmma"): tma(8),
    ("gemm", "cuda_wgmma_tf32"): tma(4, **TF32),
    ("gemm", "cuda_bf16x6"): ({**PLAIN, "T": "f32", "order": COLUMNS}, [], [{"attributes": {"math": "tf32"}}]),
    ("gemm", "cutlass"): whole_pieces(order=COLUMNS),
    ("gemm", "cutlass_kn"): whole_pieces(),
    ("gemm", "cutlass_tf32_halves"): (
        {**PLAIN, **TF32, "order": COLUMNS},
        [],
        [{"attributes": {"math": "ieee"}}, {"order": {}}],
    ),
    ("batched_gemm", "cutlass_direct_kn"): (
        BATCH,
        [{"M": 77}, {"strides": {"a": (72, 6 * 72, 1)}}],  # the rows of one between those of others
        [
            {"N": 60},
            {"K": 36},
            {"B": 65536},
            {"order": {"b": (0, 2, 1)}},
            *({"alignment": {t: 8}} for t in EACH),
            *({"strides": {t: (s, 128, 1)}} for t in ("a", "out") for s in (0, 128 * 1000 + 4)),
        ],
    ),
    ("flash_attention", "cuda_few_queries"): (
        HEADS,
        [{"M": 300}, {"N": 1}, {"strides": {"q": (2, 4, 6, 1), "out": (1, 3, 5, 1)}}],
        [
            {"D": 68},
            {"HK": 3},
            *({"strides": {"k": s}} for s in ((0, 64, 128, 1), (2**39, 64, 128, 1), (8192, 68, 128, 1))),
            {"alignment": {"v": 8}},
        ],
    ),
    ("flash_attention", "cudnn"): (
        HEADS,
        [LOWER, {"M": 300, "attributes": {"causal": "upper_left"}}],
        [
            {**LOWER, "M": 300},  # some queries see no key
            {"D": 68},
            {"HK": 3},
            {"present": ("mask",)},
            {"strides": {"k": (0, 64, 128, 1)}},
            {"alignment": {"out": 8}},
        ],
    ),
    ("gemm", "cublaslt"): (
        PLAIN,
        [
            {"order": COLUMNS},
            {"order": {"a": (1, 0)}},
            {"present": BOTH},
            *({"present": ("bias",), "attributes": {"activation": a}} for a in ("gelu_tanh", "relu")),
            {"strides": {"a": (40, 1), "out": (72, 1)}},
        ],
        [
            *({"attributes": {"activation": a}} for a in ("gelu", "silu")),
            {"present": ("residual",), "attributes": {"activation": "relu"}},
            *({"strides": {"a": s}} for s in ((64, 2), (0, 1))),
            {"order": {"out": (1, 0)}},
            {"present": ("bias",), "strides": {"bias": (2,)}},
            {"alignment": {"b": 8}},
        ],
    ),
    ("batched_gemm", "cublaslt"): (
        BATCH,
        [
            {"M": 15, "N": 63, "K": 31},
            {"order": {"a": (0, 2, 1), "b": (0, 2, 1)}},
            {"order": {"a": (1, 0, 2), "b": (1, 0, 2), "out": (1, 0, 2)}},  # heads between the rows
            {"strides": {"b": (0, 64, 1)}},
            {"B": 1},
        ],
        [
            {"order": {"out": (0, 2, 1)}},
            *({"strides": {"a": s}} for s in ((1, 6 * 32, 6), (16 * 32, 0, 1))),
            *({"strides": {t: s}} for t, s in (("b", (-32 * 64, 64, 1)), ("out", (0, 64, 1)))),
            {"alignment": {"out": 8}},
            {"B": 2**31},
        ],
    ),
}


@pytest.mark.parametrize(("operator", "name"), GUARDS)
def test_what_a_kernel_takes(operator: str, name: str) -> None:
    op, (usual, taken, refused) = OPERATORS[operator], GUARDS[operator, name]
    kernel = op.kernel(name)
    dtype = usual.get("T", "bf16")
    config = next(kernel.configs(HOPPER.facts), {"ALGO": -1})
    guards = requirements(op, candidate_for(op, kernel, config, HOPPER, None, {"T": dtype}))

    def takes(facts: Facts) -> bool:
        given = {n: v for n, v in {**usual, **facts}.items() if n != "T"}
        if "strides" in facts and "order" in usual:  # an order is that of tensors without strides
            given["order"] = {t: o for t, o in usual["order"].items() if t not in facts["strides"]}
        return all_of(guards, op.facts(problem(**given, dtypes={"T": dtype})))

    assert takes({})
    assert [one for one in taken if not takes(one)] == []
    assert [one for one in refused if takes(one)] == []


# What kernels are worth a try for, and what not: vendors' kernels with an epilogue of ours where there is one, what
# takes any strides where others take nothing, ragged ones where there is no TMA, halves where they save something.
WORTHWHILE: tuple[tuple[str, str, Facts, Sequence[Facts], Sequence[Facts]], ...] = (
    *(
        (
            "gemm",
            name,
            PLAIN,
            [
                {"present": ("bias",)},
                {"present": ("residual",), "strides": {"residual": (1, 128)}},
                *({"attributes": {"activation": a}} for a in ("relu", "gelu", "gelu_tanh", "silu")),
                {"present": ("bias",), "alignment": {"bias": 2}},
                *({"present": ("bias",), **own} for own in any_output),
            ],
            [
                {},
                {"present": ("bias",), "alignment": {"a": 2}},
                *({"present": ("bias",), **own} for own in aligned_output),
            ],
        )
        for name, any_output, aligned_output in (
            ("cublaslt_then_epilogue", (), ({"order": {"out": (1, 0)}}, {"alignment": {"out": 2}})),
            ("cublaslt_f32_then_epilogue", ({"order": {"out": (1, 0)}}, {"alignment": {"out": 2}}), ()),
        )
    ),
    (
        "gemm",
        "cublaslt_any",
        PLAIN,
        [
            {"N": 63},
            {"K": 63},
            {"order": {"out": (1, 0)}},
            *({"alignment": {t: 2}} for t in EACH),
            *({"strides": s} for s in ({"a": (64, 2)}, {"b": (0, 1)})),
        ],
        [{}, {"order": COLUMNS}, {"M": 63}],
    ),
    (
        "batched_gemm",
        "cublaslt_any",
        BATCH,
        [
            {"N": 63},
            {"order": {"out": (0, 2, 1)}},
            *({"alignment": {t: 2}} for t in EACH),
            {"strides": {"a": (8192, 64, 2)}},
        ],
        [{}, {"order": {"b": (0, 2, 1)}}, {"M": 63}],
    ),
    (
        "gemm",
        "cuda_mma_kn_ragged",
        {"M": 512, "N": 512, "K": 512},
        [
            {"alignment": {"out": 8}},
            {"strides": {"out": (516, 1)}},
            {"K": 500, "strides": {"a": (504, 1), "b": (512, 1)}},
            {"N": 500, "strides": {"b": (504, 1)}},
        ],
        [{}],
    ),
    (
        "gemm",
        "cutlass_tf32_halves",
        {"N": 4096, "K": 4096, "order": COLUMNS, **TF32},
        [{"M": 1024}, {"M": 4096}],
        [{"M": m} for m in (1, 16, 64, 256)],
    ),
)


@pytest.mark.parametrize(
    ("operator", "name", "usual", "tried", "others"), WORTHWHILE, ids=[f"{row[0]}-{row[1]}" for row in WORTHWHILE]
)
def test_what_a_kernel_is_tried_for(
    operator: str, name: str, usual: Facts, tried: Sequence[Facts], others: Sequence[Facts]
) -> None:
    op = OPERATORS[operator]
    kernel = op.kernel(name)

    def is_tried(facts: Facts) -> bool:
        given = {n: v for n, v in {**usual, **facts}.items() if n != "T"}
        made = op.facts(problem(**given, dtypes={"T": usual.get("T", "bf16")}))
        return all_of(kernel.requires, made) and may_serve(kernel, made, worthwhile=True)

    assert [one for one in tried if not is_tried(one)] == []
    assert [one for one in others if is_tried(one)] == []
