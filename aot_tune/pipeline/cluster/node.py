"""What runs on a node of a cluster: compiles, and a device that is held for one build. Only the cluster starts it."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import msgspec

from aot_tune import __version__
from aot_tune.bench.devices.family import family
from aot_tune.bench.host.bench import Bench
from aot_tune.bench.host.findings import Findings
from aot_tune.bench.protocol.measurement_records import Prepared
from aot_tune.bench.protocol.messages import Checked
from aot_tune.compile import Toolchain, Variant, families_of, native_targets, target_by_name, toolchain_for
from aot_tune.compile.cache_entry import OBJECT, file_digest
from aot_tune.compile.diagnostics import SOURCES
from aot_tune.pipeline.cluster.cluster_messages import (
    Begin,
    BenchAnswer,
    BenchCall,
    CompileOrder,
    GpuFacts,
    MadeObject,
    NodeFacts,
    NodeQuestion,
    decode,
    encode,
    taken_options,
    taken_variant,
)
from aot_tune.pipeline.loaded_operators import stated_operators
from aot_tune.pipeline.measuring.device_lock import device_lock
from aot_tune.pipeline.measuring.vendor_process import VendorQuestion, ask_vendor
from aot_tune.plan.preflight import check_measuring, device_families
from aot_tune.search.budget import Budget
from aot_tune.spec import Operator, Target
from aot_tune.support.digests import digest_of_files
from aot_tune.support.errors import AotTuneError, SentError, ToolchainError, WorkerError
from aot_tune.support.installed_paths import PACKAGE, package_code
from aot_tune.support.run_program import key_environment
from aot_tune.support.storage import check_loadable, scratch_folder

_CHOOSE = (
    "CXX",
    "NVCC",
    "CUDACXX",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDAHOSTCXX",
    "NVCC_CCBIN",
    "NVCC_PREPEND_FLAGS",
    "NVCC_APPEND_FLAGS",
    "CUTLASS_PATH",
    "AOT_TUNE_TEMPLATE_ROOTS",
)

_OWN = ("AOT_TUNE_CACHE", "AOT_TUNE_CACHE_DIR", "AOT_TUNE_JOBS")
"""Variables that concern the build's own machine only."""


def choosing(environ: Mapping[str, str]) -> dict[str, str]:
    """The build's variables that choose compilers or are part of keys. A node finds programs by its own PATH."""
    return key_environment(environ) | {n: environ[n] for n in _CHOOSE if environ.get(n)}


def tell_node(question: bytes) -> bytes:
    """Answer a `NodeQuestion` with `NodeFacts`."""
    return encode(node_facts(decode(question, NodeQuestion)))


def node_facts(asked: NodeQuestion) -> NodeFacts:
    """What this machine has for a build."""
    makers, missing = {}, {}
    for backend in asked.backends:
        try:
            chain = _chain(backend, tuple(sorted(asked.environ.items())))
            named = (target_by_name(t) for t in asked.targets)
            makers[backend] = {
                "identity": chain.identity(),
                **{t.name: chain.recipe(t) for t in named if t.family in families_of(chain)},
            }
        except ToolchainError as error:
            missing[backend] = str(error)
    return NodeFacts(
        version=__version__,
        code=_package_digest(),
        python=platform.python_version(),
        makers=makers,
        missing=missing,
        files={name: file_digest(name) for name in asked.files},
    )


def compile_here(order: bytes) -> bytes:
    """Carry out a `CompileOrder` in a folder that is removed afterwards. The answer is a `MadeObject`."""
    node = platform.node()
    try:
        return encode(_compile(node, decode(order, CompileOrder)))
    except AotTuneError as error:
        return encode(MadeObject(node=node, error=SentError.of(error)))


def _compile(node: str, order: CompileOrder) -> MadeObject:
    chain = _chain(order.backend, tuple(sorted(order.environ.items())))
    with scratch_folder() as name:
        folder = Path(name)
        target, options = target_by_name(order.target), taken_options(order.options)
        outcome = chain.compile(order.source, target, folder / OBJECT, order.timeout, options)
        includes = {name: file_digest(chain.locate(name)) for name in outcome.includes}
        kept = (OBJECT,) if outcome.status == "ok" else SOURCES
        return MadeObject(
            node=node,
            outcome=msgspec.structs.replace(outcome, includes=includes),
            files={p.name: p.read_bytes() for p in folder.iterdir() if p.name in kept},
        )


@cache
def _chain(backend: str, variables: tuple[tuple[str, str], ...]) -> Toolchain:
    """The toolchain that a build's variables choose here. It is cached, because it searches for its programs."""
    ours = {n: v for n, v in os.environ.items() if n not in {*_CHOOSE, *_OWN, *key_environment(os.environ)}}
    return toolchain_for(backend, {**ours, **dict(variables)})


@cache
def _package_digest() -> str:
    """Digest of the package's code. The operators that are installed with it do not count."""
    code = {str(p.relative_to(PACKAGE)): p for p in package_code()}
    return digest_of_files((name, p) for name, p in code.items() if not name.startswith("ops/"))


class DeviceHost:
    """A node's device, and the bench that a build has started on it.

    Several threads may call the methods. They take and return bytes: records of `cluster_messages`. The workers of a
    bench end with the thread that started them, so this object keeps one thread for the bench.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._lock = threading.Lock()
        self._lines: list[str] = []
        self._stack = ExitStack()
        self._bench: Bench | None = None
        self._folder = Path()
        self._operators: Mapping[str, Operator] = {}
        self._interrupted = threading.Event()

    def facts(self) -> bytes:
        """`GpuFacts`."""
        return self._thread.submit(lambda: encode(_device_facts())).result()

    def check(self, targets: Sequence[str], toolkit: str) -> bytes:
        """Whether objects of a toolkit for targets can be measured here: an error, or warnings as lines."""
        return self._answer(self._check, [t for t in native_targets() if t.name in targets], toolkit)

    def begin(self, order: bytes) -> bytes:
        """Start a bench, as a `Begin` says."""
        return self._thread.submit(self._answer, self._begin, decode(order, Begin)).result()

    def call(self, request: bytes, *objects: bytes) -> bytes:
        """Carry out a `BenchCall`. `objects` are the linked objects of its candidates, in the same order."""
        return self._thread.submit(self._answer, self._call, decode(request, BenchCall), objects).result()

    def ask_vendor(self, question: bytes) -> bytes:
        """Answer a `VendorQuestion` about the device."""
        bench = self._bench  # another thread may end it meanwhile
        unit = os.environ.get("CUDA_VISIBLE_DEVICES", "") if bench is None else bench.device.unit
        return encode(ask_vendor(decode(question, VendorQuestion), unit))

    def end(self) -> None:
        """End the bench, if there is one."""
        self._thread.submit(self._end).result()

    def interrupt(self) -> None:
        """Kill what the bench is doing, or end its wait for the device."""
        self._interrupted.set()
        if (bench := self._bench) is not None:  # another thread may end it meanwhile
            bench.interrupt()

    def lines(self) -> list[str]:
        """The lines to print that came since the last call."""
        with self._lock:
            lines, self._lines = self._lines, []
        return lines

    def _log(self, line: str) -> None:
        with self._lock:
            self._lines.append(line)

    def _answer(self, do: Callable[..., BenchAnswer], *given: object) -> bytes:
        try:
            answer = do(*given)
        except AotTuneError as error:
            answer = BenchAnswer(error=SentError.of(error))
        bench = self._bench
        return encode(msgspec.structs.replace(answer, referring=0.0 if bench is None else bench.referring))

    def _check(self, targets: Sequence[Target], toolkit: str) -> BenchAnswer:
        for line in check_measuring(targets, toolkit, None):
            self._log(line)
        return BenchAnswer()

    def _begin(self, order: Begin) -> BenchAnswer:
        self._interrupted.clear()
        self._end()
        facts = _device_facts()
        if facts.device is None:
            raise WorkerError("the device is gone", why=facts.error)
        self._operators = stated_operators(order.plan, [Path(r) for r in order.roots])
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(scratch_folder())).resolve()
            check_loadable(self._folder)  # else every candidate would fail, and the failures would be stored
            if order.exclusive:
                patience = None if order.patience is None else Budget(order.patience)
                stack.enter_context(device_lock(facts.device, self._log, patience, self._interrupted.is_set))
            scratch, waits = self._folder / "bench", order.exclusive
            bench = Bench(
                facts.device, order.policy, scratch=scratch, threads=order.threads, log=self._log, waits=waits
            )
            self._bench = stack.enter_context(bench)
            self._stack = stack.pop_all()
        return BenchAnswer()

    def _end(self) -> None:
        """End the workers, release the device, remove the files."""
        self._bench = None
        self._stack.close()

    def _call(self, call: BenchCall, objects: Sequence[bytes]) -> BenchAnswer:
        bench = self._bench
        if bench is None:
            raise WorkerError("no bench was started on the device")
        variants = [taken_variant(v, self._folder) for v in call.variants]
        for path, data in zip([Path(v.shared) for v in variants], objects, strict=True):
            if not path.exists():  # its name is a digest of its contents
                path.write_bytes(data)
        with bench.alone() if call.alone else contextlib.nullcontext():
            if call.prepared is None:
                assert call.on is not None
                operator = self._operators[call.operator]
                if call.method == "prepare":
                    return BenchAnswer(prepared=bench.prepare(operator, call.on))
                return BenchAnswer(measurements=bench.survey(operator, call.on.problem, variants))
            if call.method == "race":
                return BenchAnswer(measurements=bench.race(call.prepared, variants))
            return _checked(bench, call, call.prepared, variants[0])


def _checked(bench: Bench, call: BenchCall, prepared: Prepared, variant: Variant) -> BenchAnswer:
    suite = Findings.suite(prepared.operator_folder, variant.code, variant.requires)
    verdicts = bench.findings.verdicts
    if call.verdict is not None:
        verdicts.put(suite, call.verdict)
    if call.method == "screen":
        measurement = bench.screen(prepared, variant, call.best_ns, call.tune_checks)
    else:
        measurement = bench.verify(prepared, variant, call.tune_checks)
    verdict = verdicts.made(suite)
    return BenchAnswer(measurements=[measurement], verdict=verdict if isinstance(verdict, Checked) else None)


def _device_facts() -> GpuFacts:
    """The device that the cluster has given to this process; if there are several, the first."""
    targets = [t for t in native_targets() if not t.on_host]
    for name in device_families(targets):
        for device in family(name).devices(1):
            runnable = [t for t in targets if t.family == name]
            return GpuFacts(device=device, targets=tuple(t.name for t in runnable))
    return GpuFacts(error="the process that was given a GPU by the cluster sees none")
