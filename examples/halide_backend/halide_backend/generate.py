"""Compiles a pipeline: `python -m halide_backend.generate FEATURES pipeline.py pipeline.o`, in a process of its own."""

import sys
from pathlib import Path

import halide as hl


def generate(features: str, pipeline: str, out: str) -> None:
    names = {"hl": hl}
    try:
        exec(compile(Path(pipeline).read_text(), pipeline, "exec"), names)  # noqa: S102 - it is the author's
        target = hl.Target(f"x86-64-linux{features}-no_runtime-no_asserts-no_bounds_query")
        result = names[names["OUTPUT"]]
        inputs = [hl.Argument(names[name]) for name in names["INPUTS"]]
        result.compile_to({hl.OutputFileType.object: out}, inputs, "aot_halide", target)
    except Exception as error:
        line = getattr(error, "lineno", None) or (error.__traceback__.tb_next or error.__traceback__).tb_lineno
        sys.exit(f"{pipeline}:{line}: error: {type(error).__name__}: {error}")


generate(*sys.argv[1:])
