"""Triton kernels in a library: attention beside torch's, and the host time of calls beside Triton's JIT.

Usage: python benchmarks/triton_kernels.py [--parts attention,calls] [--rounds N] [--json FILE] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import importlib.util
import itertools
import json
import math
import random
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from gpu_race import Contender, race
from gpu_tables import Verdict, render_verdicts
from native import build_launches
from stats import markdown

__all__ = ["main"]

BATCH = 200
"""Calls before a synchronisation: fewer than a stream can hold, so that no call waits for the GPU."""
_KERNELS = Path(__file__).resolve().parents[1] / "examples" / "triton_package" / "templates" / "kernels.py"
_BARE, _JIT = "bare cuLaunchKernel", "JIT from Python"
_C, _PYTHON = "library from C", "library from Python"
_WARMUP = 3

Way = Callable[[int], float]
"""Makes so many calls, and returns ns per call."""


def attention(rounds: int) -> list[dict[str, Any]]:
    """µs of flash attention forward in interleaved rounds: the installed library's, and that of torch's backends."""
    cases = itertools.product((128, 64, 256), (4096, 8192, 16384), (False, True))
    return [_attention(width, tokens, causal, rounds) for width, tokens, causal in cases]


def _attention(width: int, tokens: int, causal: bool, rounds: int) -> dict[str, Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from aot_tune import ops

    shape = (16384 // tokens, 2048 // width, tokens, width)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    out, mode = torch.empty_like(q), "upper_left" if causal else "none"

    def ours(_: int) -> object:
        return ops.flash_attention(q, k, v, causal=mode, out=out, stream=torch.cuda.current_stream().cuda_stream)

    def theirs(backend: Any) -> Callable[[int], torch.Tensor]:
        def run(_: int) -> torch.Tensor:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        return run

    answer: dict[str, Any] = {"width": width, "tokens": tokens, "causal": causal}
    answer["kernel"] = ops.explain("flash_attention", q=q, k=k, v=v, out=out, causal=mode).get("kernel")
    contenders = [Contender("aot_tune", ours, 1)]
    ours(0)
    for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        try:
            off = float((out.float() - theirs(backend)(0).float()).abs().max())
            contenders.append(Contender(name, theirs(backend), 1))
        except RuntimeError as error:  # the backend does not take the problem
            answer[f"no {name}"] = str(error).splitlines()[0][:200]
        else:
            answer["difference"] = max(off, answer.get("difference", 0.0))
    answer["us"] = race(contenders, rounds)
    print(f"  {width} {tokens} {mode}: { {n: round(statistics.median(t), 1) for n, t in answer['us'].items()} }",
          file=sys.stderr, flush=True)  # fmt: skip
    return answer


def calls(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Host ns per call of the operators of examples/triton_package, for each of `rounds` rounds."""
    from triton_package import ops

    spec = importlib.util.spec_from_file_location("kernels", _KERNELS)
    assert spec is not None
    assert spec.loader is not None
    kernels = importlib.util.module_from_spec(spec)
    sys.modules["kernels"] = kernels
    spec.loader.exec_module(kernels)
    library = ctypes.CDLL(str(next(Path(ops.__file__).parent.rglob("lib*.so"))))
    with tempfile.TemporaryDirectory() as folder:
        probe = ctypes.CDLL(str(build_launches(Path(folder))))
    return {name: _rounds(_ways(name, ops, kernels, library, probe), rounds) for name in ("rms_norm", "swiglu")}


def _ways(name: str, ops: ModuleType, kernels: ModuleType, library: Any, probe: Any) -> dict[str, Way]:
    """A call on one row, through the library and by a launch of the same function with the same config."""
    norm = name == "rms_norm"
    columns = 4096 if norm else 14336
    first, out = (torch.randn(1, columns, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    second = torch.randn(*((columns,) if norm else (1, columns)), device="cuda", dtype=torch.bfloat16)
    told = ops.explain(name, first, second, out=out)
    variants = next(o for o in ops.manifest()["operators"] if o["name"] == name)["variants"]
    config = dict(next(v["config"] for v in variants if v["name"] == told["variant"]))
    config["BLOCK"] = 1024 if told["kernel"] == "generic" else 4096 if norm else 16384
    if not norm and told["kernel"] != "generic":
        config["num_warps"] = 16
    strides = (columns, columns) if norm else (columns, columns, columns)
    given = (out, first, second, *strides, *((1, columns, 1e-5) if norm else (columns,)))
    function: Any = getattr(kernels, name)
    while not hasattr(function, "params"):  # what chooses configs is not part of the launch
        function = function.fn
    made, launch = function[(1,)](*given, **config), function[(1,)]
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    capsules = [t.__dlpack__() for t in (first, second, out)]
    views = [ctypes.c_void_p(_pointer(capsule)) for capsule in capsules]
    slots = _slots(made.src.signature, given)
    bare = (ctypes.c_void_p(made.function), 1, 32 * made.metadata.num_warps, made.metadata.shared,
            (ctypes.c_uint64 * len(slots))(*slots), len(slots), stream)  # fmt: skip
    scalar = (ctypes.c_float(1e-5),) if norm else ()
    entry = ctypes.cast(getattr(library, f"triton_package_{name}"), ctypes.c_void_p)
    call, in_c = getattr(ops, name), probe.launches_scaled if norm else probe.launches_plain
    for loop in (in_c, probe.launches_bare):
        loop.restype = ctypes.c_double
    return {
        _BARE: lambda count: _checked(probe.launches_bare(*bare, ctypes.c_int64(count))),
        _C: lambda count: (capsules, _checked(in_c(entry, *views, *scalar, stream, ctypes.c_int64(count))))[1],
        _PYTHON: _loop(lambda: call(first, second, out=out)),
        _JIT: _loop(lambda: launch(*given, **config)),
    }


def _pointer(capsule: object) -> int:
    """The address of the DLTensor in a capsule, which owns it."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    found = get(capsule, b"dltensor")
    assert isinstance(found, int)
    return found


def _slots(signature: Mapping[str, str], given: Sequence[Any]) -> list[int]:
    """The bits of each parameter of a compiled kernel, for a bare launch."""
    found = []
    for kind, value in zip(signature.values(), given, strict=False):
        if isinstance(value, torch.Tensor):
            found.append(value.data_ptr())
        elif kind == "fp32":
            found.append(struct.unpack("<I", struct.pack("<f", value))[0])
        elif kind != "constexpr":
            found.append(value)
    return [*found, 0, 0]  # neither kernel has scratch memory


def _loop(call: Callable[[], object]) -> Way:
    def run(count: int) -> float:
        began = time.perf_counter_ns()
        for _ in range(count):
            call()
        return (time.perf_counter_ns() - began) / count

    return run


def _checked(ns: float) -> float:
    if not ns >= 0:
        raise RuntimeError("a call fails")
    return ns


def _rounds(ways: Mapping[str, Way], rounds: int) -> dict[str, list[float]]:
    """In each round, each way has a turn of one batch, in a new order."""
    generator, taken = random.Random(0), {name: list[float]() for name in ways}
    for number in range(rounds + _WARMUP):
        order = list(ways)
        generator.shuffle(order)
        for name in order:
            torch.cuda.synchronize()
            spent = ways[name](BATCH)
            if number >= _WARMUP:
                taken[name].append(spent)
    torch.cuda.synchronize()
    return taken


def _ratio(us: Mapping[str, Sequence[float]], other: str) -> float:
    """Our speed over the other's: the mean of the paired logarithms, as a ratio."""
    return math.exp(statistics.fmean(math.log(o / t) for o, t in zip(us[other], us["aot_tune"], strict=True)))


def _of_attention(answers: Sequence[Mapping[str, Any]]) -> tuple[list[Verdict], str]:
    told, rows, names = [], [], list(dict.fromkeys(n for a in answers for n in a["us"] if n != "aot_tune"))
    for a in answers:
        ratios = {n: _ratio(a["us"], n) for n in a["us"] if n != "aot_tune"}
        what = f"{a['width']}, {a['tokens']} tokens{', causal' if a['causal'] else ''}"
        if a["width"] == 128:
            wanted = [(n, 1.0) for n in ("flash",) if n in ratios]
            wanted += [(min(ratios, key=lambda n: ratios[n]), 0.75)] if ratios else []
            for n, least in wanted:
                told.append(Verdict(f"{what}, against torch's {n}", f">= {least:g} x", f"{ratios[n]:.3f} x",
                                    ratios[n] >= least))  # fmt: skip
        medians = [f"{statistics.median(a['us'][n]):.1f}" if n in a["us"] else "" for n in ("aot_tune", *names)]
        rows.append((what, str(a["kernel"]), *medians, *(f"{ratios[n]:.3f}" if n in ratios else "" for n in names)))
    return told, markdown(("width", "kernel", "aot_tune", *names, *(f"x {n}" for n in names)), 1, rows)


def _of_calls(answers: Mapping[str, Mapping[str, Sequence[float]]]) -> tuple[list[Verdict], str]:
    told, rows = [], []
    for name, ns in answers.items():
        for way, most in ((_C, 150), (_PYTHON, 1000)):
            extra = statistics.median(a - b for a, b in zip(ns[way], ns[_BARE], strict=True))
            what = f"{name}: {way}, beyond a {_BARE}"
            told.append(Verdict(what, f"<= {most} ns", f"{extra:.0f} ns", extra <= most))
        rows += [(name, way, f"{statistics.median(taken):.0f}", f"{min(taken):.0f}") for way, taken in ns.items()]
    return told, markdown(("operator", "call", "median", "least"), 1, rows)


PARTS: dict[str, tuple[Callable[[int], Any], Callable[[Any], tuple[list[Verdict], str]], str, int]] = {
    "attention": (attention, _of_attention, "Attention, µs", 11),
    "calls": (calls, _of_calls, "Host time of a call, ns", 51),
}
"""What measures a part, what makes its table, the table's title, and the number of rounds."""


def main() -> int:
    """Run, print the tables, and write the requested files. A part that fails takes no other with it; status 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)} (default all)")
    parser.add_argument("--rounds", type=int, help="turns of each contender (default 11) and way to call (51)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured to a file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to a file")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"unknown parts: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    import triton

    torch.set_grad_enabled(False)
    about = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes"),
        "gpu": torch.cuda.get_device_properties(0).name,
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    found: dict[str, Any] = {}
    told, tables = list[Verdict](), list[str]()
    for part in parts:
        measured, shown, title, rounds = PARTS[part]
        try:
            answers = measured(options.rounds or rounds)
            verdicts, table = shown(answers)
            found[part] = answers
            told += verdicts
            tables.append(f"### {title}\n\n{table}")
        except Exception as error:
            told.append(Verdict(f"part {part}", "measured", f"{type(error).__name__}: {str(error)[-300:]}", False))
    head = ", ".join(f"{key} {value}" for key, value in about.items())
    text = "\n\n".join([head, f"### Requirements\n\n{render_verdicts(told)}", *tables]) + "\n"
    print(text)
    if options.markdown is not None:
        options.markdown.write_text(text)
    if options.json is not None:
        options.json.write_text(json.dumps({"about": about, "parts": found}, indent=1) + "\n")
    return int(len(found) < len(parts))


if __name__ == "__main__":
    sys.exit(main())
