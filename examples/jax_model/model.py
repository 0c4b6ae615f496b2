"""A feed-forward layer of aot_tune's operators in JAX: compiled, trained by a custom rule, exported.

It needs a library with handlers for XLA: `AOT_TUNE_XLA_FFI=1 pip install --no-build-isolation .`
"""

from __future__ import annotations

import sys
from functools import partial

import aot_tune.ops as kernels
import jax
import jax.numpy as jnp

import aot_tune.jax

ops = aot_tune.jax.register(kernels)


@jax.jit
def feed_forward(x, norm, gate, up, down):
    normed = ops.rms_norm(x, norm, eps=1e-6)
    hidden = ops.silu_mul(ops.gemm(normed, gate), ops.gemm(normed, up))
    return ops.gemm(hidden, down.T, residual=x, layouts={"b": (1, 0)})


@jax.custom_vjp
def silu_mul(gate, up):
    return ops.silu_mul(gate, up)


def silu_mul_forward(gate, up):
    return ops.silu_mul(gate, up), (gate, up)


def silu_mul_backward(kept, gradient):
    gate, up = kept
    sigmoid = jax.nn.sigmoid(gate)
    return gradient * up * sigmoid * (1 + gate * (1 - sigmoid)), gradient * gate * sigmoid


silu_mul.defvjp(silu_mul_forward, silu_mul_backward)


def export(function, *arguments):
    targets = [f"{ops.namespace}.{name}" for name in ops]
    checks = [jax.export.DisabledSafetyCheck.custom_call(target) for target in targets]
    return jax.export.export(function, disabled_checks=checks)(*arguments)


def reference(x, norm, gate, up, down):
    product = partial(jnp.matmul, precision="highest")
    normed = x * jax.lax.rsqrt(jnp.square(x).mean(1, keepdims=True) + 1e-6) * norm
    return product(jax.nn.silu(product(normed, gate)) * product(normed, up), down.T) + x


def main():
    keys = jax.random.split(jax.random.key(0), 5)
    width, hidden = 64, 128
    shapes = ((width, hidden), (width, hidden), (width, hidden))
    weights = [jax.random.normal(k, s) / s[0] ** 0.5 for k, s in zip(keys, shapes, strict=False)]
    weights = [jnp.ones(width), *weights]
    (rows,) = jax.export.symbolic_shape("rows")
    exported = export(feed_forward, jax.ShapeDtypeStruct((rows, width), jnp.float32), *weights)
    for count in (1, 10, 33):
        x = jax.random.normal(keys[4], (count, width))
        for run in (feed_forward, exported.call):
            error = jnp.abs(run(x, *weights) - reference(x, *weights)).max()
            assert error < 1e-4, error
    gate, up = jax.random.normal(keys[3], (2, 10, width))
    for argument in (0, 1):
        found = jax.jit(jax.grad(lambda *g: jnp.square(silu_mul(*g)).sum(), argument))(gate, up)
        wanted = jax.grad(lambda g, u: jnp.square(jax.nn.silu(g) * u).sum(), argument)(gate, up)
        assert jnp.allclose(found, wanted, rtol=1e-4, atol=1e-4)
    print("all agree")


if __name__ == "__main__":
    sys.exit(main())
