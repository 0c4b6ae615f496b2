"""Writes the pages of docs/reference/ from the code: `python docs/generate_reference.py`.

The repository keeps those that people read there (`KEPT`). The others are for the site alone, whose build writes all.
They have nothing that the code does not say: the tables of options and variables, the commands' help, the head of the
CMake function, the headers of every library and of the bundled operators, signatures and docstrings.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aot_tune.cli.main import command_line
from aot_tune.link import LibrarySpec, OperatorTable
from aot_tune.link.generate import render_header, render_stub
from aot_tune.plan.options import markdown_table
from aot_tune.plan.run_time_variables import variables_table
from aot_tune.spec import Operator
from aot_tune.spec.load_operators import load_operators

__all__ = ["FOLDER", "KEPT", "pages", "write"]

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
KEPT = ("options.md", "commands.md", "cmake.md")
"""Pages that the repository keeps."""
_COLUMNS = "110"
_NOTE = "<!-- Written by docs/generate_reference.py; do not change it by hand. -->"


def pages() -> dict[str, str]:
    """The text of each page by the name of its file."""
    library = _bundled()
    made = {
        "options.md": _page("Options and variables", _options()),
        "commands.md": _page("The command aot-tune", *_commands()),
        "cmake.md": _page("CMake", _cmake()),
        "c.md": _page("C and C++", *_headers(library)),
        "module.md": _page("The Python module of a library", *_module(library)),
        "spec.md": _page("aot_tune.spec", *_python("aot_tune.spec")),
        "elementwise.md": _page("aot_tune.spec.elementwise", *_python("aot_tune.spec.elementwise")),
        "torch.md": _page("aot_tune.torch", *_python("aot_tune.torch")),
    }
    return {name: text.rstrip() + "\n" for name, text in made.items()}


def _page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", _NOTE, *(part.strip("\n") for part in parts)])


def _fenced(text: str, language: str = "text") -> str:
    body = text.strip("\n")
    return f"```{language}\n{body}\n```"


def _options() -> str:
    return f"""\
## Options of a build

Each is a CMake cache variable: `pip install -C cmake.define.NAME=VALUE .`. An environment variable of the same name is
the fallback. A CMake variable wins over the environment, which wins over what `aot_tune_add_library` was given.

{markdown_table()}

## Variables of a library

A library reads them once per process. A bad value is an error of the first call. A name that the library does not know
is ignored (`nosuch`), for it may be meant for another library of the process. Behind one of the library's operators
(`gemm:nosuch`), and in a file of rules, it is an error.

{variables_table()}"""


def _commands() -> Iterator[str]:
    os.environ["COLUMNS"] = _COLUMNS
    parser = command_line()
    yield _fenced(parser.format_help())
    for name, command in _subcommands(parser, ""):
        yield f"## aot-tune {name}"
        yield _fenced(command.format_help())


def _subcommands(parser: argparse.ArgumentParser, before: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The commands that help shows, with those below them."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for shown in action._choices_actions:
                name = f"{before}{shown.dest}"
                command: argparse.ArgumentParser = action.choices[shown.dest]
                yield name, command
                yield from _subcommands(command, f"{name} ")


def _cmake() -> str:
    text = (ROOT / "cmake" / "aot_tune_add_library.cmake").read_text()
    head = text.partition("\n\n")[0]
    lines = [re.sub(r"^# ?", "", line) for line in head.splitlines()]
    return (
        f"`find_package(aot_tune)` gives the function and the target `aot_tune::ops`.\n\n{_fenced(chr(10).join(lines))}"
    )


def _bundled() -> LibrarySpec:
    operators = load_operators([ROOT / "templates"])
    tables = (OperatorTable(operator=op, variants=()) for _, op in operators.values())
    return LibrarySpec(output="aot_tune_ops", operators=tuple(tables))


def _headers(library: LibrarySpec) -> Iterator[str]:
    folder = ROOT / "aot_tune" / "runtime" / "include" / "aot_tune"
    yield "Every library has these three headers, and one of its own. [cpp.md](../cpp.md) says how to use them."
    for name, what in (("base.h", "Types and errors"), ("tensor.h", "Tensors in C"), ("tensor.hpp", "Tensors in C++")):
        yield f"## {what}: <aot_tune/{name}>"
        yield _fenced((folder / name).read_text(), "c" if name.endswith(".h") else "cpp")
    yield "## The bundled operators: <aot_tune/ops.h>"
    yield _fenced(render_header(library), "c")


def _module(library: LibrarySpec) -> Iterator[str]:
    yield (
        "A library's module has a function for each operator, and functions that ask about calls. This is the stub of "
        "the bundled `aot_tune.ops`; a library of your own has one like it. [calls.md](../calls.md) says how to use it."
    )
    for table in library.operators:
        yield f"## {table.operator.name}"
        yield _fenced(_documented(table.operator))
    yield "## The stub"
    yield _fenced(render_stub(library), "python")


def _documented(operator: Operator) -> str:
    return operator.documentation.strip() or operator.name


def _python(name: str) -> Iterator[str]:
    """What a module exports: signatures, and docstrings as they are."""
    module = importlib.import_module(name)
    yield _fenced(inspect.getdoc(module) or "")
    for exported in sorted(dict.fromkeys(module.__all__), key=str.lower):
        value = getattr(module, exported)
        yield f"## {exported}"
        if inspect.isclass(value) or inspect.isfunction(value):
            yield _fenced(_signature(exported, value), "python")
            yield _fenced(inspect.getdoc(value) or "")
            yield from _members(exported, value)
        elif inspect.ismodule(value):
            yield f"The module `{value.__name__}`."
        else:
            yield _fenced(f"{exported} = {_shown(value)}", "python")


def _members(name: str, value: Any) -> Iterator[str]:
    """The public methods and properties of a class that its own code documents."""
    if not inspect.isclass(value):
        return
    for member, found in vars(value).items():
        what = found.fget if isinstance(found, property) else found
        documented = inspect.isfunction(what) and what.__doc__ is not None
        if documented and not member.startswith("_"):
            yield f"### {name}.{member}"
            head = f"{member}: {_plain(what.__annotations__.get('return', ''))}" if what is not found else None
            yield _fenced(head or _signature(member, what), "python")
            yield _fenced(inspect.getdoc(what) or "")


def _signature(name: str, value: Any) -> str:
    """`name(...)` with an argument a line where it is long."""
    try:
        signature = inspect.signature(value)
    except ValueError:
        return name
    result = signature.return_annotation
    returns = "" if inspect.isclass(value) or result is signature.empty else f" -> {_plain(str(result))}"
    arguments = [_plain(p) for p in _with_star(signature)]
    line = f"{name}({', '.join(arguments)}){returns}"
    return (
        line
        if len(line) <= int(_COLUMNS)
        else "\n".join([f"{name}(", *(f"    {a}," for a in arguments), f"){returns}"])
    )


def _plain(text: str) -> str:
    """Annotations without their quotes; a default that has no text is `...`."""
    text = re.sub(r"(:|->) '((?:[^'\\]|\\')*)'", r"\1 \2", text)
    return re.sub(r"<(?:function|factory|class)[^>]*>+( at 0x\w+>)?", "...", text)


def _with_star(signature: inspect.Signature) -> Iterator[str]:
    """The parameters as text, with the `*` before those that are passed by name."""
    star = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            star = True
            yield "*"
        star = star or parameter.kind is parameter.VAR_POSITIONAL
        yield str(parameter)


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, (int, str, tuple, dict)) else str(value)


def write(found: Mapping[str, str]) -> None:
    """Write pages that are new or have changed."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in found.items():
        path = FOLDER / name
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)


def main() -> None:
    """Write what the repository keeps."""
    write({name: text for name, text in pages().items() if name in KEPT})


if __name__ == "__main__":
    main()
