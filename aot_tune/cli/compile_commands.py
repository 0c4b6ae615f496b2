"""The commands `aot-tune compile` and `try`: candidates, all or one. Their options for sources serve others too."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

from aot_tune.cli.explain_command import json_text
from aot_tune.plan.compile_settings import CompileSettings

_SOURCE_OPTIONS = {
    "include-directory": ("DIR", "folder of headers, as INCLUDE_DIRECTORIES of aot_tune_add_library"),
    "compile-definition": ("NAME[=VALUE]", "macro, as COMPILE_DEFINITIONS"),
    "compile-option": ("OPTION", "option of the compiler, as COMPILE_OPTIONS; write --compile-option=-O2"),
    "link-library": ("LIBRARY", "name or file, as LINK_LIBRARIES"),
}


def add_project(parser: Any) -> None:
    """Add the argument that names the project that a command builds."""
    parser.add_argument(
        "directory", nargs="?", type=Path, default=Path(), metavar="DIR",
        help="folder of the project, whose CMakeLists.txt calls aot_tune_add_library; default: the current folder",
    )  # fmt: skip


def add_repeated(parser: Any, flag: str, metavar: str, text: str) -> None:
    """Add an option that may be given several times. Its value is a list."""
    parser.add_argument(flag, action="append", default=[], metavar=metavar, help=text)


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Add the options, each of which may be repeated."""
    for name, (shown, text) in _SOURCE_OPTIONS.items():
        add_repeated(parser, f"--{name}", shown, f"{text}; may be repeated")


def add_template_roots(parser: Any, what: str = "template root") -> None:
    """Add the option for the folders of operators, which may be repeated."""
    text = f"{what}, as TEMPLATES of aot_tune_add_library; may be repeated; default: the bundled operators"
    add_repeated(parser, "--templates", "DIR", text)


def add_build_options(parser: Any) -> None:
    """Add what a build takes as options, too."""
    parser.add_argument("--filter", default="", metavar="PATTERN", help="as AOT_TUNE_FILTER, such as 'gemm/*'")
    parser.add_argument("--jobs", default="", metavar="COUNT", help="as AOT_TUNE_JOBS")
    parser.add_argument("--cache", default="", choices=("rw", "ro", "fresh", "off"), help="as AOT_TUNE_CACHE")
    parser.add_argument("--cache-dir", default="", metavar="DIR", help="as AOT_TUNE_CACHE_DIR")


def build_options(given: argparse.Namespace) -> dict[str, str]:
    """The values that were given, and the targets. Those that were not are empty."""
    return {
        "AOT_TUNE_TARGETS": ";".join(given.target),
        "AOT_TUNE_FILTER": given.filter,
        "AOT_TUNE_JOBS": given.jobs,
        "AOT_TUNE_CACHE": given.cache,
        "AOT_TUNE_CACHE_DIR": given.cache_dir and str(Path(given.cache_dir).expanduser().absolute()),
    }


def source_options(given: argparse.Namespace) -> CompileSettings:
    """The values that were given."""
    return CompileSettings(
        include_directories=tuple(str(Path(folder).absolute()) for folder in given.include_directory),
        definitions=tuple(given.compile_definition),
        options=tuple(given.compile_option),
        libraries=tuple(given.link_library),
    )


def add_compile(commands: Any) -> None:
    """Add the command to the parser."""
    every = commands.add_parser(
        "compile",
        help="render and compile every candidate; needs no device",
        description="Render and compile every candidate of the operators for the targets. For each kernel the table "
        "shows what fits, what spills and what fails. One config of each Triton kernel runs in Triton's interpreter. "
        "The exit status is 1 if a kernel has no candidate that compiles.",
    )
    every.add_argument("operators", nargs="*", metavar="OPERATOR", help="default: all below the template roots")
    add_template_roots(every)
    text = "what to compile for, such as cuda-sm_90a; may be repeated; default: the best of this machine"
    add_repeated(every, "--target", "TARGET", text)
    add_build_options(every)
    text = "compile only the first COUNT configs of each kernel"
    every.add_argument("--configs", type=int, default=0, metavar="COUNT", help=text)
    add_source_options(every)
    every.add_argument("--strict", action="store_true", help="exit status 1 if anything fails, or a result is wrong")
    every.add_argument("--json", action="store_true", help="print the result of each kernel as JSON")
    every.set_defaults(run=_compile)


def _compile(given: argparse.Namespace) -> int:
    from aot_tune.pipeline.every_candidate import compile_operators
    from aot_tune.support.interrupts import end_with_the_build

    options = build_options(given) | {"AOT_TUNE_STRICT": "1" if given.strict else ""}
    with end_with_the_build():
        well = compile_operators(
            given.operators,
            templates=given.templates,
            options={name: value for name, value in options.items() if value},
            compiled_with=source_options(given),
            configs=given.configs if given.configs > 0 else sys.maxsize,
            as_json=given.json,
        )
    return 0 if well else 1


def add_try(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "try",
        help="run one candidate again, by itself",
        description="Compile, verify and time one candidate. A build prints this command for each candidate that "
        "failed.",
    )
    parser.add_argument("operator", metavar="OPERATOR")
    parser.add_argument("candidate", metavar="CANDIDATE", help="its name in reports, such as packed_3fa2b1c9")
    parser.add_argument(
        "--problem",
        default="",
        help="such as 'M=16 N=4096 K=4096 +bias', or the check that failed, such as 'N=67, small integers'; default: "
        "all problems that it serves",
    )
    parser.add_argument("--target", default="", help="what it is compiled for; default: the best of this machine")
    add_template_roots(parser)
    parser.add_argument("--source", type=Path, metavar="FILE", help="write the rendered source there")
    add_source_options(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON, see docs/report.md")
    parser.set_defaults(run=_try)


def _try(given: argparse.Namespace) -> int:
    from aot_tune.pipeline.try_one import try_candidate
    from aot_tune.support.interrupts import end_with_the_build
    from aot_tune.support.progress import Progress

    with end_with_the_build():
        tried = try_candidate(
            given.operator,
            given.candidate,
            templates=given.templates,
            target=given.target,
            problem=given.problem,
            source=given.source,
            compiled_with=source_options(given),
            tell=partial(print, file=sys.stderr) if given.json else print,
            progress=Progress(sys.stderr if given.json else None),
        )
    if given.json:
        print(json_text(tried))
    return 0 if tried.well else 1
