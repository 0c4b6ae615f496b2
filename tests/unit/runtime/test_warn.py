"""What a library says where it was tuned for others: AOT_TUNE_WARN=unseen, explain()'s threads and processors."""

import forked
import linked

PRELUDE = """
ops = linked.load_module(Path({module!r}))

def gemm(m, n=8, k=8, **options):
    return ops.gemm(np.ones((m, k), np.float32), np.ones((k, n), np.float32), **options)

def norm(m):
    return ops.rms_norm(np.ones((m, 2), np.float32), np.ones(2, np.float32))
"""
REMEDY = (
    "; what serves it is a guess. To tune what the program calls, run it once with AOT_TUNE_TRACE=calls.jsonl, then "
    "`aot-tune workload merge calls.jsonl -o workload.jsonl`, and build with AOT_TUNE_WORKLOAD=+workload.jsonl. "
    "(AOT_TUNE_WARN=unseen tells the first such call of each operator.)\n"
)


def run(built: linked.Built, code: str, **environment: str) -> tuple[str, str]:
    """What a process of its own writes to stdout and stderr."""
    return forked.run(PRELUDE.format(module=str(built.module)) + code, **environment)


def warned(built: linked.Built, code: str, wanted: str = "unseen", **environment: str) -> str:
    return run(built, code, AOT_TUNE_WARN=wanted, **{"AOT_TUNE_CPU_LEVEL": "2", **environment})[1]


def test_the_first_call_outside_of_what_was_measured_is_told(built: linked.Built) -> None:
    code = """
for m in (2, 64, 64, 33):
    gemm(m, activation="relu")  # no kind of its own
gemm(8, n=0)
gemm(8, k=0)
for m in (65, 66, 1):
    gemm(m, n=9, activation="relu")
    gemm(m, n=9, activation="relu")
norm(2)
norm(3)
"""
    where = "outside of what was measured for cpu-x86-64-v2: M is not within 2 to 64, N is not within 8 to 8"
    assert warned(built, code) == (
        f"aot_tune: ops.gemm: M=65 N=9 K=8 activation=relu: {where}{REMEDY}"
        f"aot_tune: ops.rms_norm: M=2 N=2: nothing of it was measured for cpu{REMEDY}"
    )
    assert warned(built, code, "") == ""
    assert run(built, code)[1] == ""


def test_a_table_of_another_level(built: linked.Built) -> None:
    said = warned(built, "gemm(8)", AOT_TUNE_CPU_LEVEL="3")
    assert said == f"aot_tune: ops.gemm: M=8 N=8 K=8: nothing of it was measured for cpu-x86-64-v3{REMEDY}"
    said = warned(built, "gemm(8)", AOT_TUNE_CPU_LEVEL="1")
    assert said == f"aot_tune: ops.gemm: M=8 N=8 K=8: nothing of it was measured for cpu{REMEDY}"


def test_another_value_is_an_error_of_the_first_call(built: linked.Built) -> None:
    code = """
for call in (lambda: gemm(8), lambda: norm(2), lambda: ops.explain("gemm", M=1, N=1, K=1)):
    try:
        call()
    except ops.CallError as error:
        print(error)
"""
    for value in ("1", "unseen,", "Unseen", "all"):
        text = f"AOT_TUNE_WARN is '{value}', wanted 'unseen', or nothing\n"
        assert run(built, code, AOT_TUNE_WARN=value) == (f"gemm: {text}rms_norm: {text}gemm: {text}", "")


def test_kinds_of_calls_and_regimes(standin: linked.Built) -> None:
    code = "for n in (8, 256, 1024): linked_cuda.call(ops, n, 1)\n"
    assert warned(standin, code) == ""
    outside = "outside of what was measured for cuda-sm_90a in the regime"
    for n, where in (
        (512, f'{outside} "short": N is not within 8 to 256'),
        (4096, f'{outside} "long": N is not within 1024 to 1024'),
        (8192, 'no calls of the regime "other" were measured for cuda-sm_90a'),
    ):
        said = warned(standin, code + f"linked_cuda.call(ops, {n}, 1)")
        assert said == f"aot_tune: ops.scale: N={n} T=f32: {where}{REMEDY}"
    code += "bf16 = lambda: linked_cuda.OnDevice(np.zeros(32, np.uint16)[:8], (2, 1), 4)\n"
    said = warned(standin, code + "ops.scale(bf16(), out=bf16())")
    where = "aot_tune: ops.scale: N=8 T=bf16: no calls of these dtypes and attributes were measured for cuda-sm_90a"
    assert said == where + REMEDY
