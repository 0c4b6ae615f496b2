"""A library with variants for several levels of CPUs: which one serves, and what is said where none may."""

from __future__ import annotations

import json

import forked
import linked
import pytest

NARROW = """
ops = linked.load_module(Path({module!r}))
def call(function, kind, code):
    on = linked_cuda.OnDevice
    x, out = np.ones(4, kind), np.full(4, 9, kind)
    try:
        function(on(x, (1, 0), code), out=on(out, (1, 0), code))
    except Exception as error:
        return type(error).__name__, str(error), bool((out == 9).all())
    return "", "", bool((out == 9).all())
print(json.dumps([call(ops.{name}, np.float32, 2), call(ops.{name}, np.uint16, 4)]))
"""


@pytest.mark.parametrize(
    ("name", "level", "kind", "message"),
    [
        (
            "narrow",
            "1",
            "ArgumentValueError",
            "cpu:0 has the architecture x86-64-v1, but this library is for cpu-x86-64, cpu-x86-64-v2 and needs x86",
        ),
        ("lone", "", "ArgumentTypeError", "tensors are on cpu:0 with T=bf16, for which this library has no variants; "),
    ],
)
def test_a_dtype_that_no_variant_of_a_level_takes_is_refused_before_anything_is_written(
    odd: linked.Built, name: str, level: str, kind: str, message: str
) -> None:
    said = forked.python(NARROW.format(module=str(odd.module), name=name), AOT_TUNE_CPU_LEVEL=level)
    served, refused = json.loads(said)
    assert served == ["", "", False]
    assert (refused[0], refused[2]) == (kind, True)
    assert refused[1].startswith(f"{name}: {message}")
