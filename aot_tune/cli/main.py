"""The command `aot-tune`."""

from __future__ import annotations

import argparse
import io
import signal
import sys
from collections.abc import Sequence

from aot_tune import __version__
from aot_tune.cli import compile_command as every
from aot_tune.cli import export_command as export
from aot_tune.cli import init_command as begin
from aot_tune.cli import internal, records_commands
from aot_tune.cli import look_commands as inspect
from aot_tune.cli import report_command as reports
from aot_tune.cli import try_command as attempt
from aot_tune.cli import tune_command as tuning
from aot_tune.cli import workload_commands as workload
from aot_tune.support.errors import AotTuneError
from aot_tune.support.installed_paths import cmake_dir, include_dir

__all__ = ["command_line", "main"]


def command_line() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="aot-tune", description="Kernels chosen by measurement on the machine that builds the package."
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--cmake-dir", action="store_true", help="print the folder of aot_tuneConfig.cmake and exit")
    parser.add_argument("--include-dir", action="store_true", help="print the folder of the C headers and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    begin.add_commands(commands)
    inspect.add_commands(commands)
    reports.add_commands(commands)
    export.add_commands(commands)
    records_commands.add_commands(commands)
    attempt.add_commands(commands)
    every.add_commands(commands)
    tuning.add_commands(commands)
    workload.add_commands(commands)
    internal.add_commands(commands)
    tuning.add_planned_command(commands)
    return parser


def _told(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    place = f"{error.filename}: " if error.filename is not None else ""
    return f"{place}{error.strerror or error}"


def _tell_in_any_encoding() -> None:
    """Let an output write characters that its encoding lacks as escapes. They must not end a build."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status: 0, 1 after an error message, 2 for a wrong command line."""
    _tell_in_any_encoding()
    parser = command_line()
    given = parser.parse_args(arguments)
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
        print(f"aot-tune: {_told(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("aot-tune: interrupted; what was measured is kept and will be used by the next build", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
