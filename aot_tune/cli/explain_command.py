"""The command `aot-tune explain`: which variant a call would use, and why."""

from __future__ import annotations

import argparse
import importlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from aot_tune.report.report_text import format_resources
from aot_tune.support.errors import BuildError, OptionError, did_you_mean
from aot_tune.support.installed_paths import BUNDLED_MODULE

_TOLD = (
    *("operator", "device", "threads", "processors", "table", "tuned", "regime", "nearest", "override"),
    *("variant", "kernel", "target", "object", "workspace", "note", "why", "team"),
)


OWN_LIBRARY = "; for a library of your own add --module, such as --module my_kernels.ops"
"""What to add to an error on an operator that the bundled library does not have."""


_LAYOUT = re.compile(r"\w+(:[\d(]|@\d)")


class BestRoofline(msgspec.Struct, frozen=True, kw_only=True):
    """The best share of a roofline that a variant reached when it was measured: on which problem, by whose peaks."""

    share: float
    problem: str
    of: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Which variant a call gets and why. The library's `explain` tells it; the manifest adds facts about its code.

    A text is empty if there is nothing to tell. A call without elements runs nothing, so its texts are empty.
    `workspace` is in bytes. `code` is what the variant's code uses: registers, bytes of shared memory, stack and
    spills.
    """

    operator: str
    dims: dict[str, int] = {}
    dtypes: dict[str, str] = {}
    attributes: dict[str, str] = {}
    tensors: tuple[str, ...] = ()
    device: str = ""
    threads: str = ""
    processors: str = ""
    table: str = ""
    tuned: bool | None = None
    regime: str = ""
    nearest: str = ""
    override: str = ""
    variant: str = ""
    kernel: str = ""
    target: str = ""
    object: str = ""
    workspace: int | None = None
    note: str = ""
    why: str = ""
    team: str = ""
    expected: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    code: dict[str, int] = {}
    roofline: BestRoofline | None = None
    schema: int = 1


def _explanation_of(told: Mapping[str, Any], manifest: Mapping[str, Any]) -> Explanation:
    """What a library says of a call, with what its manifest says of the variant's code."""
    operators = (operator for operator in manifest["operators"] if operator["name"] == told.get("operator"))
    variants = next((operator.get("variants", ()) for operator in operators), ())
    variant: dict[str, Any] = next((v for v in variants if v["name"] == told.get("variant")), {})
    beside = {"code": variant.get("resources") or {}, "roofline": variant.get("roofline") or None}
    return msgspec.convert({**told, **beside}, Explanation, strict=False)


def _explanation_lines(explanation: Explanation) -> Iterator[str]:
    """An explanation as people read it."""
    for key in _TOLD:
        value = getattr(explanation, key)
        if value not in ("", None):  # a call without elements has no variant, and few variants have a note
            yield f"{key:<9} {value}"
    for key in ("tensors", "expected", "rejected"):
        for line in getattr(explanation, key):
            yield f"{key.removesuffix('s'):<9} {line}"
    code, best = format_resources(explanation.code), explanation.roofline
    if code:
        yield f"{'code':<9} {code}"
    if best is not None:
        yield f"{'roofline':<9} {100 * best.share:.0f} % by {best.of}, on '{best.problem}' at best"


def add_explain(commands: Any) -> None:
    """Add the command to the parser."""
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


def _explain(given: argparse.Namespace) -> int:
    stated = _stated(given)
    try:
        ops = importlib.import_module(given.module)
    except ImportError as error:
        raise BuildError(
            f"module {given.module} cannot be imported", why=str(error), fix="install the package first: pip install ."
        ) from error
    manifest, operators = _manifest(given.module, ops)
    if given.operator not in operators:
        fix = did_you_mean(given.operator, operators)
        if given.module == BUNDLED_MODULE:
            fix += OWN_LIBRARY
        raise BuildError(f"module {given.module} has no operator {given.operator!r}", fix=fix)
    if not stated:
        raise OptionError("no call is stated", fix="write its dims, such as M=16 N=4096 K=4096")
    try:
        told = ops.explain(given.operator, **stated)
    except (TypeError, ValueError, ArithmeticError, LookupError, RuntimeError) as error:
        raise BuildError(str(error)) from error
    explanation = _explanation_of(told, manifest)
    print(json_text(explanation) if given.json else "\n".join(_explanation_lines(explanation)))
    return 0


def json_text(value: msgspec.Struct) -> str:
    """A record as JSON that people can read, too."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode()


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


def _manifest(name: str, module: Any) -> tuple[dict[str, Any], list[str]]:
    """The manifest of a library's Python module, and the names of its operators."""
    try:
        told = module.manifest()
        manifest = dict(told if isinstance(told, dict) else json.loads(told))
        return manifest, [operator["name"] for operator in manifest["operators"]]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BuildError(
            f"module {name} is not the Python module of a library",
            why=f"it has no manifest: {error}",
            fix="name a module that aot_tune_add_library made, such as aot_tune.ops",
        ) from error
