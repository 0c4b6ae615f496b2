"""The bundled operators under jax.jit against jax.numpy, on the default device: `jax_bundled.py MODULE`."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import jax
import jax.numpy as jnp
import numpy as np
from jax_processes import fails, tell_scenarios
from module_files import load_module

from aot_tune.jax import JaxOperators, register

Array = Any
DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)
TOLERANCE = {jnp.float32: 2e-5, jnp.bfloat16: 2e-2, jnp.float16: 3e-3}
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "none": lambda x: x,
    "relu": jax.nn.relu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "silu": jax.nn.silu,
}


def normal(*shape: int, dtype: Any = jnp.float32, seed: int = 0) -> Array:
    return jnp.asarray(np.random.default_rng([seed, *shape]).standard_normal(shape), dtype)


def near(got: Array, want: Array, dtype: Any) -> None:
    assert got.dtype == dtype
    assert got.shape == want.shape
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    np.testing.assert_allclose(got, want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * np.abs(want).max(initial=0))


def single(*arrays: Array | None) -> list[Array]:
    """As f32, in which references are computed."""
    return [None if a is None else a.astype(jnp.float32) for a in arrays]


def product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision="highest")


def products(ops: JaxOperators, module: Any) -> None:
    for seed, dtype in enumerate(DTYPES):
        a, b, bias, residual = (normal(*s, dtype=dtype, seed=seed) for s in ((7, 33), (33, 18), (18,), (7, 18)))
        fa, fb, fbias, fresidual = single(a, b, bias, residual)
        for name, activation in ACTIVATIONS.items():
            made = jax.jit(lambda *x, n=name: ops.gemm(*x, activation=n))(a, b, bias)
            near(made, activation(product(fa, fb) + fbias), dtype)
        near(ops.gemm(a, b), product(fa, fb), dtype)
        near(jax.jit(lambda a, b, r: ops.gemm(a, b, residual=r))(a, b, residual), product(fa, fb) + fresidual, dtype)
        x, y = normal(3, 5, 17, dtype=dtype), normal(3, 17, 9, dtype=dtype)
        near(jax.jit(ops.batched_gemm)(x, y), product(*single(x, y)), dtype)


def attention(ops: JaxOperators, module: Any) -> None:
    for dtype in DTYPES:
        q, k, v = (normal(2, h, n, 16, dtype=dtype, seed=h) for h, n in ((4, 5), (2, 9), (2, 9)))
        bias, mask = normal(2, 4, 5, 9, dtype=dtype), normal(2, 4, 5, 9) > -1
        fq, fk, fv, fbias = single(q, k, v, bias)
        fk, fv = jnp.repeat(fk, 2, axis=1), jnp.repeat(fv, 2, axis=1)
        scores = product(fq, fk.swapaxes(2, 3)) * 0.3
        seen = jnp.tril(jnp.ones((5, 9), bool), k=4)
        causal = product(jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=3), fv)
        near(jax.jit(lambda *t: ops.flash_attention(*t, causal="lower_right", scale=0.3))(q, k, v), causal, dtype)
        masked = product(jax.nn.softmax(jnp.where(mask, scores + fbias, -jnp.inf), axis=3), fv)
        given = jax.jit(lambda *t: ops.flash_attention(*t, scale=0.3))(q, k, v, mask, bias)
        near(given, masked, dtype)


def layouts(ops: JaxOperators, module: Any) -> None:
    """Transposed arrays are taken as they are: the program copies none."""
    a, weight = normal(16, 64), normal(48, 64)

    def run(a: Array, weight: Array) -> Array:
        return ops.gemm(a, weight.T, layouts={"b": (1, 0)})

    near(jax.jit(run)(a, weight), product(a, weight.T), jnp.float32)
    if jax.default_backend() == "cpu":  # elsewhere copies have many names
        text = jax.jit(run).lower(a, weight).compile().as_text()
        assert "copy" not in text, text
        assert "copy" in jax.jit(lambda a, w: ops.gemm(a, w.T)).lower(a, weight).compile().as_text()
    made = jax.jit(lambda a, b: ops.gemm(a, b, layouts={"out": (1, 0), "a": [0, 1]}))(a, weight.T)
    near(made, product(a, weight.T), jnp.float32)


def gradients(ops: JaxOperators, module: Any) -> None:
    x, y = normal(4, 8), normal(4, 8, seed=1)
    for transform in (jax.grad, jax.value_and_grad):
        fails(lambda t=transform: t(lambda x: ops.silu_mul(x, y).sum())(x), Exception, "silu_mul` cannot be diff")
    fails(lambda: jax.jvp(ops.softmax, (x,), (x,)), Exception, "softmax` cannot be differentiated")


def rows_of_vmap(ops: JaxOperators, module: Any) -> None:
    x = normal(3, 4, 8)
    for call in (lambda: jax.vmap(ops.softmax)(x), lambda: jax.jit(jax.vmap(jax.jit(ops.softmax)))(x)):
        fails(call, module.CallError, "softmax: it has no rule for jax.vmap; .*vmap_method='sequential'")
    each = register(module, vmap_method="sequential")
    near(jax.jit(jax.vmap(each.softmax))(x), jax.nn.softmax(x, axis=2), jnp.float32)
    weight = normal(8, 5)
    near(jax.vmap(each.gemm, (0, None))(x, weight), product(x, weight), jnp.float32)


def refused(made: Callable[..., Any], ops: JaxOperators, module: Any) -> None:
    a, b = normal(4, 6), normal(6, 5)
    values, types = module.ArgumentValueError, module.ArgumentTypeError
    fails(lambda: made(ops.gemm)(a, b.T), values, "gemm: tensor 'b' has extent 5 at axis 0, wanted 6")
    fails(lambda: made(ops.gemm)(a, b[0]), values, "gemm: tensor 'b' has 1 axes, wanted 2")
    fails(lambda: made(ops.gemm)(a, b.astype(jnp.int32)), types, "gemm: tensor 'b' is int32, wanted f32 or")
    fails(lambda: made(ops.gemm)(a, b.astype(jnp.bfloat16)), types, "gemm: tensor 'b' is bf16, tensor 'a' f32")
    fails(lambda: made(lambda a, b: ops.gemm(a, b, activation="no"))(a, b), values, "gemm: attribute 'activation'")
    fails(lambda: made(lambda a, b: ops.gemm(a, b, colour=1))(a, b), types, "gemm: .*'colour'.*activation")
    fails(lambda: made(ops.gemm)(a), types, "gemm: missing a required argument: 'b'")
    fails(lambda: made(lambda x: ops.layer_norm(x, eps="x"))(a), types, "layer_norm: scalar 'eps' is 'x'")
    fails(lambda: made(lambda x: ops.layer_norm(x, eps=1e39))(a), values, "layer_norm: scalar 'eps' is 1e")
    fails(lambda: made(lambda a, b: ops.gemm(a, b, layouts={"c": (0, 1)}))(a, b), values, "names 'c'")
    fails(lambda: made(lambda a, b: ops.gemm(a, b, layouts={"b": (0, 2)}))(a, b), values, "layout of tensor 'b'")


def wrong_calls(ops: JaxOperators, module: Any) -> None:
    """They raise when they are traced, with the names of operator and argument."""
    for made in (jax.jit, lambda function: function):
        refused(made, ops, module)
    a, types = normal(4, 6), module.ArgumentTypeError
    fails(lambda: jax.jit(lambda x, e: ops.layer_norm(x, eps=e))(a, 0.1), types, "scalar 'eps' is traced.*static_arg")
    fails(lambda: ops.nothing, AttributeError, "has no operator 'nothing'; it has .*gemm")


def wrong_programs(ops: JaxOperators, module: Any) -> None:
    """Calls that were made without this package are refused by the library when they run."""
    a, b = normal(4, 6), normal(6, 5)
    f32, result = jnp.float32, jax.ShapeDtypeStruct((4, 5), jnp.float32)

    def call(target: str, result: Any, *arrays: Array, **given: Any) -> Callable[[], Any]:
        made = jax.ffi.ffi_call(f"{ops.namespace}.{target}", result)
        return lambda: jax.block_until_ready(jax.jit(lambda *arrays: made(*arrays, **given))(*arrays))

    def told(words: str, *given: Any, **named: Any) -> None:
        fails(call(*given, **named), jax.errors.JaxRuntimeError, f"INVALID_ARGUMENT: .*{words}")

    near(call("gemm", result, a, b)(), product(a, b), jnp.float32)
    told("gemm: tensor 'b'.*wanted", "gemm", result, a, b[:3])
    told("gemm: tensor 'out'.*extent", "gemm", jax.ShapeDtypeStruct((4, 6), f32), a, b)
    told("gemm: tensor 'b'.*(f32|dtype|type)", "gemm", result, a, b.astype(jnp.int32))
    told("gemm: it got 1 arguments and 1 results, wanted 2 and 1", "gemm", result, a)
    told("gemm: it has no 'colour'", "gemm", result, a, b, colour=1)
    told("gemm: attribute 'activation' is 'no', wanted one of 'none', 'relu'", "gemm", result, a, b, activation="no")
    told("gemm: attribute 'activation' is no string", "gemm", result, a, b, activation=np.int64(1))
    told("gemm: '.tensors' has bits beyond", "gemm", result, a, b, **{".tensors": np.int64(1 << 20)})
    told("gemm: the layout of tensor 'b' is no order", "gemm", result, a, b, **{"b.layout": np.array([1, 1])})
    told("gemm: the layout of tensor 'b' is no i64", "gemm", result, a, b, **{"b.layout": np.array([1])})
    square = jax.ShapeDtypeStruct((4, 6), f32)
    told("layer_norm: scalar 'eps' is no scalar of f32", "layer_norm", square, a, eps=np.float64(1))


def load(path: Path) -> tuple[JaxOperators, Any]:
    module = load_module(path, "aot_tune.ops")
    return register(module), module


SCENARIOS = (
    products, attention, layouts, gradients, rows_of_vmap, wrong_calls,
    wrong_programs,
)  # fmt: skip

if __name__ == "__main__":
    tell_scenarios(SCENARIOS, load)
