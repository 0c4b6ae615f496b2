"""Triton kernels of rows in 8 bits, in Triton's interpreter: prints each call, and what is wrong with it, if anything.

`TRITON_INTERPRET=1 python quantized_interpreted.py`
"""

import sys
import tempfile
from pathlib import Path

import msgspec
from triton_bundled import HOPPER, TEMPLATES, declared

from aot_tune.bench.host.odd_problems import derived_checks
from aot_tune.bench.protocol.messages import InterpreterAnswer, InterpreterRequest
from aot_tune.bench.worker import interpreted_call
from aot_tune.spec import Kernel, Operator, dtype_index
from aot_tune.spec.load_operators import load_operator


def verdicts(op: Operator, kernel: Kernel, t: str, q: str, folder: Path) -> list[str]:
    """What a kernel's last config comes to on some of the checks that a build has for it."""
    assert kernel.triton is not None
    asked, answered, found = folder / "asked", folder / "answered", []
    sys.argv[1:] = [str(asked), str(answered)]
    pins = (dtype_index("T") == op.dtypes["T"].index(t), dtype_index("Q") == op.dtypes["Q"].index(q))
    for check in derived_checks(op, (*pins, *kernel.requires), most=9):
        request = InterpreterRequest(
            folder=str(TEMPLATES / op.name),
            kernel=kernel.name,
            target=HOPPER.name,
            config=dict(list(kernel.configs(HOPPER.facts))[-1]),
            check=check,
            inspections={f"{op.name}/{kernel.name}": {HOPPER.name: declared(kernel.triton.function)}},
            roots=[str(TEMPLATES)],
            seed=5,
        )
        asked.write_bytes(msgspec.json.encode(request))
        interpreted_call.main()
        answer = msgspec.json.decode(answered.read_bytes(), type=InterpreterAnswer)
        found.append(f"{answer.verdict}: {kernel.name} of {op.name} on {check.place}: {answer.text}")
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("quantize_rows", "silu_mul_quantize", "rms_norm_quantize"):
            op = load_operator(TEMPLATES / name)
            for kernel, t, q in (("triton_rows", "f16", "f8e4m3"), ("triton_groups", "f32", "i8")):
                print(*verdicts(op, op.kernel(kernel), t, q, Path(folder)), sep="\n")


if __name__ == "__main__":
    main()
