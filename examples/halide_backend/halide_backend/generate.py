"""Compiles a pipeline: `python -m halide_backend.generate FEATURES pipeline.py pipeline.o`, in a process of its own."""

import runpy
import sys
import traceback

import halide as hl


def generate(features: str, pipeline: str, out: str) -> None:
    try:
        names = runpy.run_path(pipeline, {"hl": hl})
        target = hl.Target(f"x86-64-linux{features}-no_runtime-no_asserts-no_bounds_query")
        result = names[names["OUTPUT"]]
        inputs = [hl.Argument(names[name]) for name in names["INPUTS"]]
        result.compile_to({hl.OutputFileType.object: out}, inputs, "aot_halide", target)
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == pipeline]
        line = getattr(error, "lineno", None) or (lines or [1])[0]
        sys.exit(f"{pipeline}:{line}: error: {type(error).__name__}: {error}")


generate(*sys.argv[1:])
