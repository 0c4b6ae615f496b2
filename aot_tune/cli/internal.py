"""Commands that CMake runs. People do not need them."""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from aot_tune.plan.compile_settings import CompileSettings
from aot_tune.plan.library_plan import Request, make_plan, write_plan
from aot_tune.support.errors import OptionError
from aot_tune.support.wall_clock import note_configured, note_linked

__all__ = ["add_commands"]

_COMPILE = ("include-directory", "definition", "compile-option", "library")


def add_commands(commands: Any) -> None:
    """Add `configure`, `build` and `check-library` without showing them in the help."""
    configure = commands.add_parser("configure", description="Check a library and write its plan; run by CMake.")
    for name in ("name", "prefix", "header", "directory"):
        configure.add_argument(f"--{name}", required=True)
    for name in ("output", "module", "database"):
        configure.add_argument(f"--{name}", default="")
    for name in ("operator", "templates", "option", "default", *_COMPILE):
        configure.add_argument(f"--{name}", action="append", default=[])
    configure.set_defaults(run=_configure)

    build = commands.add_parser("build", description="Tune or replay a planned library; run by CMake.")
    build.add_argument("--directory", required=True, type=Path)
    build.set_defaults(run=_build)

    check = commands.add_parser(
        "check-library", description="Check a library against its manifest and verify its variants; run by CMake."
    )
    check.add_argument("--directory", required=True, type=Path)
    check.add_argument("--library", required=True, type=Path)
    check.add_argument("--module", type=Path)
    check.add_argument("--build", type=Path, help="the build folder; its path must not be in the files")
    check.set_defaults(run=_check)


def _pairs(given: list[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals:
            raise OptionError(f"option {pair!r} has no value", fix="write NAME=VALUE")
        pairs[name] = value
    return pairs


def _configure(given: argparse.Namespace) -> int:
    request = Request(
        name=given.name,
        prefix=given.prefix,
        header=given.header,
        output=given.output,
        module=given.module,
        operators=tuple(given.operator),
        templates=tuple(given.templates),
        database=given.database,
        options=_pairs(given.option),
        defaults=_pairs(given.default),
    )
    request = msgspec.structs.replace(
        request,
        compile=CompileSettings(
            include_directories=tuple(given.include_directory),
            definitions=tuple(given.definition),
            options=tuple(given.compile_option),
            libraries=tuple(given.library),
        ),
    )
    from aot_tune.pipeline.choose_executor import reach_cluster

    with ExitStack() as stack:
        log = partial(print, flush=True)
        plan, paths, files = make_plan(request, os.environ, lambda: stack.enter_context(reach_cluster(log)))
    write_plan(Path(given.directory), plan, paths, files)
    note_configured(Path(given.directory))
    for line in (*plan.summary(), *paths.compilers):
        print(f"aot_tune: {line}", flush=True)
    return 0


def _build(given: argparse.Namespace) -> int:
    from aot_tune.support.interrupts import end_with_the_build

    with end_with_the_build():  # first, because the imports below are slow
        from aot_tune.pipeline.build_library import build

        build(given.directory)
    return 0


def _check(given: argparse.Namespace) -> int:
    from aot_tune.link.check.against_manifest import check_against_manifest, check_module

    directory: Path = given.directory
    forbidden = [str(given.build)] if given.build else []
    manifest = directory / "manifest.json"
    if given.module is not None:  # the library itself was checked when it was linked
        check_module(given.library, given.module, manifest, forbidden=forbidden)
    else:
        from aot_tune.pipeline.shipping.verify_linked import verify_linked_library
        from aot_tune.support.interrupts import end_with_the_build

        check_against_manifest(given.library, None, manifest, directory / "variants.a", forbidden=forbidden)
        with end_with_the_build():
            verify_linked_library(directory, given.library)
    note_linked(directory)
    return 0
