"""A user's operators under jax.jit, with all that operators may have: `jax_own.py MODULE`; see torch_library."""

import sys
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


def normal(*shape: int, dtype: Any = jnp.float32, seed: int = 0) -> Array:
    return jnp.asarray(np.random.default_rng([seed, *shape]).standard_normal(shape), dtype)


def near(got: Array, want: Array, tolerance: float = 2e-6) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def blended(x: Array, w: Array, bias: Any = 0.0, *, a: float, b: float = 0.5, steps: int = 2, small: int = 1) -> Array:
    return (a * x.astype(jnp.float32) * w.astype(jnp.float32) + b * steps + small + bias).astype(x.dtype)


def in_place(ops: JaxOperators, module: Any) -> None:
    """What is changed in place is returned; what was passed stays as it is, unless it is donated."""
    x, w, calls = normal(4, 6), normal(6), jnp.arange(4, dtype=jnp.int32)
    before = np.array(x)
    changed, total = jax.jit(lambda x, w: ops.blend(x, w, a=2.0))(x, w)
    near(changed, blended(x, w, a=2.0))
    near(total, changed.sum(1), 1e-5)
    changed, counted, total = ops.blend(x, w, calls=calls, a=2.0)
    near(changed, blended(x, w, a=2.0))
    assert counted.tolist() == [1, 2, 3, 4]
    assert calls.tolist() == [0, 1, 2, 3]
    assert np.array_equal(x, before)
    again = jax.jit(lambda x, w: ops.blend(x, w, a=2.0)[0] + x)(x, w)
    near(again, blended(x, w, a=2.0) + x)
    given = jnp.array(x)
    place = given.unsafe_buffer_pointer()
    made = jax.jit(lambda x, w: ops.blend(x, w, a=2.0)[0], donate_argnums=0)(given, w)
    near(made, blended(x, w, a=2.0))
    assert made.unsafe_buffer_pointer() == place
    assert given.is_deleted()


def scalars(ops: JaxOperators, module: Any) -> None:
    """Of every kind, as constants of the program."""
    x, w = normal(3, 4), normal(4)
    near(ops.blend(x, w, a=0.5, b=1e10, steps=-2, small=255)[0], blended(x, w, a=0.5, b=1e10, steps=-2, small=255))
    near(ops.blend(x, w, a=np.float64(0.5), negate=np.bool_(True))[0], -blended(x, w, a=0.5))
    near(ops.blend(x, w, a=1.0, cap=0.5, kind="relu", times="three")[0],
         3 * jnp.clip(blended(x, w, a=1.0), 0, 0.5))  # fmt: skip
    assert jnp.isnan(ops.blend(x, w, a=float("nan"))[0]).all()
    types, values = module.ArgumentTypeError, module.ArgumentValueError
    fails(lambda: ops.blend(x, w), types, "blend: missing a required argument: 'a'")
    fails(lambda: ops.blend(x, w, a=1.0, small=256), values, "blend: scalar 'small' is 256, wanted one from 0 to 255")
    fails(lambda: ops.blend(x, w, a=1.0, steps=1.5), types, "blend: scalar 'steps' is 1.5, wanted a whole number")
    fails(lambda: ops.blend(x, w, a=1.0, negate=1), types, "blend: scalar 'negate' is 1, wanted True or False")


def dims_and_extents(ops: JaxOperators, module: Any) -> None:
    """A dim that a number tells, extents that are worked out, a dtype that is that of an output."""
    x = normal(22)
    out, heads = jax.jit(lambda x: ops.spread(x, count=4))(x)
    near(out, x[:11, None] * jnp.arange(4.0) + x[11:, None])
    near(heads, x[:11:4])
    values = module.ArgumentValueError
    fails(lambda: ops.spread(x[1:], count=4), values, "spread: tensor 'x' has extent 21 at axis 0, wanted 20")
    fails(lambda: ops.spread(x, count=-1), values, "spread: the dim K would be -1, below 0")
    fails(lambda: jax.jit(lambda x, n: ops.spread(x, count=n))(x, 3), module.ArgumentTypeError, "'count' is traced")
    for dtype in (jnp.float16, jnp.bfloat16, jnp.float32):
        made, back = jax.jit(lambda x, d=dtype: ops.cast(x, y=jax.ShapeDtypeStruct(x.shape, d)))(x)
        near(made, x.astype(dtype))
        near(back, x)
    fails(lambda: ops.cast(x), module.ArgumentTypeError, "cast: missing a required.*'y'")
    fails(lambda: ops.cast(x, y=True), module.ArgumentTypeError, "output 'y' is True, wanted a jax.ShapeDtypeStruct")
    wrong = jax.ShapeDtypeStruct((21,), jnp.float16)
    fails(lambda: ops.cast(x, y=wrong), values, "cast: tensor 'y' has extent 21 at axis 0, wanted 22")


def leading_dims(ops: JaxOperators, module: Any) -> None:
    """They are one axis for the library, in tensors that are changed in place and in results too."""
    w = normal(6)
    for lead in ((), (1,), (2, 3), (2, 1, 3), (0, 4)):
        x, calls = normal(*lead, 6), jnp.zeros(lead, jnp.int32)
        run = jax.jit(lambda x, w, c: ops.blend(x, w, calls=c, a=2.0, doubled=True, least=True))
        changed, counted, total, doubled, least = run(x, w, calls)
        want = blended(x, w, a=2.0)
        near(changed, want)
        assert (counted.shape, counted.dtype) == (lead, jnp.int32)
        assert (counted == 1).all()
        near(total, want.sum(-1), 1e-5)
        near(doubled, 2 * want)
        near(least, want.min(-1))
    given = normal(2, 3, 6)
    want, place = blended(given, w, a=2.0), given.unsafe_buffer_pointer()
    made = jax.jit(lambda x, w: ops.blend(x, w, a=2.0)[0], donate_argnums=0)(given, w)
    near(made, want)
    assert made.unsafe_buffer_pointer() == place
    x, values = normal(2, 3, 6), module.ArgumentValueError
    fails(lambda: ops.blend(x, w, calls=jnp.zeros(6, jnp.int32), a=2.0), values,
          r"blend: 'calls' has the leading dims \(6,\), 'x' has \(2, 3\); wanted the same of both")  # fmt: skip
    fails(lambda: ops.blend(jnp.float32(1), w, a=2.0), values, "blend: tensor 'x' has 0 axes, wanted 2")
    fails(lambda: ops.blend(x, w[None], a=2.0), values, "blend: tensor 'w' has 2 axes, wanted 1")
    fails(lambda: ops.spread(normal(2, 22), count=4), values, "spread: tensor 'x' has 2 axes, wanted 1")


def exported(ops: JaxOperators, module: Any) -> None:
    (half,) = jax.export.symbolic_shape("half")
    checks = [jax.export.DisabledSafetyCheck.custom_call(f"{ops.namespace}.spread")]
    run = jax.jit(lambda x: ops.spread(x, count=2))
    made = jax.export.export(run, disabled_checks=checks)(jax.ShapeDtypeStruct((2 * half,), jnp.float32))
    for count in (2, 34):
        for got, want in zip(made.call(normal(count)), ops.spread(normal(count), count=2), strict=True):
            near(got, want)
    (size,) = jax.export.symbolic_shape("size")
    fails(lambda: jax.export.export(run, disabled_checks=checks)(jax.ShapeDtypeStruct((size,), jnp.float32)),
          module.ArgumentValueError, "spread: tensor 'x' has extent size at axis 0")  # fmt: skip
    batch, rows = jax.export.symbolic_shape("batch, rows")
    checks = [jax.export.DisabledSafetyCheck.custom_call(f"{ops.namespace}.blend")]
    run = jax.jit(lambda x, w: ops.blend(x, w, a=2.0))
    described = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((batch, rows, 6), (6,))]
    made = jax.export.export(run, disabled_checks=checks)(*described)
    given = normal(2, 5, 6), normal(6)
    for got, want in zip(made.call(*given), ops.blend(*given, a=2.0), strict=True):
        near(got, want)


def nothing_is_written(ops: JaxOperators, module: Any) -> None:
    """A call that the library refuses leaves what it would change as it is."""
    x, w = normal(4, 6), normal(6)
    keep = np.array(x)
    described = [jax.ShapeDtypeStruct((4, 6), jnp.float32), jax.ShapeDtypeStruct((5,), jnp.float32)]
    made = jax.ffi.ffi_call(f"{ops.namespace}.blend", described, input_output_aliases={0: 0})
    wrong = jax.jit(lambda x, w: made(x, w, a=np.float32(2)))
    fails(lambda: jax.block_until_ready(wrong(x, w)), jax.errors.JaxRuntimeError, "blend: tensor 'total'")
    assert np.array_equal(x, keep)
    described[1] = jax.ShapeDtypeStruct((4,), jnp.float32)
    for given, words in (({}, "blend: scalar 'a' is missing"), ({"a": np.float32(2)}, "'x' is changed in place, but")):
        apart = jax.jit(lambda x, w, g=given: jax.ffi.ffi_call(f"{ops.namespace}.blend", described)(x, w, **g))
        fails(lambda call=apart: jax.block_until_ready(call(x, w)), jax.errors.JaxRuntimeError, words)


def load(path: Path) -> tuple[JaxOperators, Any]:
    module = load_module(path, path.name.partition(".")[0])
    return register(module), module


SCENARIOS = (
    in_place, scalars, dims_and_extents, leading_dims, exported,
    nothing_is_written,
)  # fmt: skip

if __name__ == "__main__":
    tell_scenarios(SCENARIOS, load)
