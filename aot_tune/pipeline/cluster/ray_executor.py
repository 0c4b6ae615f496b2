"""A build on a Ray cluster: which nodes are fit for it, their compilers, and benches on their devices."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from aot_tune.bench.host.findings import Findings
from aot_tune.bench.protocol.measurement_records import Check, Device, Measurement, Policy, Prepared
from aot_tune.bench.protocol.messages import Checked
from aot_tune.compile import Jobs, Object, Toolchain, Variant, native_targets, target_by_name
from aot_tune.compile.cache_entry import file_digest
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
    sent_options,
    sent_variant,
)
from aot_tune.pipeline.cluster.node import choosing, node_facts
from aot_tune.pipeline.cluster.ray_cluster import ClusterNode, CompilesEndedError, RayCluster, RayDevice
from aot_tune.pipeline.measuring.vendor_process import VendorAnswer, VendorQuestion
from aot_tune.plan.library_plan import Paths, Plan
from aot_tune.plan.preflight import devices
from aot_tune.plan.wanted_targets import best_here, in_order
from aot_tune.search.budget import Budget
from aot_tune.spec import CompileOptions, Operator, Problem, Target
from aot_tune.support.errors import BuildError, Mistakes, ToolchainError, WorkerError

_SHOWN = 3
"""How many of the files that differ are named."""

_STORED = 256
"""How many linked objects the cluster's store has at a time. Large kernels have megabytes."""


class RemoteBench:
    """See `Bench`. `put` sends each linked object to the node once, as bytes.

    The node loads the operators from its own copy of the project's files. One device checks an object on odd problems,
    and its verdict holds for the others. References are computed on each device.
    """

    def __init__(
        self, begin: Begin, host: RayDevice, put: Callable[[Path], Any], log: Callable[[str], None], findings: Findings
    ) -> None:
        self._verdicts = findings.verdicts
        self._begin, self._host, self._put, self._log = begin, host, put, log
        self._alone = self._lost = False
        self.referring = 0.0

    def __enter__(self) -> RemoteBench:
        self._ask("begin", encode(self._begin))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._lost:
            self._host.tell("end")

    def prepare(self, operator: Operator, on: Problem | Check) -> Prepared:
        check = Check(problem=on) if isinstance(on, Problem) else on
        prepared = self._call("prepare", operator=operator.name, on=check).prepared
        if prepared is None:
            raise WorkerError("a node did not say where a reference is")
        return prepared

    @contextmanager
    def alone(self) -> Iterator[None]:
        self._alone = True
        try:
            yield
        finally:
            self._alone = False

    def screen(
        self, prepared: Prepared, variant: Variant, best_ns: float | None = None, tune_checks: bool = True
    ) -> Measurement:
        return self._checked("screen", prepared, variant, best_ns=best_ns, tune_checks=tune_checks)

    def verify(self, prepared: Prepared, variant: Variant, tune_checks: bool = True) -> Measurement:
        return self._checked("verify", prepared, variant, tune_checks=tune_checks)

    def _checked(self, method: str, prepared: Prepared, variant: Variant, **given: Any) -> Measurement:
        suite = Findings.suite(prepared.operator_folder, variant.code, variant.requires)
        verdict = None if self._alone else self._verdicts.made(suite)
        if isinstance(verdict, Checked):
            given["verdict"] = verdict
        answer = self._call(method, [variant], prepared=prepared, **given)
        if answer.verdict is not None and not self._alone:
            self._verdicts.put(suite, answer.verdict)
        return answer.measurements[0]

    def race(self, prepared: Prepared, variants: Sequence[Variant]) -> list[Measurement]:
        return self._call("race", variants, prepared=prepared).measurements

    def survey(self, operator: Operator, problem: Problem, variants: Sequence[Variant]) -> list[Measurement]:
        return self._call("survey", variants, operator=operator.name, on=Check(problem=problem)).measurements

    def interrupt(self) -> None:
        self._host.tell("interrupt")

    def _call(self, method: Any, variants: Sequence[Variant] = (), **given: Any) -> BenchAnswer:
        call = BenchCall(method=method, variants=[sent_variant(v) for v in variants], alone=self._alone, **given)
        return self._ask("call", encode(call), *(self._put(Path(v.shared)) for v in variants))

    def _ask(self, method: str, *arguments: Any) -> BenchAnswer:
        try:
            answer = decode(self._host.ask(method, *arguments, log=self._log), BenchAnswer)
        except WorkerError:
            self._lost = True
            raise
        self.referring = max(self.referring, answer.referring)
        if answer.error is not None:
            raise answer.error.error()
        return answer


def check_node(node: ClusterNode, there: NodeFacts | str, here: NodeFacts) -> None:
    """Compare a node's answer with ours. Raises BuildError for what would change objects or measurements."""
    if isinstance(there, str):
        raise BuildError(
            f"{node.shown} cannot take part in the build",
            why=there,
            fix="pip install 'aot_tune[ray]' in the Python that Ray runs in there, or take the node out of the cluster",
        )
    _check_package(node, there, here)
    if node.cpus:  # without CPUs nothing is compiled there
        _check_compilers(node, there, here)
    _check_files(node, there.files, here.files)


def _check_package(node: ClusterNode, there: NodeFacts, here: NodeFacts) -> None:
    if (there.version, there.code) == (here.version, here.code):
        return
    other = f"{there.version}, not {here.version}" if there.version != here.version else f"another {there.version}"
    raise BuildError(
        f"{node.shown} has another aot_tune: {other}",
        why="another version may compile, verify and time otherwise",
        fix="install the same aot_tune on all nodes, then restart Ray there",
    )


def _check_compilers(node: ClusterNode, there: NodeFacts, here: NodeFacts) -> None:
    for backend, reason in there.missing.items():
        if backend in here.makers:
            raise BuildError(
                f"{node.shown} has no compiler for {backend}",
                why=reason,
                fix="install it there, or start the node with `ray start --num-cpus=0`: then nothing is compiled on it",
            )
    for backend, maker in here.makers.items():
        if there.makers.get(backend) != maker:
            raise BuildError(
                f"{node.shown} has another compiler for {backend}: {_difference(there.makers[backend], maker)}",
                why="the keys of its objects would name the wrong compiler",
                fix="install the same compiler on all nodes, or start the node with `ray start --num-cpus=0`, so that "
                "nothing is compiled on it",
            )


def _difference(there: Mapping[str, Any], here: Mapping[str, Any], prefix: str = "") -> str:
    """The first thing that differs, in a few words."""
    for name in dict.fromkeys((*here, *there)):
        mine, other = here.get(name), there.get(name)
        if mine == other:
            continue
        if isinstance(mine, Mapping) and isinstance(other, Mapping):
            return _difference(other, mine, f"{name} ")
        return f"{prefix}{name} {str(other)[:80]!r}, here {str(mine)[:80]!r}"
    return "no difference"


def _check_files(node: ClusterNode, there: Mapping[str, str], here: Mapping[str, str]) -> None:
    wrong = [name for name, digest in here.items() if there.get(name) != digest]
    if not wrong:
        return
    absent = not any(there.get(name) for name in wrong)
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    raise BuildError(
        f"{node.shown} {'lacks' if absent else 'has other contents of'} {', '.join(wrong[:_SHOWN])}{more}",
        why="the node loads operators from the project's files, at the same path as this machine",
        fix="put the project at the same path on all nodes: on a shared file system, or in the nodes' image",
    )


@contextmanager
def ray_executor(log: Callable[[str], None], targets: Collection[str] | None = None) -> Iterator[RayExecutor]:
    """The cluster of RAY_ADDRESS, or the one that this machine belongs to, for the length of the block.

    Only devices that run one of `targets` are held, and others can use the rest. Without targets, all are held.

    Raises:
        BuildError: when there is none, or its nodes have another version of this package.
    """
    with RayCluster(os.environ.get("RAY_ADDRESS") or "auto") as cluster:
        yield RayExecutor(cluster, log, targets)


class RayExecutor:
    """The machines of a cluster. CPU targets are measured on this machine, GPU targets on any GPU of the cluster."""

    def __init__(self, cluster: RayCluster, log: Callable[[str], None], targets: Collection[str] | None) -> None:
        self._cluster, self._log = cluster, log
        self._plan: Plan | None = None
        self._roots: tuple[str, ...] = ()
        self._environ: dict[str, str] = {}
        self._lock = threading.Lock()
        self._sent: dict[Path, Any] = {}
        nodes = cluster.nodes()
        self._check(nodes, NodeQuestion())
        self._hosts: dict[str, RayDevice] = {}
        self._facts: list[tuple[Device, tuple[str, ...]]] = []
        wanted = targets is None or any(not target_by_name(t).on_host for t in targets)
        for held in cluster.hold_devices([n for n in nodes if n.gpus and wanted], log):
            facts = decode(held.facts, GpuFacts)
            if facts.device is None:
                log(f"{held.node.gpu} of {held.node.shown} is not used: {facts.error}")
            if facts.device is None or (targets is not None and not set(targets).intersection(facts.targets)):
                held.release()
                continue
            self._hosts[facts.device.unit] = held
            self._facts.append((facts.device, facts.targets))
        cpus = sum(n.cpus for n in nodes)
        log(f"Ray cluster at {cluster.address}: {len(nodes)} node{'s' * (len(nodes) != 1)}, {cpus} CPUs")
        for device, _ in self._facts:
            log(f"device {device.name} {device.unit} on {self._hosts[device.unit].node.shown}")

    def chooses(self, environ: Mapping[str, str]) -> None:
        """Make nodes use the compilers that the environment's variables choose."""
        self._environ = choosing(environ)

    def agree(self, plan: Plan, paths: Paths, files: Sequence[Path]) -> None:
        """Check that nodes compile as this machine and have the same files. Raises BuildError naming others."""
        self._plan, self._roots = plan, paths.templates
        self.chooses({**os.environ, "AOT_TUNE_TEMPLATE_ROOTS": os.pathsep.join(paths.templates)})
        nodes = self._cluster.nodes()
        if not any(n.cpus for n in nodes):
            raise BuildError(
                "no node of the Ray cluster has CPUs to compile on",
                why="Ray was started there without CPUs",
                fix="start a node with `ray start --num-cpus=N`",
            )
        question = NodeQuestion(
            backends=tuple(plan.toolchains),
            targets=tuple(dict.fromkeys((*plan.targets, *plan.baselines))),
            environ=self._environ,
            files=tuple(str(f) for f in files),
        )
        self._check(nodes, question)

    def _check(self, nodes: Sequence[ClusterNode], question: NodeQuestion) -> None:
        here, mistakes = node_facts(question), Mistakes()
        for name, answer in self._cluster.ask_nodes(encode(question), nodes).items():
            node = next(n for n in nodes if n.id == name)
            if isinstance(answer, str) and node.id not in {n.id for n in self._cluster.nodes()}:
                continue  # it died meanwhile
            with mistakes.gather():
                check_node(node, answer if isinstance(answer, str) else decode(answer, NodeFacts), here)
        mistakes.tell()

    def best(self) -> list[Target]:
        """See `Machines`: the best target of this machine's CPU, and of each GPU."""
        by_name = {t.name: t for t in best_here() if t.on_host}
        for _, names in self._facts:
            last = in_order(map(target_by_name, names))[-1]
            by_name[last.name] = last
        return in_order(by_name.values())

    def native(self) -> list[Target]:
        names = {t for _, targets in self._facts for t in targets}
        native = (*(t for t in native_targets() if t.on_host), *map(target_by_name, sorted(names)))
        return in_order({t.name: t for t in native}.values())

    def devices(self, threads: int, families: Sequence[str]) -> list[Device]:
        host = {t.family for t in native_targets() if t.on_host}
        return [
            *devices(threads, [f for f in families if f in host]),
            *(device for device, _ in self._facts if device.family in families),
        ]

    def check_measuring(
        self,
        targets: Sequence[Target],
        toolkit: str,
        environment: Mapping[str, str],  # noqa: ARG002 - each node has its own
    ) -> list[str]:
        """See `Machines`; warnings are lines of the log."""
        for device, runnable in self._facts:
            if names := [t.name for t in targets if t.name in runnable]:
                host = self._hosts[device.unit]
                answer = decode(host.ask("check", names, toolkit, log=self._log), BenchAnswer)
                if answer.error is not None:
                    raise answer.error.error(where=host.node.shown)
        return []

    def jobs(self, toolchain: Toolchain, limit: int | None) -> Jobs:
        """How many compilers run at a time, and why; `limit` is what the user allows.

        They are as many as the nodes' CPUs and memory allow, as stated when Ray was started.
        """
        nodes = [n for n in self._cluster.nodes() if n.cpus]
        memory = self._memory(toolchain, nodes)
        count = sum(min(n.cpus, n.memory // memory if memory else n.cpus) for n in nodes)
        count = max(1, min(count, limit or count))
        where = f"on {len(nodes)} node{'s' * (len(nodes) != 1)} of the Ray cluster"
        return Jobs(count=count, reason=f"{count} compilers at a time {where}", memory=memory)

    def _memory(self, toolchain: Toolchain, nodes: Sequence[ClusterNode]) -> int:
        """Bytes to ask for, at most what some node has. Ray would wait without end for more."""
        return min(toolchain.memory_per_job(), max((n.memory for n in nodes), default=0))

    def compile(
        self, toolchain: Toolchain, source: str, target: Target, out: Path, timeout: float, options: CompileOptions
    ) -> Object:
        order = CompileOrder(
            backend=toolchain.name,
            source=source,
            target=target.name,
            timeout=timeout,
            options=sent_options(options),
            environ=self._environ,
        )
        memory = self._memory(toolchain, [n for n in self._cluster.nodes() if n.cpus])
        try:
            reply = decode(self._cluster.compile(encode(order), memory), MadeObject)
        except CompilesEndedError as error:
            return Object(status="compile-failed", log=f"error: {error.text}", lasting=False)
        if reply.error is not None or reply.outcome is None:
            raise (
                ToolchainError("a node did not compile the source")
                if reply.error is None
                else reply.error.error(where=reply.node)
            )
        for name, digest in reply.outcome.includes.items():
            if file_digest(toolchain.locate(name)) != digest:
                raise ToolchainError(
                    f"{name} on node {reply.node} is not what it is on this machine",
                    why="a source includes it, so the object's key would name a file that the compiler did not read",
                    fix="use the same headers on all nodes: one image, or a shared file system",
                )
        for name, data in reply.files.items():
            (out.parent / name).write_bytes(data)
        return reply.outcome

    def end_compiles(self) -> None:
        self._cluster.end_compiles()

    def has(self, device: Device) -> bool:
        return device.unit in self._hosts

    def ask_vendor(self, question: VendorQuestion, device: Device) -> VendorAnswer:
        try:
            return decode(self._hosts[device.unit].ask("ask_vendor", encode(question), log=self._log), VendorAnswer)
        except WorkerError as error:
            return VendorAnswer(error=error.what)

    def bench(
        self,
        device: Device,
        policy: Policy,
        threads: int,
        patience: Budget | None,
        findings: Findings,
        *,
        exclusive: bool,
    ) -> RemoteBench:
        """A bench on a device. If `exclusive`, it waits until the device is free, at most until the budget ends.

        Benches on devices of the same model share `findings`: the verdicts of objects on odd problems.

        Raises:
            WorkerError: when there is no such bench.
        """
        if self._plan is None:
            raise BuildError("the cluster was not checked for the build")
        begin = Begin(
            plan=self._plan,
            roots=self._roots,
            policy=policy,
            threads=threads,
            exclusive=exclusive,
            patience=None if patience is None or patience.patience == math.inf else patience.patience,
        )
        return RemoteBench(begin, self._hosts[device.unit], self._put, self._log, findings)

    def _put(self, path: Path) -> Any:
        """A linked object in the cluster's store, once for all devices. Only the objects used last stay there."""
        with self._lock:
            sent = self._sent.pop(path, None)
            if sent is None:
                sent = self._cluster.put(path.read_bytes())
            self._sent[path] = sent
            if len(self._sent) > _STORED:
                del self._sent[next(iter(self._sent))]
            return sent
