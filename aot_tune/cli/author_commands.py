"""Commands of a kernel author: `init`, `compile`, `try`. Their options for templates and sources serve others too."""

from __future__ import annotations

import argparse
import keyword
import re
from pathlib import Path
from typing import Any

import jinja2

from aot_tune.plan.compile_settings import CompileSettings
from aot_tune.support.errors import BuildError, OptionError

__all__ = [
    "add_compile",
    "add_init",
    "add_repeated",
    "add_source_options",
    "add_template_roots",
    "add_try",
    "project_files",
    "source_options",
]

_SOURCE_OPTIONS = {
    "include-directory": ("DIR", "folder of headers, as INCLUDE_DIRECTORIES of aot_tune_add_library"),
    "definition": ("NAME[=VALUE]", "macro, as COMPILE_DEFINITIONS"),
    "compile-option": ("OPTION", "option of the compiler, as COMPILE_OPTIONS; write --compile-option=-O2"),
    "library": ("LIBRARY", "name or file, as LINK_LIBRARIES"),
}

_TEMPLATES = Path(__file__).parent / "project"
_PLACES = {
    "pyproject.toml": "pyproject.toml",
    "CMakeLists.txt": "CMakeLists.txt",
    "README.md": "README.md",
    "operator.py": "templates/axpy/operator.py",
    "axpy.cpp.j2": "templates/axpy/axpy.cpp.j2",
    "test_axpy.py": "tests/test_axpy.py",
}
"""Files of every project: the name of the template without its suffix, and the path in the project."""
_BESIDE = {
    "plain": {},
    "cuda": {"axpy.cu": "csrc/axpy.cu"},
    "triton": {"kernels.py": "templates/kernels.py"},
}
_TAKEN = frozenset(("all", "aot_tune", "clean", "help", "install", "numpy", "package", "test", "triton"))
"""Names of CMake's own targets, and of modules that the project imports."""


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


def source_options(given: argparse.Namespace) -> CompileSettings:
    """The values that were given."""
    return CompileSettings(
        include_directories=tuple(str(Path(folder).absolute()) for folder in given.include_directory),
        definitions=tuple(given.definition),
        options=tuple(given.compile_option),
        libraries=tuple(given.library),
    )


def add_init(commands: Any) -> None:
    """Add the command to the parser."""
    init = commands.add_parser(
        "init",
        help="a new project with one operator",
        description="Make a folder NAME with a project of one operator, out = a * x + y. The project builds, tests "
        "itself and makes a wheel without further work. It needs no GPU.",
    )
    init.add_argument("name", metavar="NAME", help="name of the package and of its folder: a Python identifier")
    kind = init.add_mutually_exclusive_group()
    kind.add_argument("--cuda", action="store_const", const="cuda", dest="kind", help="add a CUDA kernel")
    kind.add_argument("--triton", action="store_const", const="triton", dest="kind", help="add a Triton kernel")
    init.set_defaults(run=_init, kind="plain")


def _init(given: argparse.Namespace) -> int:
    files = project_files(given.name, given.kind)
    folder = Path(given.name)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BuildError(
                f"{folder} exists and is not an empty folder",
                why="this command overwrites nothing",
                fix="take another name, or run this elsewhere",
            )
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BuildError(
            f"{error.filename} cannot be made", why=error.strerror or str(error), fix="run this where you may write"
        ) from error
    for name in files:
        print(folder / name)
    steps = ("pip install cmake ninja pytest", "pip install --no-build-isolation -v .", "python -m pytest tests")
    print(f"\ncd {folder}", *steps, sep="\n")
    return 0


def project_files(name: str, kind: str = "plain") -> dict[str, str]:
    """The text of each file of a new project, by its path.

    Args:
        name: of the package.
        kind: plain, cuda or triton.

    Raises:
        OptionError: when the name cannot serve as a package, a CMake target and a C prefix.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or keyword.iskeyword(name):
        fix = "use letters, digits and _, a letter first, such as my_kernels; not a keyword of Python"
        raise OptionError(f"{name!r} cannot be the name of a package", fix=fix)
    if name in _TAKEN:
        raise OptionError(f"{name!r} is taken", why="by CMake, or by what the project imports", fix="take another name")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - what is written is no HTML
        variable_start_string="[[",
        variable_end_string="]]",
        block_start_string="[%",
        block_end_string="%]",
        comment_start_string="[#",
        comment_end_string="#]",
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    places = {**_PLACES, **_BESIDE[kind]}
    return {path: environment.get_template(f"{file}.txt").render(name=name, kind=kind) for file, path in places.items()}


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
    every.add_argument("--filter", default="", metavar="PATTERN", help="as AOT_TUNE_FILTER, such as 'gemm/*'")
    every.add_argument("--jobs", default="", metavar="COUNT", help="as AOT_TUNE_JOBS")
    every.add_argument("--cache", default="", choices=("rw", "ro", "fresh", "off"), help="as AOT_TUNE_CACHE")
    every.add_argument("--cache-dir", default="", metavar="DIR", help="as AOT_TUNE_CACHE_DIR")
    add_source_options(every)
    every.add_argument("--strict", action="store_true", help="exit status 1 if anything fails, or a result is wrong")
    every.add_argument("--json", action="store_true", help="print the result of each kernel as JSON")
    every.set_defaults(run=_compile)


def _compile(given: argparse.Namespace) -> int:
    from aot_tune.pipeline.every_candidate import compile_operators
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
        "--problem", default="", help="such as 'M=16 N=4096 K=4096 +bias'; default: all problems that it serves"
    )
    parser.add_argument("--target", default="", help="what it is compiled for; default: the best of this machine")
    add_template_roots(parser)
    parser.add_argument("--source", type=Path, metavar="FILE", help="write the rendered source there")
    add_source_options(parser)
    parser.set_defaults(run=_try)


def _try(given: argparse.Namespace) -> int:
    from aot_tune.pipeline.try_one import try_candidate
    from aot_tune.support.interrupts import end_with_the_build

    with end_with_the_build():
        well = try_candidate(
            given.operator,
            given.candidate,
            templates=given.templates,
            target=given.target,
            problem=given.problem,
            source=given.source,
            compiled_with=source_options(given),
        )
    return 0 if well else 1
