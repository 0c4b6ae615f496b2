"""`aot_tune.torch.patch` on small models, with a library that computes by torch: what is called, and what comes out."""

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from patched_models import Library, Tensor, bert, llama, near, tokens

from aot_tune.torch import Patched, TorchError
from aot_tune.torch import patch as patch_model

nn = torch.nn
MODELS: dict[str, Callable[..., Any]] = {"llama": llama, "bert": bert}
CALLED = {
    "llama": {"gemm none": 15, "rms_norm": 3, "rms_norm residual": 2, "silu_mul": 2, "flash_attention upper_left": 2},
    "bert": {"gemm none": 12, "gemm gelu": 2, "layer_norm": 6, "flash_attention none": 2},
}


def patch(model: nn.Module, library: Library, **given: Any) -> Patched:
    """Patch, and forget the calls by which modules were compared with operators."""
    made = patch_model(model, library, **given)
    library.calls.clear()
    return made


def logits(model: Any, **given: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(**{"input_ids": tokens(), **given}).logits
    return found


def forwards(model: Any) -> list[str]:
    return [name for name, module in model.named_modules() if "forward" in vars(module)]


@pytest.mark.parametrize("name", MODELS)
def test_models_compute_the_same_also_with_padding(name: str) -> None:
    mask = torch.ones(2, 9, dtype=torch.long)
    for padded in (0, 4):
        mask[1, :padded] = 0
        model, library = MODELS[name](torch.float32 if padded else torch.bfloat16), Library()
        want = logits(model, attention_mask=mask)
        with patch(model, library) as patched:
            near(logits(model, attention_mask=mask)[mask.bool()], want[mask.bool()])
        masked = {f"{k.split()[0]} mask" if padded and k.startswith("flash") else k: n for k, n in CALLED[name].items()}
        assert dict(library.calls) == masked
        assert sum(made.served for made in patched.replaced) == sum(masked.values())


@pytest.mark.parametrize("name", MODELS)
def test_undo_leaves_nothing_behind(name: str) -> None:
    model = MODELS[name]()
    want, before = logits(model), {n: id(p) for n, p in model.state_dict(keep_vars=True).items()}
    shown, config = repr(model), model.config.to_dict()
    patched = patch(model, Library())
    assert forwards(model)
    assert {n: id(p) for n, p in model.state_dict(keep_vars=True).items()} == before
    assert repr(model) == shown
    assert model.config.to_dict() == config
    patched.undo()
    patched.undo()
    assert forwards(model) == []
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(logits(model), want)
    with pytest.raises(ZeroDivisionError), patch(model, Library()):
        raise ZeroDivisionError
    assert forwards(model) == []


def test_tokens_that_a_model_writes() -> None:
    model, library = llama(), Library()
    given: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    want = model.generate(tokens(), **given)
    with patch(model, library):
        assert torch.equal(model.generate(tokens(), **given), want)
    assert library.calls["flash_attention upper_left"] == 2  # the tokens given
    assert library.calls["flash_attention none"] == 10  # each of the next, with a cache


@pytest.mark.parametrize("training", [True, False])
def test_what_needs_gradients_goes_to_the_modules(training: bool) -> None:
    model, library = llama().train(training), Library()
    want = torch.autograd.grad(model(tokens()).logits.square().sum(), list(model.parameters()))
    with patch(model, library) as patched:
        got = torch.autograd.grad(model(tokens()).logits.square().sum(), list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert sum(made.served for made in patched.replaced) == library.calls.total() == 0
    assert sum(made.passed for made in patched.replaced) > 0


class Holds(nn.Module):
    """A model of parts, whose forward torch compiles."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.parts(x)
        return found


def test_a_graph_knows_when_the_model_is_as_before() -> None:
    model = Holds(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16)).eval().requires_grad_(False)
    library, x = Library(), torch.randn(3, 8)
    want = model(x)
    with patch(model, library):
        compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
        near(compiled(x), want)
        assert set(library.calls) == {"gemm gelu", "layer_norm"}
        counted = library.calls.total()
    near(compiled(x), want)
    assert library.calls.total() == counted


def test_exported_with_the_operators() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.LayerNorm(16)).eval().requires_grad_(False)
    library, x = Library(), torch.randn(3, 8)
    with patch(model, library):
        for strict in (True, False):
            exported = torch.export.export(model, (x,), strict=strict)
            assert f"{library.__name__.partition('.')[0]}.gemm" in str(exported.graph)
            torch.testing.assert_close(exported.module()(x), model(x))


class Shifted(nn.Module):
    """A norm by one plus its weight, as Gemma has it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(8)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, (8,), 1 + self.weight, self.eps)


ShiftedRMSNorm = type("ShiftedRMSNorm", (Shifted,), {})
OuterRMSNorm = type(
    "OuterRMSNorm",
    (Shifted,),
    {"forward": lambda self, x: x / (x.square().mean(-1, keepdim=True).sqrt() + self.eps) * self.weight},
)


class Own(nn.Linear):
    """A linear layer with something of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


LEFT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a class of its own": (lambda: Own(8, 8), "the model: a class of its own, derived from Linear"),
    "dtype": (lambda: nn.Linear(8, 8).double(), "its parameters are float64"),
    "device": (lambda: nn.Linear(8, 8, device="meta"), "its parameters are on meta"),
    "axes": (lambda: nn.LayerNorm((8, 8)), "it normalises 2 axes"),
    "no bias": (lambda: nn.LayerNorm(8, bias=False), "it has no bias, which the library's layer_norm has"),
    "other weight": (ShiftedRMSNorm, "the model: its result is not that of rms_norm"),
    "other epsilon": (OuterRMSNorm, "its result is not that of rms_norm"),
    "no weight": (lambda: nn.RMSNorm(8, elementwise_affine=False), "it has no weight of one axis"),
    "dim": (nn.Softmax, "its dim is None"),
    "all in one": (lambda: nn.MultiheadAttention(8, 2), "torch computes all of it in one function"),
    "unknown": (lambda: nn.Sequential(nn.Embedding(3, 4), nn.Dropout()), "no operator is for: 1 Dropout, 1 Embedding"),
    "eager attention": (lambda: llama(attn_implementation="eager"), "attention is eager, only sdpa is replaced"),
    "gate": (lambda: llama(hidden_act="gelu").model.layers[0].mlp, "the model: its activation is not silu"),
}  # fmt: skip


def test_what_is_left_is_named() -> None:
    for name, (make, words) in LEFT.items():
        with patch(make(), Library()) as patched:
            assert words in str(patched), name


def test_rows_that_only_the_generic_variant_serves() -> None:
    def kernel(operator: str, tensors: tuple[Any, ...]) -> str:
        few = tensors[0].shape[0] < 16
        return "cublaslt" if operator == "layer_norm" else "generic" if operator == "softmax" or few else "tiles"

    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Softmax(-1)).eval().requires_grad_(False)
    library = Library(kernel=kernel)
    with patch(model, library) as patched:
        for rows in (1, 15, 16, 100, 5000):
            near(model(torch.ones(rows, 8)), plain(model, rows))
        assert [str(made.rows) for made in patched.replaced] == ["16 up", "any"]
        assert [made.kind for made in patched.replaced] == ["Linear", "Softmax"]
        assert (patched.replaced[0].served, patched.replaced[0].passed) == (3, 2)
        assert patched.replaced[1].served == 0
        assert "1: the vendor's library serves such calls, as torch's own" in str(patched)
    with patch(model, library, tuned=False) as patched:
        assert [str(made.rows) for made in patched.replaced] == ["any", "any", "any"]
    with patch(model, library, operators=["softmax"]) as patched:
        assert [made.kind for made in patched.replaced] == ["Softmax"]
        assert "gemm is not among operators=" in str(patched)


def plain(model: nn.Sequential, rows: int) -> Tensor:
    x = torch.ones(rows, 8)
    for module in model:
        x = type(module).forward(module, x)
    return x


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.barrier: Any = None

    def forward(self, q: Tensor, k: Tensor, **given: Any) -> Tensor:
        if self.barrier is not None:
            self.barrier()
        return nn.functional.scaled_dot_product_attention(q, k, k, **given)


def test_torchs_function_in_a_forward() -> None:
    torchs, model, library = nn.functional.scaled_dot_product_attention, Attends().eval(), Library()
    q, k = torch.randn(2, 4, 3, 8), torch.randn(2, 4, 5, 8)
    mask = torch.ones(3, 5, dtype=torch.bool).tril()
    served: tuple[dict[str, Any], ...] = (
        {}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": mask}, {"attn_mask": torch.randn(2, 1, 3, 5)},
    )  # fmt: skip
    with patch(model, library) as patched:
        for given in served:
            near(model(q, k, **given), torchs(q, k, k, **given))
        near(model(q, k[:, :2], enable_gqa=True), torchs(q, k[:, :2], k[:, :2], enable_gqa=True))
        assert library.calls.total() == patched.replaced[0].served == 6
        for given in ({"scale": 0.0}, {"scale": -1.0}, {"attn_mask": torch.randn(1, 2, 1, 3, 5)}):
            with contextlib.suppress(RuntimeError):  # of torch's own
                near(model(q, k, **given), torchs(q, k, k, **given))
        near(model(q[0], k[0]), torchs(q[0], k[0], k[0]))
        assert torch.equal(torch.vmap(model)(q[:, None], k[:, None])[:, 0], torchs(q, k, k))
        with pytest.raises(RuntimeError):
            model(q, k[..., :4])
        assert patched.replaced[0].served == 6
        assert nn.functional.scaled_dot_product_attention is torchs


def test_other_threads_have_torchs_function() -> None:
    model, library, inside, go = Attends().eval(), Library(), threading.Event(), threading.Event()
    q = torch.randn(1, 2, 3, 4)

    def wait() -> None:
        inside.set()
        go.wait(20)

    with patch(model, library):
        model.barrier = wait
        thread = threading.Thread(target=lambda: model(q, q))
        thread.start()
        assert inside.wait(20)
        nn.functional.scaled_dot_product_attention(q, q, q)
        assert library.calls.total() == 0
        go.set()
        thread.join()
        assert library.calls.total() == 1


def test_what_cannot_be_patched_or_undone() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(TorchError, match="no operator 'conv' replaces anything"):
        patch(model, Library(), operators=["conv"])
    with pytest.raises(TorchError, match="compiled already"):
        patch_model(torch.compile(model), Library())  # type: ignore[arg-type]
    patched = patch(model, Library())
    with patch(model, Library()) as again:
        assert "its forward has been replaced already" in str(again)
        assert str(again).startswith("nothing is replaced")
    assert forwards(model) == ["0"]
    model[0].forward = lambda x: x
    with pytest.raises(TorchError, match="these cannot be undone: 0"):
        patched.undo()
    del model[0].forward
    lacking, said = Library(), Library().signatures()["operators"]
    said = [{**one, "tensors": one["tensors"][1:]} if one["name"] == "softmax" else one for one in said]
    vars(lacking)["signatures"] = lambda: {"schema": 1, "operators": [one for one in said if one["name"] != "gemm"]}
    with patch(nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1)), lacking) as patched:
        assert "0: the library has no gemm" in str(patched)
        assert "1: the library's softmax is not the bundled one" in str(patched)
