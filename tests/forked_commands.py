"""`aot-tune` commands in forks of a process that has imported it: to start Python for each costs more than they do."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from environments import ROOT, environment, own_processor

__all__ = ["ForkedCommands"]

SERVER = """
import json, os, sys, traceback
import aot_tune.cli.internal, aot_tune.pipeline.build_library, aot_tune.plan.library_plan, aot_tune.plan.preflight
from aot_tune.cli.main import main

def command(argv, env, log):
    for number in (1, 2):
        os.dup2(log, number)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p and p not in sys.path]
    os.setsid()
    try:
        return main(argv)
    except SystemExit as end:
        return end.code
    except BaseException:
        traceback.print_exc()
        return 1

for line in sys.stdin:
    argv, env, log = json.loads(line)
    child = os.fork()
    if child == 0:
        os._exit(command(argv, env, os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)) or 0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class ForkedCommands:
    """A process that waits for commands; each runs in a fork of it, with an environment of its own."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "said"
        argv = [sys.executable, "-B", "-u", "-c", SERVER]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with own_processor():
            self._process = subprocess.Popen(  # type: ignore[call-overload]
                argv, env=environment(PYTHONPATH=str(ROOT)), cwd=tempfile.gettempdir(), text=True, **pipes
            )

    def run(self, argv: Sequence[object], *, env: Mapping[str, str], status: int | None = 0, timeout: float = 0) -> str:
        """Run a command of `Project.command`; what it says. `status` None allows any."""
        at = argv.index("aot_tune.cli.main")
        self._process.stdin.write(json.dumps([[str(a) for a in argv[at + 1 :]], dict(env), str(self._log)]) + "\n")
        self._process.stdin.flush()
        found = int(self._process.stdout.readline())
        said = self._log.read_text(errors="replace")
        assert status is None or found == status, f"{argv} ended with {found}:\n{said[-8000:]}"
        return said

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
