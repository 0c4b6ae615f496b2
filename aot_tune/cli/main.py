"""The command `aot-tune`."""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from aot_tune import __version__
from aot_tune.cli import (
    cache_command,
    compile_commands,
    dev_command,
    doctor,
    explain_command,
    init_command,
    records_commands,
    report_command,
    tune_command,
    workload_commands,
)
from aot_tune.plan.kept_glue import keep_glue
from aot_tune.plan.library_plan import Request, cache_of, make_plan, read_plan, write_plan
from aot_tune.plan.preflight import Machines
from aot_tune.support.errors import AotTuneError, OptionError
from aot_tune.support.installed_paths import cmake_dir, include_dir
from aot_tune.support.wall_clock import note_configured, note_linked, take_folder

_INTERNAL = ("configure", "build", "check-library", "tune-planned")


def _add_internal(commands: Any) -> None:
    """Add `configure`, `build` and `check-library`, which CMake runs."""
    configure = commands.add_parser("configure", description="Check a library and write its plan; run by CMake.")
    for name in ("name", "prefix", "header", "directory"):
        configure.add_argument(f"--{name}", required=True)
    for name in ("output", "module", "database", "tiny", "build", "compiled-as"):
        configure.add_argument(f"--{name}", default="")
    for name in ("templates", "option", "default"):
        configure.add_argument(f"--{name}", action="append", default=[])
    compile_commands.add_source_options(configure)
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
    if given.tiny:
        from aot_tune.link.manifest import check_flags

        check_flags(Path(given.tiny), [given.build])
    take_folder(Path(given.directory))
    request = Request(
        name=given.name,
        prefix=given.prefix,
        header=given.header,
        output=given.output,
        module=given.module,
        templates=tuple(given.templates),
        database=given.database,
        options=_pairs(given.option),
        defaults=_pairs(given.default),
        compile=msgspec.structs.replace(
            compile_commands.source_options(given), include_directories=tuple(given.include_directory)
        ),
    )
    with ExitStack() as stack:

        def reached() -> Machines:
            from aot_tune.pipeline.executor import reach_cluster  # slow, and few builds need it

            return stack.enter_context(reach_cluster(partial(print, flush=True)))

        plan, paths, files = make_plan(request, os.environ, reached)
    write_plan(Path(given.directory), plan, paths, files, given.compiled_as)
    note_configured(Path(given.directory))
    for line in (*plan.summary(), *paths.compilers):
        print(f"aot_tune: {line}", flush=True)
    return 0


def _build(given: argparse.Namespace) -> int:
    from aot_tune.support.interrupts import end_with_the_build

    with end_with_the_build():  # first, because the imports below are slow
        from aot_tune.pipeline.build_library import build

        take_folder(given.directory)
        build(given.directory)
    return 0


def _check(given: argparse.Namespace) -> int:
    from aot_tune.link.manifest import check_against_manifest, check_import, check_module

    directory: Path = given.directory
    take_folder(directory)
    forbidden = [str(given.build)] if given.build else []
    manifest = directory / "manifest.json"
    try:
        if given.module is not None:  # the library itself was checked when it was linked
            check_module(given.library, given.module, manifest, forbidden=forbidden)
            if missing := check_import(given.library, given.module, manifest):
                why = "can only be imported where its libraries are"
                print(f"aot_tune: {given.module.name} {why}: {missing}", flush=True)
        else:
            from aot_tune.pipeline.shipping.verify_linked import verify_linked_library
            from aot_tune.support.interrupts import end_with_the_build

            others, archive = bool(read_plan(directory)[1].compile.libraries), directory / "variants.a"
            check_against_manifest(given.library, None, manifest, archive, forbidden=forbidden, others=others)
            with end_with_the_build():
                verify_linked_library(directory, given.library)
    except (AotTuneError, OSError):
        with contextlib.suppress(OSError):  # the next build writes all files anew, in case one is damaged
            (directory / "tuned").unlink(missing_ok=True)
        raise
    note_linked(directory)
    keep_glue(directory, cache_of(read_plan(directory)[0].options, os.environ))
    return 0


class _AnyOrder(argparse.ArgumentParser):
    """Takes operands and options in any order, which argparse does not if operands may be left out."""

    _parts = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._parts or any(a.nargs == argparse.PARSER for a in self._get_positional_actions()):
            return super().parse_known_args(args, namespace)
        self._parts = True  # which this parses with the same function
        return self.parse_known_intermixed_args(args, namespace)


def command_line() -> argparse.ArgumentParser:
    """The parser of the commands for people."""
    parser = _AnyOrder(
        prog="aot-tune", description="Kernels chosen by measurement on the machine that builds the package."
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--cmake-dir", action="store_true", help="print the folder of aot_tuneConfig.cmake and exit")
    parser.add_argument("--include-dir", action="store_true", help="print the folder of the C headers and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for add in (  # from a new project to questions about an installed library
        init_command.add_init,
        dev_command.add_dev,
        compile_commands.add_compile,
        compile_commands.add_try,
        workload_commands.add_workload,
        tune_command.add_tune,
        records_commands.add_records,
        doctor.add_doctor,
        cache_command.add_cache,
        report_command.add_report,
        explain_command.add_explain,
    ):
        add(commands)
    return parser


def _internal_line() -> argparse.ArgumentParser:
    """The parser of commands that only other programs run. No help or message of the others names them."""
    parser = argparse.ArgumentParser(prog="aot-tune", add_help=False)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_internal(commands)
    tune_command.add_planned(commands)
    parser.set_defaults(cmake_dir=False, include_dir=False)
    return parser


def _told(error: Exception, directory: Path | None) -> str:
    if not isinstance(error, OSError):
        return str(error)
    where = f"{error.filename}: " if error.filename is not None else ""
    full = ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        folders = [tempfile.gettempdir(), *([str(directory)] if directory else [])]
        full = f"\n  fix: free disk space; the build writes to {' and '.join(folders)}, and TMPDIR names another folder"
    return f"{where}{error.strerror or error}{full}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status: 0, 1 after an error message, 2 for a wrong command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if arguments is None else arguments
    parser = _internal_line() if words and words[0] in _INTERNAL else command_line()
    given = parser.parse_args(words)
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # inherited; it would lose the exit status of children
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        if given.cmake_dir:
            print(cmake_dir())
        elif given.include_dir:
            print(include_dir())
        elif given.command is None:
            parser.print_help()
            return 2
        else:
            return int(given.run(given))
    except BrokenPipeError:
        sys.stderr.close()  # the reader is gone
        return 1
    except (AotTuneError, OSError) as error:
        print(f"aot-tune: {_told(error, getattr(given, 'directory', None))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("aot-tune: interrupted; what was measured is kept and will be used by the next build", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
