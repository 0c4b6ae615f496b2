"""Sanitizers on what ships: each variant that is kept makes calls once more in a process that a sanitizer watches.

On a CPU, its source is compiled again for each sanitizer, and called on all checks. On a GPU, compute-sanitizer's tools
watch the object that ships, on its smallest checks. A report fails the operator, unless the kernel declares that it is
false. What cannot be run, or does not end, gets no verdict, and a line says so.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property, partial
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import msgspec

from aot_tune.bench.devices.family import family
from aot_tune.bench.host.odd_problems import oddest_checks
from aot_tune.bench.protocol.measurement_records import Check, Device, Measurement
from aot_tune.bench.protocol.messages import WatchedCalls, WatchedJob
from aot_tune.compile import Toolchain, Variant, target_by_name, toolchain_for
from aot_tune.compile.diagnostics import first_error
from aot_tune.compile.toolkit import find_compute_sanitizer
from aot_tune.database import operator_digest
from aot_tune.database.measurement_store import OperatorStore
from aot_tune.pipeline.evidence import Chosen
from aot_tune.pipeline.measuring.device_lock import device_lock
from aot_tune.pipeline.measuring.lazy_bench import BenchFiles
from aot_tune.pipeline.measuring.verify_variants import served_by
from aot_tune.pipeline.session import Session
from aot_tune.report.report_text import counted
from aot_tune.spec import CompileOptions, Operator, Problem, Target
from aot_tune.spec.kernel import SANITIZERS
from aot_tune.support.errors import BuildError, ToolchainError
from aot_tune.support.run_program import Finished, python_environment, python_module, run
from aot_tune.support.storage import scratch_folder

_CLEAN, _FALSE = "clean", "reported falsely: "
"""Verdicts. The second one has the reason that the kernel declares."""
_HOST_TOOLS = ("address,undefined", "thread")
_TEAM = Path(__file__).parents[2] / "compile" / "watched_team.cpp"
_COMPILED = ("-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O1", "-g1")
_COMPILE_SECONDS = 240.0
_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "halt_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=1:ignore_noninstrumented_modules=1",
}
_REPORTED = 86
"""The exit status by which compute-sanitizer says that it has reported something."""
_GPU_OPTIONS = ("--error-exitcode", str(_REPORTED), "--target-processes", "application-only")
_MORE = {"memcheck": ("--report-api-errors", "no")}
_NO_LIBRARY = "the C++ compiler has no lib{}; install it, it is one of gcc's"
_NO_PROGRAM = (
    "compute-sanitizer is neither on PATH nor beside nvcc; install it with the CUDA toolkit, or "
    "`pip install nvidia-cuda-sanitizer-api`"
)
_TOGETHER = 16
"""How many variants of a GPU one process calls. It takes seconds to start."""
SECONDS = (90.0, 60.0)
"""How long a process may take to start, and for each variant."""
_FLOPS = 1 << 28
"""The largest problem that is tried so that two threads share a call. Under the thread sanitizer it takes seconds."""
_ON_HOST = re.compile(r"^(?:SUMMARY: (\w+Sanitizer: .*)|(\S+ runtime error: .*))$", re.MULTILINE)
_ON_GPU = re.compile(r"^========= (?!COMPUTE-SANITIZER| |(?:ERROR|RACECHECK) SUMMARY)(.+)$", re.MULTILINE)
_PLACE = re.compile(r"^@(\d+) (.*)$", re.MULTILINE)
_ALONE = re.compile(r"^@ alone (\d+)$", re.MULTILINE)


class _Item(NamedTuple):
    """A variant to watch, with its operator."""

    operator: Operator
    variant: Variant

    def served(self, devices: str) -> list[Problem]:
        """The problems of the workload that it serves."""
        return served_by(self.operator, self.variant, devices)


class _Result(NamedTuple):
    """What came of a variant under a sanitizer: a `report`, or why there is no verdict (`none`), or neither."""

    report: str = ""
    none: str = ""
    place: str = ""


class _Tool:
    """A sanitizer for a device of its own kind: some of the compiler's, or a tool of compute-sanitizer's.

    One process calls `together` variants. With `halts`, it ends at a report. With `shared`, threads must share a call.
    """

    def __init__(self, name: str, session: Session, device: Device, files: BenchFiles) -> None:
        self.name, self.session, self.device, self.files = name, session, device, files
        self.policy, self.on_host = session.policy(device.family), name in _HOST_TOOLS
        self.shared, self.halts = name == "thread", self.on_host or name == "memcheck"
        self.together = 1 if self.on_host else _TOGETHER
        self._library = "tsan" if self.shared else "asan"

    @cached_property
    def _chain(self) -> Toolchain:
        return toolchain_for("cxx", self.session.environment)

    @cached_property
    def _program(self) -> str:
        """The file of the compiler's runtime library, or of compute-sanitizer. Empty if there is none."""
        if not self.on_host:
            return find_compute_sanitizer(self.session.environment) or ""
        try:
            (file,) = self._chain.libraries(CompileOptions(libraries=(self._library,)))
        except ToolchainError:
            return ""
        if Path(file).read_bytes()[:4] == b"\x7fELF":
            return file
        named = re.search(r"/\S+\.so[.\d]*", Path(file).read_text(errors="replace"))  # a script for the linker
        return named[0] if named else ""

    @cached_property
    def _team(self) -> Path:
        """The object with OpenMP's teams."""
        options = CompileOptions(options=("-fsanitize=thread", *_COMPILED))
        return self._compile(_TEAM.stem, _TEAM.read_text("utf-8"), target_by_name("cpu-x86-64"), options)

    def missing(self) -> str:
        """Why it cannot run here, and what to do. Empty if it can."""
        if not self._program:
            return _NO_LIBRARY.format(self._library) if self.on_host else _NO_PROGRAM
        try:
            _ = self.shared and self._team  # now, before several threads ask for it
        except ToolchainError as error:
            return error.what
        return ""

    def made(self, variant: Variant) -> Path | None:
        """A variant's shared object for it; None if it has nothing to look for. Raises ToolchainError."""
        own, ships = variant.rendered.compile, variant.made.path
        if not self.on_host:
            calls = toolchain_for(variant.candidate.backend).only_calls  # a vendor's kernels
            return None if calls else self.files.link(variant.rendered, variant.made)
        if self.shared and ships and not _has_teams(Path(ships)):
            return None
        options = CompileOptions(
            include_directories=own.include_directories,
            definitions=own.definitions,
            options=(*own.options, f"-fsanitize={self.name}", *_COMPILED),
        )
        made = self._compile(variant.id, variant.rendered.source, variant.target, options)
        if self.shared and not _has_teams(made):
            return None
        objects = [made, self._team] if self.shared else [made]
        libraries = (*self._chain.libraries(own), f"-fsanitize={self.name}")
        self._chain.link_shared(objects, made.with_suffix(".so"), libraries)
        return made.with_suffix(".so")

    def _compile(self, name: str, source: str, target: Target, options: CompileOptions) -> Path:
        """An object that no library gets. Raises ToolchainError when it does not compile."""
        out = self.files.folder() / f"{self._library}-{name}" / "watched.o"
        out.parent.mkdir()
        made = self._chain.compile(source, target, out, _COMPILE_SECONDS, options)
        if made.status != "ok":
            raise ToolchainError(f"it does not compile with -fsanitize={self.name}: {first_error(made.log)}")
        return out

    def calls(self, item: _Item, path: Path) -> WatchedCalls:
        """A variant's calls."""
        operator, larger = item.operator, list[Check]()
        checks = self.session.checks.of(operator, item.variant.requires, self.policy, on_host=self.on_host)
        smallest = [Check(problem=_smallest(item, self.device.family))]
        if self.shared:
            flops = [(operator.flops.evaluate(operator.facts(p)), p) for p in item.served(self.device.family)]
            larger = [Check(problem=p) for n, p in sorted(flops, key=itemgetter(0)) if n <= _FLOPS]
        return WatchedCalls(
            path=str(path),
            symbol=item.variant.symbol,
            operator_folder=operator.folder,
            checks=(*smallest, *checks) if self.on_host else tuple(oddest_checks(checks) or smallest),
            larger=tuple(larger),
        )

    def run(self, calls: Sequence[WatchedCalls], seconds: float) -> Finished:
        """Make calls of variants in a process of their own."""
        with scratch_folder() as scratch:
            folder = Path(scratch)
            job = WatchedJob(
                device=self.device, policy=self.policy, scratch=scratch, variants=tuple(calls), shared=self.shared
            )
            (folder / "job.json").write_bytes(msgspec.json.encode(job))
            environ = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "LANG") if name in os.environ}
            environ |= {**python_environment(sys.path), "HOME": scratch, "TMPDIR": scratch, "LC_ALL": "C.UTF-8"}
            kind, threads = family(self.device.family), self.session.threads
            environ |= kind.environment(self.device, threads, "candidate", folder, self.policy)
            argv = python_module("aot_tune.bench.worker.watched_calls", "job.json")
            if self.on_host:
                environ |= {"LD_PRELOAD": self._program, **_OPTIONS}
            else:
                environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
                argv = [self._program, "--tool", self.name, *_GPU_OPTIONS, *_MORE.get(self.name, ()), *argv]
            return run(argv, folder=folder, environ=environ, timeout=seconds, keep=1 << 20)

    def report(self, done: Finished) -> str:
        """What it has reported, or empty."""
        if self.on_host:
            reported = _ON_HOST.search(done.output)
        else:
            reported = _ON_GPU.search(done.output) if done.code == _REPORTED else None
        return next(filter(None, reported.groups()), "") if reported else ""

    def store(self, operator: Operator) -> OperatorStore:
        """What it found clean before on this machine."""
        return self.session.store.operator(
            operator.name, operator_digest(operator), self.device, self.policy, kind=f"under {self.name}"
        )


def sanitize_kept(
    session: Session,
    chosen: Mapping[str, Sequence[Chosen]],
    generics: Mapping[str, Sequence[Variant]],
    tools: Sequence[str] = SANITIZERS,
) -> None:
    """Run variants whose devices are here under sanitizers, and keep verdicts. Operators with reports fail."""
    groups: dict[str, tuple[Device, list[_Item]]] = {}
    for name, operator in session.operators.items():
        members = chosen.get(name, ())
        variants = {c: m.evidence.variants[c] for m in members for c in m.selection.kept}
        for variant in (variants | {g.id: g for g in generics[name]}).values():
            device = session.device_for(target_by_name(variant.candidate.target))
            if device is not None:
                groups.setdefault(device.digest, (device, []))[1].append(_Item(operator, variant))
    for device, items in groups.values():
        if session.executor is not None and session.executor.has(device):
            session.progress.line(f"NOTE no sanitizer ran on {device.name} (AOT_TUNE_SANITIZE): it is of a cluster")
            continue
        on_host = family(device.family).on_host
        with BenchFiles(session) as files, ExitStack() as stack:
            if not on_host:
                stack.enter_context(device_lock(device, session.progress.line, None))
            for name in tools:
                if (name in _HOST_TOOLS) == on_host:
                    _sanitize(_Tool(name, session, device, files), items)


def _sanitize(tool: _Tool, items: Sequence[_Item]) -> None:
    """Run variants under one sanitizer, and keep and tell what came of it."""
    session = tool.session
    waiting = [item for item in items if not _is_clean(tool, item)]
    if waiting and (why := tool.missing()):
        session.progress.line(f"NOTE {tool.name} did not run (AOT_TUNE_SANITIZE): {why}")
        return
    batches = [waiting[i : i + tool.together] for i in range(0, len(waiting), tool.together)]
    clean, began = len(items) - len(waiting), session.progress.now()
    with ThreadPoolExecutor(session.jobs_of("cxx").count if tool.together == 1 else 1) as threads:
        try:
            for done, outcomes in enumerate(threads.map(partial(_watched, tool), batches), 1):
                clean += sum(_settled(tool, item, outcome) for item, outcome in outcomes)
                session.progress.count(tool.name, min(done * tool.together, len(waiting)), len(waiting), since=began)
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise
    session.progress.line(f"{tool.name}: {counted(clean, 'variant')} clean")


def _is_clean(tool: _Tool, item: _Item) -> bool:
    """Whether the committed record or the store says so."""
    verdicts = tool.session.verdicts.setdefault(item.variant.code, {})
    if verdicts.get(tool.name) == _CLEAN:
        return True
    known = tool.store(item.operator).find(item.variant.id, item.variant.code, _smallest(item, tool.device.family))
    if known is not None:
        verdicts[tool.name] = _CLEAN
    return known is not None


def _settled(tool: _Tool, item: _Item, outcome: _Result) -> bool:
    """Keep a verdict, or say why there is none. Returns whether it is clean."""
    session, variant, operator = tool.session, item.variant, item.operator
    kernel = operator.kernel(variant.candidate.kernel)
    name, where = f"{variant.candidate.label} of {operator.name}", f" ({outcome.place})" if outcome.place else ""
    if outcome.none:
        session.progress.line(f"NOTE {tool.name} has no verdict on {name}: {outcome.none}{where}")
    elif outcome.report and tool.name in kernel.false_reports:
        session.verdicts[variant.code][tool.name] = _FALSE + kernel.false_reports[tool.name]
        session.progress.line(f"{tool.name} reports {name} falsely, its kernel declares: {outcome.report}{where}")
    elif outcome.report:
        with session.failures.of(operator.name):
            raise BuildError(
                f"operator {operator.name!r}: {tool.name} reports its variant {variant.candidate.label}{where}",
                why=outcome.report,
                fix=f"correct {kernel.source}. If the report is false, the kernel says so: "
                f'false_reports={{"{tool.name}": "the reason"}}',
            )
    else:
        session.verdicts[variant.code][tool.name] = _CLEAN
        measured = Measurement(
            candidate=variant.id,
            code=variant.code,
            problem=_smallest(item, tool.device.family),
            device=tool.device.digest,
            policy=tool.policy.digest,
            status="ok",
        )
        tool.store(operator).put(measured)
        return True
    return False


def _has_teams(made: Path) -> bool:
    """Whether an object has regions of OpenMP."""
    return b"GOMP_parallel" in made.read_bytes()


def _smallest(item: _Item, devices: str) -> Problem:
    """The problem of the workload with the fewest bytes that a variant serves."""
    return min(item.served(devices), key=lambda p: (item.operator.compulsory_bytes(p), p.id))


def _watched(tool: _Tool, items: Sequence[_Item]) -> list[tuple[_Item, _Result]]:
    """What came of variants. Those that have nothing for the sanitizer are left out."""
    outcomes, ready = list[tuple[_Item, _Result]](), list[tuple[_Item, WatchedCalls]]()
    for item in items:
        try:
            path = tool.made(item.variant)
        except ToolchainError as error:
            outcomes.append((item, _Result(none=error.what)))
            continue
        if path is not None:
            ready.append((item, tool.calls(item, path)))
    return outcomes + _judged(tool, ready)


def _judged(tool: _Tool, ready: Sequence[tuple[_Item, WatchedCalls]]) -> list[tuple[_Item, _Result]]:
    """Run variants in one process. If it is unclear which one was reported, halves of them run again."""
    if not ready:
        return []
    start, each = SECONDS
    seconds = start + each * len(ready)
    done = tool.run([calls for _, calls in ready], seconds)
    report, places = tool.report(done), _PLACE.findall(done.output)
    alone = {int(number) for number in _ALONE.findall(done.output)}
    items = [item for item, _ in ready]
    if done.code == 0 and not report:
        return [(item, _Result()) for number, item in enumerate(items) if number not in alone]
    if not places:  # not even the first variant was loaded
        return [(item, _Result(none=_why(done, seconds))) for item in items]
    if len(ready) > 1 and "\n@ done\n" in done.output:
        half = len(ready) // 2
        return _judged(tool, ready[:half]) + _judged(tool, ready[half:])
    number, place = int(places[-1][0]), places[-1][1]
    last = _Result(report=report, none="" if report else _why(done, seconds), place=place)
    before = [(item, _Result()) for item in items[:number]] if tool.halts else _judged(tool, ready[:number])
    return [*before, (items[number], last), *_judged(tool, ready[number + 1 :])]


def _why(done: Finished, seconds: float) -> str:
    """Why a process gives no verdict."""
    if done.timed_out:
        return f"it did not end within {seconds:g} s"
    said = [line for line in done.output.strip().splitlines() if not line.startswith("@")]
    return f"it ended with status {done.code}: {said[-1].strip()[:200] if said else 'it printed nothing'}"
