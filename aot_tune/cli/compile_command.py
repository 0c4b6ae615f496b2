"""`aot-tune compile`: all candidates of some targets, without a device."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from aot_tune.cli.source_options import add_source_options, source_options

__all__ = ["add_commands"]


def add_commands(commands: Any) -> None:
    """Add the command to the parser."""
    every = commands.add_parser(
        "compile",
        help="render and compile every candidate; needs no device",
        description="Render and compile every candidate of the operators for the targets. For each kernel the table "
        "shows "
        "what fits, what spills and what fails. One config of each Triton kernel runs in Triton's interpreter. The "
        "exit "
        "status is 1 if a kernel has no candidate that compiles.",
    )
    every.add_argument("operators", nargs="*", metavar="OPERATOR", help="default: all below the template roots")
    every.add_argument(
        "--templates",
        action="append",
        default=[],
        metavar="DIR",
        help="template root, as TEMPLATES of aot_tune_add_library; may be repeated; default: the bundled operators",
    )
    every.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="TARGET",
        help="what to compile for, such as cuda-sm_90a; may be repeated; default: the best of this machine",
    )
    every.add_argument("--filter", default="", metavar="PATTERN", help="as AOT_TUNE_FILTER, such as 'gemm/*'")
    every.add_argument("--jobs", default="", metavar="COUNT", help="as AOT_TUNE_JOBS")
    every.add_argument("--cache", default="", choices=("rw", "ro", "fresh", "off"), help="as AOT_TUNE_CACHE")
    every.add_argument("--cache-dir", default="", metavar="DIR", help="as AOT_TUNE_CACHE_DIR")
    add_source_options(every)
    every.add_argument("--strict", action="store_true", help="exit status 1 if anything fails, or a result is wrong")
    every.add_argument("--json", action="store_true", help="print the result of each kernel as JSON")
    every.set_defaults(run=_compile)


def _compile(given: argparse.Namespace) -> int:
    from aot_tune.pipeline.compiling.command import compile_operators
    from aot_tune.support.interrupts import end_with_the_build

    options = {
        "AOT_TUNE_TARGETS": ";".join(given.target),
        "AOT_TUNE_FILTER": given.filter,
        "AOT_TUNE_JOBS": given.jobs,
        "AOT_TUNE_CACHE": given.cache,
        "AOT_TUNE_CACHE_DIR": given.cache_dir and str(Path(given.cache_dir).expanduser().absolute()),
        "AOT_TUNE_STRICT": "1" if given.strict else "",
    }
    with end_with_the_build():
        well = compile_operators(
            given.operators,
            templates=given.templates,
            options={name: value for name, value in options.items() if value},
            compiled_with=source_options(given),
            as_json=given.json,
        )
    return 0 if well else 1
