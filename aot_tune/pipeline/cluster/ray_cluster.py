"""Nodes, tasks and device processes of a running Ray cluster. No other module of the project imports Ray."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from aot_tune.pipeline.cluster.node import DeviceHost, compile_here, tell_node
from aot_tune.support.errors import BuildError, WorkerError

_ANSWER_SECONDS = 120.0
"""Seconds for an answer: a node must first start a process and import the package."""
_KNOCK_SECONDS = 10.0
_FREE_SECONDS = 30.0
"""Seconds to wait for a device that another job of the cluster has. Then the build goes on without it."""
_SHOWN = 200
"""How many characters of Ray's error text are shown."""
_RETRIES = 5
"""How often a compile is repeated after its node or process died, perhaps on another node."""
_WAIT = 30.0
"""Seconds after which a waiting compile checks that some node can still do it."""
_LOOK = 1.0
"""Seconds between two requests for a device's log lines."""


class CompilesEndedError(Exception):
    """The build ended while a compile ran, or the processes that should do it died. `text` says which."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class ClusterNode(msgspec.Struct, frozen=True, kw_only=True):
    """A living node: its CPUs, GPUs and bytes of memory for tasks, as they were stated when Ray was started.

    `accelerator` is Ray's label of its GPUs' type, such as H100; empty if there is none.
    """

    id: str
    name: str
    cpus: int
    gpus: int
    memory: int
    accelerator: str = ""

    @property
    def gpu(self) -> str:
        """One of its GPUs, for messages."""
        return f"a GPU ({self.accelerator})" if self.accelerator else "a GPU"

    @property
    def shown(self) -> str:
        return f"node {self.name} ({self.id[:8]})"


class RayCluster:
    """A context manager: this process's connection to a running cluster, which does all the scheduling.

    `address` is HOST:PORT, or `auto` for the cluster that this machine belongs to.

    Raises:
        BuildError: when Ray is not installed, or no cluster can be reached.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._ray = _ray()
        self._lock = threading.Lock()
        self._running: set[Any] = set()
        self._ended = 0

    def __enter__(self) -> RayCluster:
        ray = self._ray
        kept = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
        folder = Path.cwd()
        try:
            _knock(self._address)
            os.chdir("/")  # Ray puts the current folder first on the path of every node's processes
            ray.init(
                address=self._address,
                namespace="aot_tune",
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
            )
        except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
            ray.shutdown()
            raise BuildError(
                f"AOT_TUNE_EXECUTOR=ray: cannot reach a Ray cluster at RAY_ADDRESS={self._address}",
                why=" ".join(str(error).split())[:_SHOWN] or type(error).__name__,
                fix="run the build on a node of the cluster (`ray start --address=HEAD:6379` makes this machine one), "
                "and if it is a node of several clusters, set RAY_ADDRESS to the head's address, such as 10.0.0.1:6379",
            ) from error
        finally:
            os.chdir(folder)
            if threading.current_thread() is threading.main_thread():  # Ray's own handler ends the process at once
                for number, handler in kept.items():
                    signal.signal(number, handler)
        self._compile = ray.remote(num_cpus=1, max_retries=_RETRIES)(compile_here)
        self._tell = ray.remote(num_cpus=0, max_retries=1)(tell_node)
        self._host = ray.remote(num_cpus=0, num_gpus=1, max_restarts=0, max_concurrency=4)(DeviceHost)
        return self

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()  # this also ends the tasks and the devices' processes

    @property
    def address(self) -> str:
        return str(self._ray.get_runtime_context().gcs_address)

    def nodes(self) -> list[ClusterNode]:
        """The living nodes, by name."""
        living = [_node(node) for node in self._ray.nodes() if node["Alive"]]
        return sorted(living, key=lambda n: (n.name, n.id))

    def ask_nodes(self, question: bytes, nodes: Sequence[ClusterNode]) -> dict[str, bytes | str]:
        """The answer of `tell_node` on each node, or why there is none, by the node's id."""
        ray = self._ray
        asked = {n.id: self._tell.options(scheduling_strategy=self._on(n)).remote(question) for n in nodes}
        if asked:
            ray.wait(list(asked.values()), num_returns=len(asked), timeout=_ANSWER_SECONDS)
        return {name: self._result(ref) for name, ref in asked.items()}

    def _result(self, ref: Any) -> bytes | str:
        try:
            return bytes(self._ray.get(ref, timeout=0))
        except self._ray.exceptions.GetTimeoutError:
            return f"it did not answer within {_ANSWER_SECONDS:g} s"
        except self._ray.exceptions.RayError as error:
            return _last_line(error)

    def compile(self, order: bytes, memory: int) -> bytes:
        """Carry out a `CompileOrder`, in any thread. CompilesEndedError: after `end_compiles`, or if nodes die."""
        with self._lock:
            before = self._ended
            ref = self._compile.options(memory=memory or None).remote(order)
            self._running.add(ref)
        try:
            while not self._ray.wait([ref], timeout=_WAIT)[0]:
                if not any(n.cpus for n in self.nodes()):  # Ray would wait without end
                    raise CompilesEndedError("no node of the cluster has CPUs any more")
            return bytes(self._ray.get(ref))
        except self._ray.exceptions.RayError as error:
            ended = self._ended != before
            raise CompilesEndedError("it was ended" if ended else _last_line(error)) from error
        finally:
            with self._lock:
                self._running.discard(ref)

    def end_compiles(self) -> None:
        """End the compiles that run or wait now."""
        with self._lock:
            self._ended += 1
            running = list(self._running)
        for ref in running:
            self._ray.cancel(ref, force=True)

    def hold_devices(self, nodes: Sequence[ClusterNode], log: Callable[[str], None]) -> list[RayDevice]:
        """A process for each GPU of the nodes. A line names each GPU that another job has: it is not used."""
        ray = self._ray
        begun = [
            RayDevice(ray, n, self._host.options(scheduling_strategy=self._on(n)).remote())
            for n in nodes
            for _ in range(n.gpus)
        ]
        asked = {device.actor.facts.remote(): device for device in begun}
        if asked:
            ray.wait(list(asked), num_returns=len(asked), timeout=_FREE_SECONDS)
        held: list[RayDevice] = []
        for ref, device in asked.items():
            try:
                device.facts = bytes(ray.get(ref, timeout=0))
                held.append(device)
            except ray.exceptions.GetTimeoutError:
                log(f"{device.node.gpu} of {device.node.shown} is not used: another job of the cluster has it")
                device.release()
            except ray.exceptions.RayError as error:
                log(f"{device.node.gpu} of {device.node.shown} is not used: {_last_line(error)}")
        return held

    def put(self, data: bytes) -> Any:
        """Put bytes into the object store. They stay as long as the returned reference."""
        return self._ray.put(data)

    def _on(self, node: ClusterNode) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node.id, soft=False)


class RayDevice:
    """A GPU of a node that this build holds, reached through its Ray process. `facts` are `GpuFacts`."""

    facts = b""

    def __init__(self, ray: Any, node: ClusterNode, actor: Any) -> None:
        self._ray, self.node, self.actor = ray, node, actor

    def ask(self, method: str, *arguments: Any, log: Callable[[str], None] = lambda _line: None) -> bytes:
        """Call a method of `DeviceHost` and return its answer. Meanwhile `log` gets the lines to print.

        Raises:
            WorkerError: when the node, or the process, is gone.
        """
        ray = self._ray
        try:
            ref = getattr(self.actor, method).remote(*arguments)
            while not ray.wait([ref], timeout=_LOOK)[0]:
                self._tell(log)
            answer = bytes(ray.get(ref))
            if method != "facts":
                self._tell(log)
            return answer
        except ray.exceptions.RayError as error:
            failed = isinstance(error, ray.exceptions.RayTaskError)
            what = f"{self.node.shown} failed in {method!r}" if failed else f"{self.node.shown} or its process is gone"
            raise WorkerError(what, why=_last_line(error)) from error

    def _tell(self, log: Callable[[str], None]) -> None:
        for line in self._ray.get(self.actor.lines.remote()):
            log(f"{self.node.shown}: {line}")

    def tell(self, method: str) -> None:
        """Call a method and wait for no answer, whether or not the process lives."""
        try:
            self._ray.get(getattr(self.actor, method).remote(), timeout=_FREE_SECONDS)
        except (self._ray.exceptions.RayError, ValueError):  # a timeout is one of them
            return

    def release(self) -> None:
        """Give the GPU back to the cluster."""
        self._ray.kill(self.actor)


def _knock(address: str) -> None:
    """Raise at once if nobody answers at an address. Ray itself would wait minutes."""
    host, colon, port = address.rpartition(":")
    if "://" in address:
        raise ValueError("ray:// is for clients outside the cluster, which have no object store; write HOST:PORT")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_KNOCK_SECONDS).close()
    elif address != "auto":
        raise ValueError("it is neither HOST:PORT nor auto")


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise BuildError(
            "AOT_TUNE_EXECUTOR=ray: Ray is not installed here",
            why="the build reaches the cluster through it",
            fix="pip install 'aot_tune[ray]', the Ray of the cluster, or leave AOT_TUNE_EXECUTOR out",
        ) from error
    return ray


def _node(told: Mapping[str, Any]) -> ClusterNode:
    has = told["Resources"]
    labels = [name.partition(":")[2] for name in has if name.startswith("accelerator_type:")]
    return ClusterNode(
        id=told["NodeID"],
        name=told.get("NodeName") or told["NodeManagerAddress"],
        cpus=int(has.get("CPU", 0)),
        gpus=int(has.get("GPU", 0)),
        memory=int(has.get("memory", 0)),
        accelerator=labels[0] if labels else "",
    )


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1][:_SHOWN]}" if lines else type(error).__name__
