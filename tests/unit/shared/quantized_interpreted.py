"""Triton kernels of rows in 8 bits, in Triton's interpreter: prints each call, and what is wrong with it, if anything.

`TRITON_INTERPRET=1 python quantized_interpreted.py`
"""

import tempfile
from dataclasses import replace
from pathlib import Path

from triton_bundled import HOPPER, TEMPLATES, declared

from aot_tune.bench.host.odd_problems import derived_checks
from aot_tune.bench.protocol.messages import InterpreterRequest
from aot_tune.bench.worker.interpreted_call import _InterpretedCall
from aot_tune.bench.worker.reference_results import write_truth
from aot_tune.render.triton.binding import resolved
from aot_tune.spec import Operator, dtype_index
from aot_tune.spec.load_operators import load_operator

SEED = 5


def faults(op: Operator, name: str, t: str, q: str) -> list[str]:
    """What a kernel's last config comes to on some of the checks that a build has for it."""
    kernel = op.kernel(name)
    assert kernel.triton is not None
    known = {HOPPER.name: declared(kernel.triton.function)}
    kernel = resolved(replace(kernel, triton=kernel.triton.inspected(known)), HOPPER.name)
    op = replace(op, kernels=(*(k for k in op.kernels if k.triton is None), kernel))
    pins = (dtype_index("T") == op.dtypes["T"].index(t), dtype_index("Q") == op.dtypes["Q"].index(q))
    found = []
    for check in derived_checks(op, (*pins, *kernel.requires), most=9):
        config = list(kernel.configs(HOPPER.facts))[-1]
        request = InterpreterRequest(
            folder="", kernel=name, target=HOPPER.name, config=config, check=check, inspections={},
            roots=[str(TEMPLATES)], seed=SEED,
        )  # fmt: skip
        call = _InterpretedCall(op, kernel, request)
        call.run()
        with tempfile.TemporaryDirectory() as folder:
            truth = Path(folder, "truth")
            write_truth(op, check, truth, SEED)
            fault = call.fault(truth)
        found.append(f"{fault or 'right'}: {name} of {op.name} on {check.place}")
    return found


def main() -> None:
    for folder in ("quantize_rows", "silu_mul_quantize", "rms_norm_quantize"):
        op = load_operator(TEMPLATES / folder)
        for name, t, q in (("triton_rows", "f16", "f8e4m3"), ("triton_groups", "f32", "i8")):
            for fault in faults(op, name, t, q):
                print(fault)


if __name__ == "__main__":
    main()
