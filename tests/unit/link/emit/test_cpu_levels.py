"""A library with variants for several levels of CPUs: which one serves, and what is said where none may."""

from __future__ import annotations

import json

import forked
import linked
import pytest
from odd_operators import LEVELS

from aot_tune.compile import native_targets

SCRIPT = """
ops = linked.load_module(Path({module!r}))
one = np.zeros((2, 2), np.float32)
told = ops.explain("levels", one, one)
print(json.dumps([told["target"], told["device"], float(np.from_dlpack(ops.levels(one, one))[0, 0])]))
"""

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


def test_each_level_is_served_by_its_own_variant(odd: linked.Built) -> None:
    """AOT_TUNE_CPU_LEVEL lowers the level, and never raises it above what the CPU has, which is the default."""
    here = max(t.level for t in native_targets() if t.family == "cpu")
    spelled = {"": here, "x86-64-v4-bf16": 5, "cpu-x86-64-v4-amx": 6, **LEVELS, **{str(n): n for n in LEVELS.values()}}
    for wanted, level in spelled.items():
        used = min(level, here)
        target = next(f"cpu-x86-64-{name}" for name, number in LEVELS.items() if number == used)
        said = forked.python(SCRIPT.format(module=str(odd.module)), AOT_TUNE_CPU_LEVEL=wanted)
        assert json.loads(said) == [target, f"cpu level {used}", used]


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
