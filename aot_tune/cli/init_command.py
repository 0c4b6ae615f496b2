"""The command `aot-tune init`: a new project with one operator."""

from __future__ import annotations

import argparse
import keyword
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import jinja2

from aot_tune.support.errors import BuildError, OptionError

_TEMPLATES = Path(__file__).parent / "project"
_PLACES = {
    "README.md": "README.md",
    "pyproject.toml": "pyproject.toml",
    "CMakeLists.txt": "CMakeLists.txt",
    "init.py": "src/{name}/__init__.py",
    "operator.py": "templates/axpy/operator.py",
    "axpy.cpp.j2": "templates/axpy/axpy.cpp.j2",
    "test_axpy.py": "tests/test_axpy.py",
    "cpp_lists.txt": "cpp/CMakeLists.txt",
    "axpy.cpp": "cpp/axpy.cpp",
    "tuning.md": "tuning/README.md",
    "ci.yml": ".github/workflows/ci.yml",
    "gitignore": ".gitignore",
}
"""Files of every project: the name of the template without its suffix, and the path in the project."""
_BESIDE = {"plain": {}, "cuda": {"axpy.cu": "csrc/axpy.cu"}, "triton": {"kernels.py": "templates/kernels.py"}}
_STEPS = (
    "pip install cmake ninja pytest",
    "pip install --no-build-isolation -v .",
    "python -m pytest tests",
    'cmake -S cpp -B build/cpp -D{name}_DIR="$(python -m {name} --cmake-dir)"',
    "cmake --build build/cpp",
)
"""What to type next. They are those of the project's README.md, too."""
_TAKEN = frozenset((
    *("aot_tune", "jax", "numpy", "pytest", "torch", "triton", *sys.stdlib_module_names),
    *("all", "clean", "depend", "edit_cache", "help", "install", "list_install_components", "package", "test"),
    *("package_source", "preinstall", "rebuild_cache", "std"),
))  # fmt: skip
"""Names of modules that the project imports or that Python has, of CMake's own targets, and of a namespace of C++."""


def add_init(commands: Any) -> None:
    """Add the command to the parser."""
    init = commands.add_parser(
        "init",
        help="a new project with one operator",
        description="Make a folder NAME with a project of one operator, out = a * x + y. The project builds, tests "
        "itself, and is called from Python and C++ without further work. It needs no GPU.",
    )
    init.add_argument("name", metavar="NAME", help="name of the package and of its folder: a Python identifier")
    kind = init.add_mutually_exclusive_group()
    kind.add_argument("--cuda", action="store_const", const="cuda", dest="kind", help="add a CUDA kernel")
    kind.add_argument("--triton", action="store_const", const="triton", dest="kind", help="add a Triton kernel")
    init.set_defaults(run=_init, kind="plain")


def _init(given: argparse.Namespace) -> int:
    package = given.name.rstrip("/")
    files, folder, fresh = project_files(package, given.kind), Path(package), Path(f".{package}.{os.getpid()}")
    try:
        if os.path.lexists(folder) and not (folder.is_dir() and all(path.name == ".git" for path in folder.iterdir())):
            raise BuildError(
                f"{folder} exists and is not an empty folder",
                why="this command overwrites nothing",
                fix="take another name, or run this elsewhere",
            )
        for name, text in files.items():
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        _put(fresh, folder)
    except OSError as error:
        raise BuildError(
            f"{folder} cannot be made", why=error.strerror or str(error), fix="run this where you may write"
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    for name in files:
        print(folder / name)
    print(f"\ncd {folder}", *(step.format(name=package) for step in _STEPS), sep="\n")
    return 0


def _put(fresh: Path, folder: Path) -> None:
    """Move files into a folder that holds none of them."""
    folder.mkdir(exist_ok=True)
    for path in fresh.iterdir():
        path.rename(folder / path.name)


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
        raise OptionError(f"{name!r} is taken", why="CMake, Python or the project uses it", fix="take another name")
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
    return {
        path.format(name=name): environment.get_template(f"{file}.txt").render(name=name, kind=kind)
        for file, path in places.items()
    }
