"""Small models of random weights, and a library of torch's own functions, for the tests of `aot_tune.torch.patch`."""

import itertools
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from aot_tune.link.interfaces import operator_signature
from aot_tune.spec.load_operators import bundled_templates, load_operator

Tensor = torch.Tensor
VOCABULARY = 200
NEAR = {torch.float32: 3e-5, torch.bfloat16: 4e-2, torch.float16: 6e-3}
"""How far logits may be apart, of the largest one."""

_numbers = itertools.count()
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


def llama(dtype: torch.dtype = torch.float32, **given: Any) -> Any:
    import transformers  # which takes long

    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**_SIZES, "num_key_value_heads": 2, **given})
    return transformers.LlamaForCausalLM(config).eval().to(dtype)


def bert(dtype: torch.dtype = torch.float32, **given: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    return transformers.BertForMaskedLM(transformers.BertConfig(**{**_SIZES, **given})).eval().to(dtype)


def tokens(rows: int = 2, length: int = 9, device: str = "cpu") -> Tensor:
    drawn = torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))
    return drawn.to(device)


def near(got: Tensor, want: Tensor) -> None:
    scale = want.double().abs().max().item()
    torch.testing.assert_close(got.double(), want.double(), rtol=0, atol=NEAR[want.dtype] * scale)


class Library(ModuleType):
    """The bundled operators by torch's functions; `calls` counts them, `kernel(operator, tensors)` is what serves."""

    def __init__(self, *also: str, kernel: Callable[[str, tuple[Any, ...]], str] = lambda *_: "rows") -> None:
        super().__init__(f"stand_in_{next(_numbers)}.ops")
        self.calls: Counter[str] = Counter()
        self.kernel = kernel
        declared = _DECLARED | {n: operator_signature(load_operator(bundled_templates() / n)) for n in also}
        self.declared = [{"name": n, **d} for n, d in sorted(declared.items())]
        self.operators = tuple(sorted(declared))
        for name in ("ArgumentTypeError", "ArgumentValueError", "CallError"):
            setattr(self, name, type(name, (ValueError,), {}))

    def signatures(self) -> dict[str, Any]:
        return {"schema": 1, "operators": self.declared}

    def explain(self, operator: str, *tensors: Any, **named: Any) -> dict[str, Any]:
        kernel = self.kernel(operator, tensors)
        return {"kernel": kernel, "tuned": False, "target": "cpu"}

    def gemm(
        self, a: Tensor, b: Tensor, bias: Any = None, residual: Any = None, *, activation: str = "none", **_: Any
    ) -> Tensor:
        self.calls[f"gemm {activation}"] += 1
        y = a.float() @ b.float() + (0 if bias is None else bias.float())
        apply: Callable[[Tensor], Tensor] = {
            "none": lambda x: x,
            "relu": torch.relu,
            "silu": torch.nn.functional.silu,
            "gelu": torch.nn.functional.gelu,
            "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        }[activation]
        made: Tensor = apply(y) + (0 if residual is None else residual.float())
        return made.to(a.dtype)

    def int8_mm(self, a: Tensor, w: Tensor, scales: Tensor, bias: Any = None) -> Tensor:
        self.calls["int8_mm"] += 1
        made: Tensor = a.float() @ (w.float() * scales.float()) + (0 if bias is None else bias.float())
        return made.to(a.dtype)

    def quantize_rows(
        self,
        x: Tensor,
        *,
        group: int,
        min_amax: float = 1e-10,
        scales: str = "exact",
        out: Tensor,
        scale: Tensor | None = None,
    ) -> Any:
        self.calls["quantize_rows"] += 1
        parts = x.float().reshape(len(x), -1, min(group, x.shape[1]))
        made = parts.abs().amax(2).clamp(min=min_amax) / 448
        made = made if scales == "exact" else made.log2().ceil().exp2()
        out.copy_((parts / made[:, :, None]).reshape(x.shape))
        return out, made if scale is None else scale.copy_(made)

    def scaled_mm(
        self, a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Any = None, *, out: Tensor
    ) -> None:
        self.calls["scaled_mm"] += 1
        k, n = b.shape
        wide_a = scale_a.repeat_interleave(-(-k // scale_a.shape[1]), 1)
        wide_b = scale_b.repeat_interleave(-(-k // scale_b.shape[0]), 0)
        wide_b = wide_b.repeat_interleave(-(-n // scale_b.shape[1]), 1)
        out.copy_((a.float() * wide_a) @ (b.float() * wide_b) + (0 if bias is None else bias.float()))

    def rms_norm(
        self, x: Tensor, weight: Tensor, residual: Any = None, *, eps: float = 1e-5, residual_out: bool = False
    ) -> Any:
        self.calls["rms_norm residual" if residual_out else "rms_norm"] += 1
        total = x.float() + (0 if residual is None else residual.float())
        made = torch.nn.functional.rms_norm(total, x.shape[1:], weight.float(), eps).to(x.dtype)
        return (made, total.to(x.dtype)) if residual_out else made

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, *, eps: float = 1e-5) -> Tensor:
        self.calls["layer_norm"] += 1
        return torch.nn.functional.layer_norm(x, x.shape[1:], weight, bias, eps)

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        self.calls["silu_mul"] += 1
        return (torch.nn.functional.silu(gate.float()) * up.float()).to(gate.dtype)

    def softmax(self, x: Tensor) -> Tensor:
        self.calls["softmax"] += 1
        return torch.softmax(x, 1)

    def flash_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Any = None,
        bias: Any = None,
        *,
        scale: float = 0.0,
        causal: str = "none",
    ) -> Tensor:
        self.calls["flash_attention " + ("mask" if mask is not None else "bias" if bias is not None else causal)] += 1
        read = torch.arange(q.shape[1], device=q.device) * k.shape[1] // q.shape[1]
        scores = q.float() @ k[:, read].float().transpose(2, 3) * (scale or q.shape[3] ** -0.5)
        if causal == "upper_left":
            unseen = torch.ones_like(scores, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(unseen, float("-inf"))
        scores = scores if mask is None else scores.masked_fill(~mask, float("-inf"))
        scores = scores if bias is None else scores + bias
        made: Tensor = torch.nan_to_num(torch.softmax(scores, 3)) @ v[:, read].float()
        return made.to(q.dtype).contiguous()


def _dim(name: str) -> list[str]:
    return ["fact", name]


def _declare(*tensors: str, scalars: tuple[str, ...] = (), attributes: tuple[Any, ...] = ()) -> dict[str, Any]:
    """An operator of tensors as "x RD", "bias? N" where it may be left out, "out! MN" where a call makes it.

    A dtype that is not the variable T stands behind: "mask? MN bool".
    """
    told: dict[str, tuple[str, int]] = {}
    found = []
    for text in tensors:
        name, dims, dtype = (*text.split(), "T")[:3]
        flags = {"optional": "?" in name, "output": "!" in name}
        name = name.rstrip("?!")
        found.append({"name": name, "dtype": dtype, "shape": [_dim(d) for d in dims], **flags})
        for axis, dim in enumerate(dims):
            if not flags["output"] and not flags["optional"]:
                told.setdefault(dim, (name, axis))
    bound = [{"dim": d, "tensor": t, "axis": a, "value": _dim(".extent")} for d, (t, a) in told.items()]
    return {
        "documentation": "",
        "bound": bound,
        "dtypes": {"T": ["f32", "bf16", "f16"]},
        "tensors": found,
        "scalars": [{"name": s, "dtype": "f32", "default": 0.0 if s == "scale" else 1e-5} for s in scalars],
        "attributes": [{"name": n, "choices": c} for n, c in attributes],
    }


_DECLARED = {
    "gemm": _declare(
        "a MK",
        "b KN",
        "bias? N",
        "residual? MN",
        "out! MN",
        attributes=(("activation", ["none", "relu", "gelu", "gelu_tanh", "silu"]), ("math", ["ieee", "tf32"])),
    ),
    "rms_norm": _declare("x RD", "weight D", "residual? RD", "out! RD", "residual_out!? RD", scalars=("eps",)),
    "layer_norm": _declare("x RD", "weight D", "bias D", "out! RD", scalars=("eps",)),
    "silu_mul": _declare("gate RD", "up RD", "out! RD"),
    "softmax": _declare("x RD", "out! RD"),
    "flash_attention": _declare(
        "q BHMD",
        "k BGND",
        "v BGND",
        "mask? BHMN bool",
        "bias? BHMN",
        "out! BHMD",
        scalars=("scale",),
        attributes=(("causal", ["none", "upper_left", "lower_right"]),),
    ),
}
