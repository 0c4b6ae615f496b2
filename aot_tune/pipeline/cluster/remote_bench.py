"""A bench on a device of a cluster's node: the build sends calls there, and results come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from aot_tune.bench.host.findings import Findings
from aot_tune.bench.protocol.measurement_records import Check, Device, Measurement, Prepared
from aot_tune.bench.protocol.messages import Checked
from aot_tune.compile import Variant
from aot_tune.pipeline.cluster.cluster_messages import (
    Begin,
    BenchAnswer,
    BenchCall,
    PrepareCall,
    RaceCall,
    ScreenCall,
    SurveyCall,
    decode,
    encode,
    sent_variant,
)
from aot_tune.spec import Operator, Problem
from aot_tune.support.errors import WorkerError

__all__ = ["HeldDevice", "RemoteBench"]


class HeldDevice(Protocol):
    """The process of a device on a node, see `DeviceHost`."""

    def ask(self, method: str, *arguments: Any, log: Callable[[str], None]) -> bytes:
        """Call a method and return its answer.

        Raises:
            WorkerError: when the process is gone.
        """

    def tell(self, method: str) -> None:
        """Call a method and wait for no answer, whether or not the process lives."""


class RemoteBench:
    """See `Bench`. `put` sends each linked object to the node once, as bytes.

    The node loads the operators from its own copy of the project's files. One device checks an object on odd problems,
    and its verdict holds for the others. References are computed on each device.
    """

    def __init__(
        self,
        device: Device,
        begin: Begin,
        host: HeldDevice,
        put: Callable[[Path], Any],
        log: Callable[[str], None],
        findings: Findings,
    ) -> None:
        self._verdicts = findings.verdicts
        self.device, self.policy = device, begin.policy
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

    def measurement(self, prepared: Prepared, candidate: str, code: str, **fields: object) -> Measurement:
        """See `Bench`."""
        return Measurement(
            candidate=candidate,
            code=code,
            problem=prepared.problem,
            device=self.device.digest,
            policy=self.policy.digest,
            **fields,  # type: ignore[arg-type]
        )

    def prepare(self, operator_folder: Path, operator: Operator, on: Problem | Check) -> Prepared:  # noqa: ARG002
        """See `Bench`."""
        check = Check(problem=on) if isinstance(on, Problem) else on
        prepared = self._call(PrepareCall(operator=operator.name, on=check, alone=self._alone)).prepared
        if prepared is None:
            raise WorkerError("a node did not say where a reference is")
        return prepared

    @contextmanager
    def alone(self) -> Iterator[None]:
        """See `Bench`."""
        self._alone = True
        try:
            yield
        finally:
            self._alone = False

    def screen(
        self, prepared: Prepared, variant: Variant, best_ns: float | None = None, tune_checks: bool = True
    ) -> Measurement:
        """See `Bench`."""
        return self._screen(prepared, variant, best_ns, tune_checks, timed=True)

    def verify(self, prepared: Prepared, variant: Variant, tune_checks: bool = True) -> Measurement:
        """See `Bench`."""
        return self._screen(prepared, variant, None, tune_checks, timed=False)

    def _screen(
        self, prepared: Prepared, variant: Variant, best_ns: float | None, tune_checks: bool, *, timed: bool
    ) -> Measurement:
        suite = Findings.suite(prepared.operator_folder, variant.code, variant.requires)
        known = None if self._alone else self._verdicts.made(suite)
        call = ScreenCall(
            prepared=prepared,
            variant=sent_variant(variant),
            best_ns=best_ns,
            tune_checks=tune_checks,
            timed=timed,
            verdict=known if isinstance(known, Checked) else None,
            alone=self._alone,
        )
        answer = self._call(call, [variant])
        if answer.verdict is not None and not self._alone:
            self._verdicts.put(suite, answer.verdict)
        return answer.measurements[0]

    def race(self, prepared: Prepared, variants: Sequence[Variant]) -> list[Measurement]:
        """See `Bench`."""
        sent = [sent_variant(v) for v in variants]
        return self._call(RaceCall(prepared=prepared, variants=sent, alone=self._alone), variants).measurements

    def survey(
        self,
        operator_folder: Path,  # noqa: ARG002
        operator: Operator,
        problem: Problem,
        variants: Sequence[Variant],
    ) -> list[Measurement]:
        """See `Bench`."""
        sent = [sent_variant(v) for v in variants]
        call = SurveyCall(operator=operator.name, problem=problem, variants=sent, alone=self._alone)
        return self._call(call, variants).measurements

    def interrupt(self) -> None:
        """See `Bench`."""
        self._host.tell("interrupt")

    def _call(self, call: BenchCall, variants: Sequence[Variant] = ()) -> BenchAnswer:
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
