"""Small projects of the bundled operators, tuned as builds tune them, for benchmarks of the tuning itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

import aot_tune
from aot_tune.report import Report
from aot_tune.spec import Operator, Problem
from aot_tune.spec.load_operators import bundled_templates, load_operator

__all__ = ["Tuned", "cut_templates", "forget_measurements", "plan", "spread_out", "tune", "write_templates"]

_CUT = """

import dataclasses

operator = dataclasses.replace(
    operator,
    workload={{{family!r}: tuple(p for p in operator.workload_for({family!r}) if p.id in {kept!r})}},
)
"""


def spread_out(operator: Operator, family: str, count: int) -> list[Problem]:
    """`count` problems of a workload, from the smallest to the largest by operations."""
    problems = sorted(operator.workload_for(family), key=lambda p: (operator.flops.evaluate(operator.facts(p)), p.id))
    count = min(count, len(problems))
    return [problems[round(i * (len(problems) - 1) / max(count - 1, 1))] for i in range(count)]


def write_templates(folder: Path, family: str, count: int, operators: Sequence[str] = ()) -> dict[str, list[str]]:
    """Copy bundled operators with about `count` problems in all. Returns ids of the problems by operator.

    Args:
        folder: where the copy goes; it must not exist.
        family: the devices whose workload is cut.
        count: problems, shared evenly between the operators.
        operators: names; if empty, all that have a workload for the family.
    """
    found = {p.parent.name: load_operator(p.parent) for p in sorted(bundled_templates().glob("*/operator.py"))}
    names = [n for n, o in found.items() if (not operators or n in operators) and o.workload_for(family)]
    if not names:
        raise SystemExit(f"benchmarks: none of the operators {', '.join(operators)} has a workload for {family}")
    kept: dict[str, list[str]] = {}
    for i, name in enumerate(names):
        share = count // len(names) + (i < count % len(names))
        if share:
            kept[name] = [p.id for p in spread_out(found[name], family, share)]
    cut_templates(folder, family, kept)
    return kept


def cut_templates(folder: Path, family: str, kept: Mapping[str, Sequence[str]]) -> None:
    """Copy the bundled operators in `kept` to `folder`. Their workload for a family has only the listed problem ids."""
    shutil.copytree(bundled_templates(), folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path in sorted(folder.glob("*/operator.py")):
        if path.parent.name in kept:
            path.write_text(path.read_text() + _CUT.format(family=family, kept=set(kept[path.parent.name])))
        else:
            path.unlink()


@dataclass(frozen=True)
class Tuned:
    """A tuned project: its plan's folder, the output of the build, its report, and the seconds that it took."""

    folder: Path
    log: str
    report: Report
    seconds: float


def plan(folder: Path, templates: Path, family: str, cache: Path, **options: str) -> str:
    """Plan a library of all operators below `templates` in `folder`. Returns the output.

    `options` are options of a build, without `AOT_TUNE_` in front.

    Raises:
        SystemExit: when it fails. It has the end of the output.
    """
    given = {"MODE": "tune", "TARGETS": family, "CACHE_DIR": str(cache.resolve()), **options}
    configure = ["configure", "--name", "tuned", "--prefix", "tuned", "--header", "tuned.h"]
    configure += ["--directory", str(folder.resolve()), "--templates", str(templates.resolve())]
    configure += [word for name, value in given.items() for word in ("--option", f"AOT_TUNE_{name}={value}")]
    return _run(configure, {})


def tune(
    folder: Path, templates: Path, family: str, cache: Path, env: Mapping[str, str] | None = None, **options: str
) -> Tuned:
    """Plan and tune a library, up to its sources; see `plan`. `env` is added to the tuning process's environment."""
    begin = time.monotonic()
    log = plan(folder, templates, family, cache, **options)
    log += _run(["build", "--directory", str(folder.resolve())], env or {})
    seconds = time.monotonic() - begin
    report = msgspec.json.decode((folder / "report.json").read_bytes(), type=Report)
    return Tuned(folder, log, report, seconds)


def _run(arguments: Sequence[str], more: Mapping[str, str]) -> str:
    package = str(Path(aot_tune.__file__).resolve().parent.parent)
    env = {k: v for k, v in os.environ.items() if not k.startswith("AOT_TUNE_")} | dict(more)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    argv = [sys.executable, "-B", "-m", "aot_tune", *arguments]
    done = subprocess.run(
        argv,
        env=env,
        cwd=tempfile.gettempdir(),  # `-m` first searches the current folder, so it must not hold another aot_tune
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"benchmarks: `aot-tune {arguments[0]}` failed:\n{done.stdout[-4000:]}")
    return done.stdout


def forget_measurements(cache: Path) -> None:
    """Empty a cache folder, except for its compiled objects."""
    for path in cache.iterdir() if cache.is_dir() else ():
        if path.name != "objects":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
