"""What operators that write rows in 8 bits share: each group of columns is divided by a scale of its own."""

from __future__ import annotations

from typing import Any

from aot_tune.spec import (
    Attribute,
    Call,
    Expr,
    Kernel,
    Parameter,
    Problem,
    Scalar,
    Tensor,
    attribute,
    ceildiv,
    dim,
    maximum,
    next_power_of_2,
    off_by,
    parameter,
    problem,
    stride,
    table,
    target,
)

from .row_kernels import VECTORS, D, R, cuda_generic, cuda_kernel, triton_kernel, unit_strides, whole_pieces

GROUP = dim("GROUP")
WHOLE = 2**30
"""The default of `group`: more columns than a row has, so that each row has one scale."""
ONE_SCALE: Expr = GROUP >= D
USUAL: Expr = ONE_SCALE | (GROUP == 64) | (GROUP == 128)
"""The groups that tuned kernels are for."""

SCALES = Attribute("scales", ("exact", "powers_of_two"))
OUT = Tensor("out", (R, D), "Q", output=True)
SCALE = Tensor("scale", (R, ceildiv(D, GROUP)), output=True)
SCALARS = (
    Scalar("group", "i64", default=WHOLE, binds="GROUP"),
    Scalar("min_amax", default=1e-10, other=2.5, least=1e-30),
)
MOST = {"f8e4m3": 448.0, "i8": 127.0}

_POWERS = {"attributes": {"scales": "powers_of_two"}}
CHECKS = (
    problem(R=3, D=1021, GROUP=WHOLE, **_POWERS),
    problem(R=3, D=40008, GROUP=WHOLE),
    problem(R=5, D=264, GROUP=64, **_POWERS),
)
"""Mostly rows with one scale, which derived checks rarely have; one is too long for the registers of a block."""

OF_QUANTIZED_ROWS: dict[str, Any] = {
    "dims": ("R", "D", "GROUP"),
    "fold": "R",
    "dtypes": {"T": ("bf16", "f16", "f32"), "Q": ("f8e4m3", "i8")},
    "intermediates": "f32",
    "attributes": (SCALES,),
    "legal": (GROUP >= 1,),
    "ranges": {"R": (1, 65536), "D": (256, 32768)},
    "values": {"GROUP": (64, 128, WHOLE)},
    "regimes": {
        "few rows": (ONE_SCALE, R <= 256),
        "many rows": (ONE_SCALE,),
        "few rows in groups": (R <= 256,),
        "many rows in groups": (R > 256,),
    },
    "tolerance": {"out": off_by(1, share=0.01)},
    "checks": CHECKS,
}
"""Arguments that the operators have in common."""

DOCUMENTATION = (
    "Each `group` columns of a row share a scale: max(amax, min_amax) / 448 where `out` is f8e4m3, / 127 for i8; "
    "by default all columns of a row do. With scales=powers_of_two, scales are rounded up to powers of 2 (UE8M0). "
    "out = {y} / scale, rounded to nearest, ties to even. Pass `out`: its dtype chooses f8e4m3 or i8. `scale` may have "
    "any strides: pass it for scales in column-major order. A group with NaN has the scale NaN, one with an infinity "
    "the scale inf; elements that are then NaN are 0 in i8."
)


def quantized(xp: Any, y: Any, call: Call) -> dict[str, Any]:
    """`out` and `scale` of rows `y`, in the definition of all these operators."""
    rows, width = y.shape
    group = max(min(call.group, width), 1)
    groups = -(-width // group)
    beyond = xp.zeros_like(y[:, : groups * group - width])
    parts = xp.reshape(xp.concatenate((y, beyond), 1), (rows, groups, group))
    scale = xp.clip(xp.amax(xp.abs(parts), -1), call.min_amax, None) / MOST[call.Q]
    if call.scales == "powers_of_two":
        fraction, _ = xp.frexp(scale)  # from 1/2 up to 1
        scale = xp.where((fraction > 0.5) & (fraction < 1), scale / fraction, scale)
    out = xp.reshape(parts / scale[:, :, None], (rows, groups * group))[:, :width]
    if call.Q == "i8":
        out = xp.where(xp.isnan(out), xp.zeros_like(out), xp.round(out))
    return {"out": out, "scale": scale}


def torch_quantized(torch: Any, call: Call) -> Any:
    """What users of torch write: a function that quantizes rows in f32 into the outputs of a call."""
    rows, width = call.out.shape
    group, groups, most = min(call.group, width), call.scale.shape[1], MOST[call.Q]
    beyond = groups * group - width

    def run(y: Any) -> None:
        y = (torch.nn.functional.pad(y, (0, beyond)) if beyond else y).reshape(rows, groups, group)
        scale = y.abs().amax(-1, keepdim=True).clamp(min=call.min_amax) / most
        if call.scales == "powers_of_two":
            scale = scale.log2().ceil().exp2()
        y = y / scale
        y = y.round().clamp(-most, most) if call.Q == "i8" else y.clamp(-most, most)
        call.out.copy_(y.reshape(rows, -1)[:, :width])
        call.scale.copy_(scale[:, :, 0])

    return run


def cpu_workload(**more: Any) -> tuple[Problem, ...]:
    """A row of Llama-3-8B's width with one scale, and some in groups."""
    return problem(R=1, D=4096, GROUP=WHOLE, **more), problem(R=64, D=4096, GROUP=128, **more)


def cuda_workload(*widths: int, forms: bool = True, **more: Any) -> tuple[Problem, ...]:
    """Rows of these widths in bf16 to f8, whole and in groups of 128; with `forms`, of the first also to i8, from f16
    and f32, with scales by columns, as DeepGEMM reads them, and in groups of 64."""
    rows = (64, 1024, 16384)

    def one(r: int, d: int, group: int, t: str = "bf16", q: str = "f8e4m3", **how: Any) -> Problem:
        # Dtypes that are the defaults anyway are left out.
        dtypes = {v: given for v, given, usual in (("T", t, "bf16"), ("Q", q, "f8e4m3")) if given != usual}
        return problem(R=r, D=d, GROUP=group, dtypes=dtypes, **more, **how)

    found = [one(r, d, group) for d in widths for group in (WHOLE, 128) for r in rows]
    if not forms:
        return tuple(found)
    first = widths[0]
    found += [one(r, first, group, q="i8") for group in (WHOLE, 128) for r in (64, 16384)]
    found += [one(r, first, group, t="f32") for group in (WHOLE, 128) for r in (64, 4096)]
    found += [one(4096, first, group, t="f16") for group in (WHOLE, 128)]
    found += [one(r, first, 128, order={"scale": (1, 0)}) for r in (64, 4096)]
    return (*found, one(4096, first, 64))


def quantized_kernels(operator: str, axes: dict[str, int], *, whole: bool = False) -> tuple[Kernel, ...]:
    """All kernels of an operator. With `whole`, each needs whole rows, as a norm does."""
    generic = Kernel("generic", f"{operator}/generic.cpp.j2", generic=True)
    return generic, *_cuda(operator, axes, whole=whole), *_triton(operator, axes, whole=whole)


def _triton(operator: str, axes: dict[str, int], *, whole: bool) -> tuple[Kernel, ...]:
    """Kernels by Triton: for rows with one scale, and for rows in groups, which are cut into tiles unless `whole`."""
    steps = {"GROUPS": ceildiv(D, GROUP), "scale_row": stride("scale", 0), "scale_column": stride("scale", 1)}
    steps["POWERS"] = attribute("scales")
    row = {"BLOCK_R": maximum(parameter("ELEMENTS") // next_power_of_2(D), 1), "BLOCK_D": next_power_of_2(D)}

    def kernel(name: str, arguments: dict[str, Any], meant: Expr, **more: Any) -> Kernel:
        return triton_kernel(
            f"quantize_rows/triton.py:{operator}",
            name,
            axes,
            steps | arguments,
            lambda meta: (ceildiv(R, meta["BLOCK_R"]) * ceildiv(D, meta["BLOCK_D"]),),
            requires=(meant, R * ceildiv(D, 256) < 2**31, *unit_strides(**axes)),
            follows={"f16": "bf16", "i8": "f8e4m3"},
            constraints=(target("capability") >= 89,),  # Triton has no f8e4m3 for older GPUs
            **more,
        )

    rows = table("ELEMENTS num_warps", (4096, 4), (8192, 8), (4096, 8), (16384, 16))
    tiles = table("BLOCK_R BLOCK_D num_warps", (1, 1024, 4), (1, 2048, 4), (1, 4096, 8), (4, 512, 4), (8, 256, 4))
    fits = {"listed": rows, "worthwhile": (1024 * parameter("num_warps") >= D,)}
    return (
        kernel("triton_rows", row | {"SPAN": next_power_of_2(D)}, ONE_SCALE, **fits),
        kernel(
            "triton_groups",
            (row if whole else {}) | {"SPAN": GROUP},
            ~ONE_SCALE & USUAL,
            **(fits if whole else {"listed": tiles}),
        ),
    )


def _cuda(operator: str, axes: dict[str, int], *, whole: bool) -> tuple[Kernel, ...]:
    """Kernels in CUDA: for any call, and of rows in registers, into which 8 pieces of a norm per thread do not fit."""
    vectors = (4, 2, 1) if whole else (4, 2, 8, 1)
    rows = cuda_kernel(
        operator,
        "cuda_rows",
        parameters=(Parameter("VECTORS", tuple(sorted(vectors))),),
        requires=(USUAL, *whole_pieces(**axes)),
        # With 8 a multiprocessor holds two rows where it would hold one with 4.
        worthwhile=((VECTORS < 8) | (ONE_SCALE & (D > 16384)),),
        follows={"f16": "bf16", "i8": "f8e4m3"},
        order=table("VECTORS", *((count,) for count in vectors)),
        tile={"R": 1, "D": 128 * VECTORS},
    )
    return cuda_generic(operator), rows
