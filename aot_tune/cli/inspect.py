"""Commands that look: `explain`, `doctor`, `options`."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from typing import Any

from aot_tune.errors import AotTuneError, BuildError, OptionError, did_you_mean
from aot_tune.options import markdown_table

__all__ = ["add_commands"]


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
        metavar="DIM=N",
        help="extents, such as M=16 N=4096 K=4096, and optional tensors, such as +bias",
    )
    explain.add_argument("--module", default="aot_tune.ops", help="Python module of the library")
    explain.set_defaults(run=_explain)

    doctor = commands.add_parser(
        "doctor", help="what this machine offers", description="Show what a build would find here."
    )
    doctor.set_defaults(run=_doctor)

    options = commands.add_parser("options", help="the options of a build", description="Print the table of options.")
    options.set_defaults(run=_options)


def _explain(given: argparse.Namespace) -> int:
    dims: dict[str, int] = {}
    present = [fact[1:] for fact in given.facts if fact.startswith("+")]
    for fact in given.facts:
        if fact.startswith("+"):
            continue
        name, equals, value = fact.partition("=")
        if not equals or not value.isdecimal():
            raise OptionError(f"{fact!r} is not an extent", fix="write for example M=16")
        dims[name] = int(value)
    try:
        ops = importlib.import_module(given.module)
    except ImportError as error:
        raise BuildError(
            f"module {given.module} cannot be imported", why=str(error), fix="install the package first: pip install ."
        ) from error
    known = _operators(given.module, ops)
    if given.operator not in known:
        raise BuildError(
            f"module {given.module} has no operator {given.operator!r}", fix=did_you_mean(given.operator, known)
        )
    try:
        told = ops.explain(given.operator, **dims, **dict.fromkeys(present, True))
    except (TypeError, ValueError, LookupError, RuntimeError) as error:
        raise BuildError(str(error)) from error
    for key in ("operator", "device", "tuned", "variant", "kernel", "target", "object", "why"):
        print(f"{key:<9} {told[key]}")
    for key in ("tensors", "path", "rejected"):
        for line in told[key]:
            print(f"{key.removesuffix('s'):<9} {line}")
    return 0


def _operators(name: str, module: Any) -> list[str]:
    """The operators of a library's Python module."""
    try:
        manifest = module.manifest()
        known = manifest if isinstance(manifest, dict) else json.loads(manifest)
        return [one["name"] for one in known["operators"]]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BuildError(
            f"module {name} is not the Python module of a library",
            why=f"it has no manifest: {error}",
            fix="name a module that aot_tune_add_library made, such as aot_tune.ops",
        ) from error


def _options(_: argparse.Namespace) -> int:
    print(markdown_table())
    return 0


def _doctor(_: argparse.Namespace) -> int:
    """Print what a build would find; 1 when it could not work."""
    from aot_tune.bench import features
    from aot_tune.bench.cpu import usable_cores
    from aot_tune.compile import native_targets, parallel_compiles, toolchain_for, toolchains
    from aot_tune.plan import devices
    from aot_tune.storage import cache_location

    problems = 0
    print(f"python     {sys.version.split()[0]} at {sys.executable}")
    for name in toolchains():
        try:
            identity = toolchain_for(name).identity()
            print(f"compiler   {name}: {', '.join(f'{k} {v}' for k, v in identity.items())}")
        except AotTuneError as error:
            problems += 1
            print(f"compiler   {name}: {error}")
    print(f"targets    {', '.join(t.name for t in native_targets()) or 'none'}")
    for device in devices(usable_cores()):
        print(f"device     {device.name}")
        for key, value in device.identity.items():
            print(f"             {key} {value}")
    for feature, state in features().items():
        print(f"sandbox    {feature}: {state}")
    print(f"compiles   {parallel_compiles(os.environ).reason}")
    location = cache_location(os.environ)
    print(f"cache      {location.root or 'off'} ({location.mode}){f': {location.message}' if location.message else ''}")
    return 1 if problems else 0
