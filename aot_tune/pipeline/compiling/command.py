"""What `aot-tune compile` does: plans without CMake, compiles every candidate, and judges the outcome."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from aot_tune.pipeline.compiling.every_candidate import compile_every_candidate
from aot_tune.pipeline.session import Session
from aot_tune.plan.compile_settings import PLAIN, CompileSettings
from aot_tune.plan.library_plan import Request, make_plan
from aot_tune.spec.load_operators import roots_with_bundled
from aot_tune.support.progress import Progress

__all__ = ["compile_operators"]


def compile_operators(
    operators: Sequence[str],
    *,
    templates: Sequence[str] = (),
    options: Mapping[str, str],
    compiled_with: CompileSettings = PLAIN,
    as_json: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> bool:
    """Compile every candidate and print the results. Returns whether every kernel has one that compiles.

    Args:
        operators: names; all of the template roots if empty.
        templates: template roots; the bundled ones if empty.
        options: options of a build. They win over the environment.
        compiled_with: how sources are compiled, as CMake would say it.
        as_json: print the results as JSON to standard output, and all other lines to standard error.

    Raises:
        AotTuneError: for mistakes that are found before anything is compiled.
    """
    roots = roots_with_bundled(templates)
    named = tuple(operators) or tuple(sorted(_own_operators(templates)))
    request = Request(
        name="compiled",
        prefix="compiled",
        header="compiled.h",
        operators=named,
        templates=roots,
        options={**options, "AOT_TUNE_MODE": "compile"},
        compile=compiled_with,
    )
    plan, paths, _ = make_plan(request, environment)
    paths = msgspec.structs.replace(paths, compile=plan.compile.with_more(paths.compile))
    progress = Progress(sys.stderr if as_json else None)
    for line in (*plan.summary(), *paths.compilers):
        progress.line(line)
    session = Session(plan, paths, progress)
    try:
        found = compile_every_candidate(session)
    finally:
        session.close()
    if as_json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    faulty = [k for k in found if k.is_lost or (plan.options.strict and k.is_faulty)]
    return not faulty


def _own_operators(templates: Sequence[str]) -> set[str]:
    """The operators of a project's own roots. The bundled root only serves templates that include its files."""
    return {f.name for t in templates if t != "bundled" for f in Path(t).iterdir() if (f / "operator.py").is_file()}
