"""Commands that only look: `explain`, `doctor`, `options`."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shutil
from typing import Any

import msgspec

from aot_tune.cli.explanation import explanation_lines, explanation_of
from aot_tune.cli.options_text import options_text
from aot_tune.support.errors import BuildError, OptionError, did_you_mean
from aot_tune.support.installed_paths import BUNDLED_MODULE

__all__ = ["OWN_LIBRARY", "add_commands", "print_json"]

OWN_LIBRARY = "; for a library of your own add --module, such as --module my_kernels.ops"
"""What to add to an error on an operator that the bundled library does not have."""


def add_commands(commands: Any) -> None:
    """Add the commands to the parser."""
    explain = commands.add_parser(
        "explain",
        help="which variant a call would use",
        description="Say which variant a call of OPERATOR would use on this machine, and why.",
    )
    explain.add_argument("operator", metavar="OPERATOR")
    explain.add_argument(
        "facts",
        nargs="*",
        metavar="NAME=VALUE",
        help="extents, dtypes, scalars and options, such as M=16 N=4096 K=4096 T=bf16 activation=silu, and optional "
        "tensors, such as +bias",
    )
    explain.add_argument("--device", help="where the tensors are, such as cpu or cuda:0 (default: cpu)")
    explain.add_argument("--workspace", metavar="BYTES", help="size of the caller's workspace (default: no limit)")
    explain.add_argument(
        "--module",
        default=BUNDLED_MODULE,
        help="Python module of the library, such as my_kernels.ops; default: %(default)s",
    )
    explain.add_argument("--json", action="store_true", help="print it as JSON, see docs/report.md")
    explain.set_defaults(run=_explain)

    doctor = commands.add_parser(
        "doctor", help="what this machine offers", description="Show what a build without options would find here."
    )
    doctor.add_argument(
        "--verbose", action="store_true", help="also print the full identity of compilers and devices, as in records"
    )
    doctor.add_argument("--json", action="store_true", help="print it as JSON, see docs/report.md")
    doctor.set_defaults(run=_doctor)

    options = commands.add_parser(
        "options",
        help="the options of a build",
        description="Say what the options of a build and the variables of a library mean, and what is set here.",
    )
    options.add_argument("names", nargs="*", metavar="NAME", help="only these, such as BUDGET; default: all")
    options.set_defaults(run=_options)


def _explain(given: argparse.Namespace) -> int:
    stated = _stated(given)
    try:
        ops = importlib.import_module(given.module)
    except ImportError as error:
        raise BuildError(
            f"module {given.module} cannot be imported", why=str(error), fix="install the package first: pip install ."
        ) from error
    known = _operators(given.module, ops)
    if given.operator not in known:
        fix = did_you_mean(given.operator, known)
        if given.module == BUNDLED_MODULE:
            fix += OWN_LIBRARY
        raise BuildError(f"module {given.module} has no operator {given.operator!r}", fix=fix)
    if not stated:
        raise OptionError("no call is stated", fix="write its dims, such as M=16 N=4096 K=4096")
    try:
        told = ops.explain(given.operator, **stated)
    except (TypeError, ValueError, ArithmeticError, LookupError, RuntimeError) as error:
        raise BuildError(str(error)) from error
    found = explanation_of(told, _manifest(given.module, ops))
    if given.json:
        print_json(found)
    else:
        print("\n".join(explanation_lines(found)))
    return 0


def print_json(value: msgspec.Struct) -> None:
    """Print a record as JSON that people can read, too."""
    print(msgspec.json.format(msgspec.json.encode(value), indent=1).decode())


def _stated(given: argparse.Namespace) -> dict[str, object]:
    """The problem on a command line, as keywords of a library's explain(), which checks their names."""
    stated: dict[str, object] = {}
    for fact in given.facts:
        name, equals, value = fact.partition("=")
        present = fact.startswith("+") and not equals
        name = fact[1:] if present else name
        if not name.isidentifier() or not (present or value):
            raise OptionError(f"{fact!r} is not a fact of a call", fix=_form_of(fact))
        if name in ("device", "workspace"):
            raise OptionError(f"{fact!r} is not a fact of a call", fix=f"write --{name} {value}")
        if name in stated:
            raise OptionError(f"{name!r} is given twice", fix="give it once")
        stated[name] = True if present else _value(value)
    if given.device is not None:
        stated["device"] = given.device
    if given.workspace is not None:
        if not (given.workspace.isascii() and given.workspace.isdecimal()):
            raise OptionError(f"--workspace {given.workspace!r} is not a number of bytes", fix="write --workspace 1024")
        stated["workspace"] = int(given.workspace)
    return stated


_LAYOUT = re.compile(r"\w+(:[\d(]|@\d)")


def _form_of(fact: str) -> str:
    if _LAYOUT.match(fact):  # problems in reports are written so
        return (
            "leave it out: calls stated here are row-major and aligned; for others pass tensors to explain() in Python"
        )
    return "write for example M=16, T=bf16 or +bias"


def _value(text: str) -> object:
    """A number or a boolean if the text is one; else the text, which names a dtype or a choice."""
    if text in ("True", "False"):
        return text == "True"
    if re.fullmatch(r"-?[0-9]+", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text) else text


def _manifest(name: str, module: Any) -> dict[str, Any]:
    """The manifest of a library's Python module."""
    try:
        found = module.manifest()
        return dict(found if isinstance(found, dict) else json.loads(found))
    except (AttributeError, TypeError, ValueError) as error:
        raise BuildError(
            f"module {name} is not the Python module of a library",
            why=f"it has no manifest: {error}",
            fix="name a module that aot_tune_add_library made, such as aot_tune.ops",
        ) from error


def _operators(name: str, module: Any) -> list[str]:
    """The operators of a library's Python module."""
    try:
        return [one["name"] for one in _manifest(name, module)["operators"]]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BuildError(
            f"module {name} is not the Python module of a library",
            why=f"it has no manifest: {error}",
            fix="name a module that aot_tune_add_library made, such as aot_tune.ops",
        ) from error


def _options(given: argparse.Namespace) -> int:
    print(options_text(given.names, os.environ, shutil.get_terminal_size().columns))
    return 0


def _doctor(given: argparse.Namespace) -> int:
    from aot_tune.cli.doctor import examine
    from aot_tune.cli.examination import examination_lines

    found = examine()
    if given.json:
        print_json(found)
    else:
        print("\n".join(examination_lines(found, verbose=given.verbose)))
    return 1 if found.problems else 0
