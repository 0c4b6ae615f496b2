"""A user's operators under torch.ops, by Python and by the shim: schemas, values, graphs, files, wrong calls."""

import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from environments import ROOT
from torch_library import NAME, load_module, own_module, rows, shim_cache

from aot_tune.torch import Registered, ShimError, TorchError, register

Tensor = Any
ARGUMENTS = (
    "Tensor(a!) x, Tensor w, Tensor? bias=None, Tensor(b!)? calls=None, *, float a, float b=0.5, int steps=2, "
    'int small=1, bool negate=False, float? cap=None, str kind="plain", str times="one"'
)
SCHEMAS = {
    "blend": {
        "default": f"blend({ARGUMENTS}) -> Tensor",
        "all_outputs": f"blend.all_outputs({ARGUMENTS}) -> (Tensor, Tensor, Tensor)",
        "out": f"blend.out({ARGUMENTS}, Tensor(c!) total, Tensor(d!)? doubled=None, Tensor(e!)? least=None) -> ()",
    },
    "spread": {
        "default": "spread(Tensor x, *, SymInt count) -> (Tensor, Tensor)",
        "out": "spread.out(Tensor x, *, SymInt count, Tensor(a!) out, Tensor(b!) heads) -> ()",
    },
    "cast": {
        "default": "cast(Tensor x, *, Tensor(a!) y) -> Tensor",
        "out": "cast.out(Tensor x, *, Tensor(a!) y, Tensor(b!) back) -> ()",
    },
}
CALLS: dict[str, Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "blend.default": lambda: ((rows(4, 6), rows(6)), {"a": 2.0}),
    "blend.default of all": lambda: (
        (rows(4, 6, dtype=torch.bfloat16), rows(6, dtype=torch.bfloat16), None, torch.arange(4, dtype=torch.int32)),
        {"a": 2.0, "b": 1.5, "steps": 3, "small": 4, "negate": True, "kind": "relu", "times": "three"},
    ),
    "blend.all_outputs": lambda: ((rows(4, 6), rows(6), rows(6, seed=1)), {"a": 2.0}),
    "blend.all_outputs of columns": lambda: ((rows(6, 4).t(), rows(6)), {"a": 2.0}),
    "blend.all_outputs of leading columns": lambda: ((rows(6, 4).t().unflatten(0, (2, 2)), rows(6)), {"a": 2.0}),
    "blend.out": lambda: ((rows(4, 6), rows(6)), {"a": 2.0, "total": rows(4), "least": rows(4)}),
    "spread.default": lambda: ((rows(20),), {"count": 3}),
    "spread.out": lambda: ((rows(20),), {"count": 3, "out": rows(10, 3), "heads": rows(3)}),
    "cast.default": lambda: ((rows(20),), {"y": rows(20, dtype=torch.float16)}),
    "cast.out": lambda: ((rows(20),), {"y": rows(20, dtype=torch.bfloat16), "back": rows(20)}),
}


@pytest.fixture(scope="module")
def module(once: Any) -> Any:
    return load_module(own_module(once))


@pytest.fixture(scope="module", params=["python", "shim"])
def registered(module: Any, request: pytest.FixtureRequest) -> Iterator[Registered]:
    with shim_cache(request.config):
        yield register(module, f"own_{request.param}", shim=request.param == "shim")


@pytest.fixture
def space(registered: Registered) -> Any:
    return getattr(torch.ops, registered.namespace)


def blended(x: Tensor, w: Tensor, bias: Tensor | None = None, **given: Any) -> Tensor:
    """The definition of `blend`, in float64."""
    given = (
        {"b": 0.5, "steps": 2, "small": 1, "negate": False, "cap": float("inf")}
        | {"kind": "plain", "times": "one"}
        | given
    )
    y = given["a"] * x.double() * w.double() + given["b"] * given["steps"] + given["small"]
    y = y if bias is None else y + bias.double()
    y = y.clamp(max=given["cap"])
    y = -y if given["negate"] else y
    y = y.relu() if given["kind"] == "relu" else y
    return y * {"one": 1, "two": 2, "three": 3}[given["times"]]


def test_schemas_are_those_of_the_functions(space: Any, registered: Registered) -> None:
    assert registered.operators == ("blend", "cast", "spread")
    assert registered.shim == registered.namespace.endswith("shim")
    found = {
        name: {o: str(getattr(getattr(space, name), o)._schema) for o in getattr(space, name).overloads()}
        for name in SCHEMAS
    }
    want = {n: {o: f"{registered.namespace}::{text}" for o, text in some.items()} for n, some in SCHEMAS.items()}
    assert found == want


@pytest.mark.parametrize("name", CALLS)
def test_torch_finds_nothing_wrong(space: Any, name: str) -> None:
    operator, overload = name.split(" ", maxsplit=1)[0].split(".")
    arguments, given = CALLS[name]()
    torch.library.opcheck(getattr(getattr(space, operator), overload), arguments, given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_in_place_and_made(space: Any, dtype: torch.dtype) -> None:
    near: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    variations: tuple[dict[str, Any], ...] = (
        {"a": 2.0},
        {"a": -0.5, "b": 3.25, "steps": -7, "small": 255, "cap": 230.0, "times": "two"},
        {"a": 1.0, "negate": True, "kind": "relu", "times": "three"},
    )
    for seed, given in enumerate(variations):
        x, w, bias = (rows(*s, dtype=dtype, seed=seed) for s in ((5, 9), (9,), (9,)))
        want = blended(x, w, bias, **given)
        changed, calls = x.clone(), torch.arange(5, dtype=torch.int32)
        version = changed._version
        total, doubled, least = space.blend.all_outputs(changed, w, bias, calls, **given)
        assert changed._version == version + 1
        torch.testing.assert_close(changed.double(), want, **near)
        torch.testing.assert_close(total.double(), want.sum(1), rtol=1e-2, atol=1e-3)
        torch.testing.assert_close(doubled.double(), 2 * want, **near)
        torch.testing.assert_close(least.double(), want.amin(1), **near)
        assert calls.tolist() == [1, 2, 3, 4, 5]
        assert (total.dtype, doubled.dtype, doubled.is_contiguous()) == (torch.float32, dtype, True)
        turned = space.blend.all_outputs(x.t().contiguous().t(), w, bias, **given)[1]
        assert (turned.t().is_contiguous(), torch.equal(turned, doubled)) == (True, True)


def test_leading_dims_are_one_axis(space: Any, module: Any) -> None:
    flat, w = rows(6, 5), rows(5)
    want = space.blend.all_outputs(flat.clone(), w, a=2.0)
    for lead in ((2, 3), (6, 1, 1), (1, 2, 3)):
        x = flat.clone().view(*lead, 5)
        made = space.blend.all_outputs(x, w, a=2.0)
        torch.testing.assert_close(made, tuple(t.view(*lead, *t.shape[1:]) for t in want))
        torch.library.opcheck(space.blend.all_outputs, (flat.clone().view(*lead, 5), w), {"a": 2.0})
        total = torch.empty(lead)
        space.blend.out(flat.clone().view(*lead, 5), w, a=2.0, total=total)
        assert torch.equal(total, made[0])
    assert space.blend(flat[0].clone(), w, a=2.0).shape == ()
    turned, x, total = rows(3, 2, 5).transpose(0, 1), rows(2, 3, 5), rows(3, 2)
    for wrong in (lambda: space.blend(turned, w, a=1.0), lambda: space.blend.out(x, w, a=1.0, total=total)):
        with pytest.raises(module.ArgumentValueError, match="leading dims"):
            wrong()
        with pytest.raises(Exception, match="leading dims"):
            torch.compile(wrong, fullgraph=True, backend="eager")()


def test_compiled_in_one_graph(space: Any) -> None:
    def model(x: Tensor, w: Tensor, count: int) -> tuple[Tensor, ...]:
        total = space.blend(x, w, a=2.0, times="two")
        out, heads = space.spread(torch.cat([total, x.sum(1)]), count=count)
        return x * 1, total.sin(), out + 1, heads

    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    graphs = 0
    for number, (r, d, count) in enumerate(((9, 6, 3), (16, 5, 2), (25, 33, 7))):
        x, w = rows(r, d, seed=number), rows(d, seed=number)
        changed, same = x.clone(), x.clone()
        got, want = compiled(changed, w, count), model(same, w, count)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(changed, same)
        assert not torch.equal(changed, x)
        if number == 0:
            graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs  # sizes are symbols of the one graph


def test_exported_and_read_again(space: Any) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            total = space.blend(x + 1, x[0], a=0.5, kind="relu")
            return total, space.spread(x[:, 0], count=3)[0]

    half = torch.export.Dim("half", min=5, max=512)  # of which a quarter is no 1, which torch would take for fixed
    exported = torch.export.export(Model(), (rows(20, 6),), dynamic_shapes=({0: 2 * half},))
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for r in (10, 34):
        torch.testing.assert_close(loaded(rows(r, 6)), Model()(rows(r, 6)))


WRONG: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "rank": (lambda s: s.blend(rows(3, 4), rows(4, 1), a=1.0), "ArgumentValueError", "'w' has 2 axes, wanted 1"),
    "dtype": (lambda s: s.blend(rows(2, 4).double(), rows(4), a=1.0), "ArgumentTypeError", "tensor 'x'"),
    "complex": (lambda s: s.spread(torch.zeros(4, dtype=torch.cfloat), count=1), "ArgumentTypeError", "tensor 'x'"),
    "dtypes": (lambda s: s.blend(rows(2, 4), rows(4).bfloat16(), a=1.0), "ArgumentTypeError", "tensor 'w'"),
    "extent": (lambda s: s.blend(rows(2, 4), rows(5), a=1.0), "ArgumentValueError", "tensor 'w'"),
    "odd": (lambda s: s.spread(rows(7), count=1), "ArgumentValueError", "tensor 'x'"),
    "negative": (lambda s: s.spread(rows(8), count=-1), "ArgumentValueError", "count|K"),
    "attribute": (lambda s: s.blend(rows(2, 4), rows(4), a=1.0, kind="no"), "ArgumentValueError", "'kind' is 'no'"),
    "output": (
        lambda s: s.spread(rows(8), count=1, out=rows(3, 1), heads=rows(1)), "ArgumentValueError", "tensor 'out'"
    ),
    "gradient": (
        lambda s: s.spread(rows(8).requires_grad_(), count=1), "ArgumentValueError", "requires a gradient.*no_grad"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_are_refused_when_a_graph_is_traced(space: Any, name: str) -> None:
    call, kind, words = WRONG[name]
    with pytest.raises(Exception, match=f"(?s){kind}.*({words})"):
        torch.compile(lambda: call(space), fullgraph=True, backend="eager")()
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: torch.func.grad(lambda x: f(x).sum())(x),
        lambda f, x: torch.func.jvp(f, (x,), (x,)),
        lambda f, x: torch.vmap(f)(x[None]),
        lambda f, x: torch.func.functionalize(f)(x),
    ],
    ids=["grad", "jvp", "vmap", "functionalize"],
)
def test_transforms_are_refused(space: Any, module: Any, transform: Any) -> None:
    with pytest.raises(module.CallError, match=r"spread: .*transform of torch\.func"):
        transform(lambda x: space.spread(x, count=2)[0], rows(8))


def test_what_torch_keeps_of_tensors(space: Any, module: Any) -> None:
    """Negative bits are resolved, tangents are refused, tensors without versions are taken."""
    negated = torch.randn(8, dtype=torch.cfloat).conj().imag
    assert negated.is_neg()
    assert torch.equal(space.spread(negated, count=1)[1], negated[:4:4].clone())
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(rows(8), rows(8))  # type: ignore[no-untyped-call]
        with pytest.raises(module.ArgumentValueError, match="tensor 'x' carries a forward-mode gradient"):
            space.spread(dual, count=1)
    with torch.inference_mode():
        x = rows(4, 6)
        space.blend(x, rows(6), a=1.0)
    space.blend(x, rows(6), a=1.0)
    leaf = rows(8).requires_grad_()
    with torch.no_grad():
        assert not space.spread(leaf, count=1)[0].requires_grad
    doubled = leaf * leaf  # keeps leaf
    with torch.no_grad():
        space.cast(rows(8, seed=3), y=leaf)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        doubled.sum().backward()  # type: ignore[no-untyped-call]


def test_registering_again(module: Any, registered: Registered) -> None:
    assert register(module, registered.namespace) is registered
    other = ModuleType("other")
    with pytest.raises(TorchError, match="is not a module of a tuned library"):
        register(other)
    vars(other).update({name: value for name, value in vars(module).items() if name != "__tables__"})
    with pytest.raises(ShimError, match="has no tables that this shim can read"):
        register(other, "own_other", shim=True)
    assert register(other, f"{registered.namespace}_other", shim=False).operators == registered.operators
    with pytest.raises(TorchError, match="has the operators of tested_in_torch already"):
        register(other, registered.namespace)
    for name in ("aten", "mkldnn", "a b", ""):
        with pytest.raises(TorchError, match="is not a namespace for operators"):
            register(module, name)
    with pytest.raises(TorchError, match="backward has a function for 'blent'"):
        register(module, "own_more", backward={"blent": lambda call, gradient: {}})
    with pytest.raises(TorchError, match="'blend' can have no backward"):
        register(module, "own_more", backward={"blend": lambda call, gradient: {}})
    with pytest.raises(TorchError, match=r"registered as 'own_.*' already, without this backward for spread"):
        register(module, registered.namespace, backward={"spread": lambda call, first, second: {}})


def test_a_process_ends_well(module: Any) -> None:
    """The namespace is the module's by default, and torch forgets operators when Python ends."""
    script = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests")!r})
import torch
from pathlib import Path
from types import ModuleType
from torch_library import load_module
import aot_tune.torch
made = aot_tune.torch.register(load_module(Path({module.__file__!r}), "package.sub.{NAME}"), shim=False)
print(made.namespace, torch.ops.package_sub.spread(torch.ones(4), count=1)[0].tolist())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "package_sub [[1.0], [1.0]]\n"), done.stderr
