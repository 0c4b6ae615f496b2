"""AOT_TUNE_CHECK: results of variants beside those of the generic variant, which serves where they differ."""

import forked
import linked
import pytest

PRELUDE = """
ops = linked.load_module(Path({module!r}))

def gemm(m, scale=1.0, n=8, **options):
    return ops.gemm(np.full((m, 8), scale, np.float32), np.full((8, n), scale, np.float32), **options)[0, 0]
"""
DEFAULTS = (
    "aot_tune: ops.gemm declares no tolerance; AOT_TUNE_CHECK compares its floats by the default one, and its "
    "integers exactly\n"
)
LARGE = 1e3  # 8e6 is so much that 10 more are within the rounding of sums


def run(built: linked.Built, code: str, wanted: str, **environment: str) -> tuple[str, str]:
    """What a process of its own writes to stdout and stderr."""
    env = {"AOT_TUNE_CHECK": wanted, "AOT_TUNE_CPU_LEVEL": "2", **environment}
    return forked.run(PRELUDE.format(module=str(built.module)) + code, **env)


def told(call: str, variant: str, got: int, elements: int = 64) -> str:
    return (
        f"aot_tune: ops.gemm: {call}: variant {variant} differs from the generic variant plain: out[0, 0] is {got}, "
        f"wanted 8, give or take 0.0156; {elements} of {elements} elements differ too much. From now on, plain serves "
        "in its place. (AOT_TUNE_CHECK)\n"
    )


def test_the_generic_variant_serves_where_another_differs(built: linked.Built) -> None:
    code = """
import threading
for _ in range(3):
    thread = threading.Thread(target=lambda: print(gemm(8), gemm(4), gemm(8, n=6)))
    thread.start()
    thread.join()
print(gemm(64), gemm(64))
out = np.zeros((8, 16), np.float32)[:, ::2]
gemm(8, out=out)
print(out.min(), out.max(), out.base.min())
found = ops.explain("gemm", M=8, N=8, K=8)
print(found["variant"], found["why"], sep=": ")
"""
    out, said = run(built, code, "first")
    assert said == DEFAULTS + told("M=8 N=8 K=8", "small_2", 18) + told("M=64 N=8 K=8", "packed_2", 28, 512)
    why = "generic: AOT_TUNE_CHECK found other results of the variant that would serve"
    assert out == "8.0 8.0 8.0\n" * 3 + f"8.0 8.0\n8.0 8.0 0.0\nplain: {why}\n"
    out, said = run(built, "print(gemm(8), gemm(8))", "first", AOT_TUNE_FORCE="small_2")
    assert (out, said) == ("8.0 8.0\n", DEFAULTS + told("M=8 N=8 K=8", "small_2", 18))


@pytest.mark.parametrize(
    ("wanted", "results", "said"),
    [
        ("first", "18.0 18.0 18.0", ""),
        ("3", "18.0 18.0 8.0", told("M=8 N=8 K=8", "small_2", 18)),
        ("1", "8.0 8.0 8.0", told("M=8 N=8 K=8", "small_2", 18)),
        ("", "18.0 18.0 18.0", ""),
    ],
)
def test_which_calls_are_compared(built: linked.Built, wanted: str, results: str, said: str) -> None:
    code = f"gemm(8, {LARGE}), gemm(8, {LARGE})\nprint(gemm(8), gemm(8), gemm(8))" * (wanted == "3")
    code = code.replace(f", gemm(8, {LARGE})", "") if wanted == "3" else f"gemm(8, {LARGE})\nprint(*map(gemm, [8] * 3))"
    assert run(built, code, wanted) == (results + "\n", (DEFAULTS if wanted else "") + said)


def test_calls_from_c_are_compared(built: linked.Built) -> None:
    code = f"""
import ctypes
from dltensors import tensor_of
arrays = [np.ones((8, 8), np.float32) for _ in range(3)]
a, b, out = (tensor_of(x.ctypes.data, (1, 0), x.shape, None, (2, 32)) for x in arrays)
given = ctypes.byref(a), ctypes.byref(b), None, None, ctypes.byref(out), 0, None
print(ctypes.CDLL({str(built.library)!r}).aot_tune_gemm(*given), arrays[2].max())
"""
    assert run(built, code, "first") == ("0 8.0\n", DEFAULTS + told("M=8 N=8 K=8", "small_2", 18))


def test_nan_and_infinity_are_compared(built: linked.Built) -> None:
    code = "print(gemm(8, np.nan), gemm(8, np.inf), gemm(8))"
    assert run(built, code, "1") == ("nan inf 8.0\n", DEFAULTS + told("M=8 N=8 K=8", "small_2", 18))


def test_another_value_is_an_error_of_the_first_call(built: linked.Built) -> None:
    code = """
try:
    gemm(8)
except ops.CallError as error:
    print(error)
"""
    for value in ("0", "-1", "First", "1.5", "first,", "99999999999"):
        wanted = "wanted 'first' for the first call of each variant, or N for every N-th, or nothing"
        assert run(built, code, value) == (f"gemm: AOT_TUNE_CHECK is '{value}', {wanted}\n", "")


@pytest.mark.parametrize("wanted", ["first", "1", ""])
def test_numbers_beyond_what_an_input_may_have_are_an_error(odd: linked.Built, wanted: str) -> None:
    """With `first`, calls are looked at until one was right."""
    code = """
def pick(*numbers):
    try:
        return ops.pick(np.ones(5, np.float32), np.asarray(numbers, np.int32).reshape(-1, 4)[:, ::2])[0]
    except ops.ArgumentValueError as error:
        return error

for numbers in ((0, 9, 5, 9, 1, 9, 2, 9), (0, 9, 1, 9, -1, 9, 9, 9), (4, 9, 0, 9), (5, 9, 0, 9)):
    print(pick(*numbers))
"""
    out, _ = run(odd, code, wanted)
    wrong = [f"pick: places[{at}, wanted 0 to 4 (AOT_TUNE_CHECK)" for at in ("0, 1] is 5", "1, 0] is -1", "0, 0] is 5")]
    found = [*wrong[:2], "7.0", wrong[2]]
    assert out.splitlines() == {"1": found, "first": [*found[:3], "7.0"], "": ["7.0"] * 4}[wanted]


def test_a_call_that_cannot_be_compared_is_served_and_told(built: linked.Built) -> None:
    """There is memory for one result, not for a second one."""
    code = """
import resource
a, b, out = (np.ones((8, n), np.float32) for n in (8, 1 << 21, 1 << 21))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20),) * 2)
print(*(ops.gemm(a, b, out=out)[0, 0] != 1 for _ in range(2)))
"""
    out, said = run(built, code, "1")
    assert out == "True True\n"
    assert said.removeprefix(DEFAULTS).startswith("aot_tune: ops.gemm: AOT_TUNE_CHECK could not compare a call")
    assert said.count("could not compare") == 1


def test_calls_on_a_device_are_compared_on_the_host(standin: linked.Built) -> None:
    """A call in a capture is not: its stream has an odd handle."""
    code = "print(*(linked_cuda.call(ops, 8, 1, stream=s) for s in (1, 2, 2)), linked_cuda.call(ops, 512, 1))"
    out, said = run(standin, code, "first")
    assert out == "1300.0 2100.0 2100.0 100.0\n"
    first, second, *_ = said.splitlines()
    assert "ops.scale declares no tolerance" in first
    assert second.startswith(
        "aot_tune: ops.scale: N=8 T=f32: variant wide_90a differs from the generic variant plain_cuda: out[0] is 2300"
    )
