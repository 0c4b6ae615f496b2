"""Halide as a backend of aot_tune: a pipeline in Python becomes an object, and C++ around it fills its buffers."""

import os
import re
import sys
import time
from importlib.metadata import version
from pathlib import Path

from aot_tune.compile import Object, Toolchain, run, toolchain_for

AVX2 = "-sse41-avx-f16c-fma-avx2"
AVX512 = f"{AVX2}-avx512-avx512_skylake"
FEATURES = {
    "cpu-x86-64": "",
    "cpu-x86-64-v2": "-sse41",
    "cpu-x86-64-v3": AVX2,
    **dict.fromkeys(("cpu-x86-64-v4", "cpu-x86-64-v4-bf16", "cpu-x86-64-v4-amx"), AVX512),
}
PIPELINE = re.compile(r'R"halide\((.*?)\)halide"', re.DOTALL)
LAUNCH = re.compile(r"\baot_tune_\w+(?=_launch\()")


class Halide(Toolchain):
    name = "halide"
    templates = Path(__file__).parent / "templates"

    def __init__(self, environ):
        super().__init__(environ)
        self.cxx = toolchain_for("cxx", environ)

    def targets(self):
        return tuple(target for target in self.cxx.targets() if target.name in FEATURES)

    def identity(self):
        return {"version": version("halide"), **{f"host {name}": text for name, text in self.cxx.identity().items()}}

    def recipe(self, target):
        return {"features": FEATURES[target.name], "host": self.cxx.recipe(target)}

    def compile(self, source, target, out, timeout, options):
        begin, folder = time.monotonic(), out.parent
        (folder / "pipeline.py").write_text(PIPELINE.search(source)[1])
        made = self.cxx.compile(source, target, folder / "glue.o", timeout, options)
        if made.status != "ok":
            return made
        kept = [f"--keep-global-symbol={LAUNCH.search(source)[0]}_{name}" for name in ("workspace", "launch")]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # also where pip builds in isolation
        for argv in (
            [sys.executable, "-m", "halide_backend.generate", FEATURES[target.name], "pipeline.py", "pipeline.o"],
            ["ld", "-r", "-o", "all.o", "glue.o", "pipeline.o"],
            ["objcopy", *kept, "all.o", out.name],
        ):
            done = run(argv, folder=folder, environ=environ, timeout=timeout)
            if done.code:
                status = "timeout" if done.timed_out else "compile-failed"
                lasting = done.code > 0 and "pipeline.py" in argv  # else the author is not at fault
                log = done.output or f"error: {argv[0]} ends with status {done.code}"
                return Object(status=status, log=log, seconds=time.monotonic() - begin, lasting=lasting)
        return Object(status="ok", seconds=time.monotonic() - begin, includes=made.includes, resources=made.resources)
