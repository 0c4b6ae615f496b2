"""What a build asks of machines beside its own: compilers, devices, and benches on them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from aot_tune.bench.host.findings import Findings
from aot_tune.bench.host.runner import Entrant
from aot_tune.bench.protocol.measurement_records import Check, Device, Measurement, Policy, Prepared
from aot_tune.compile import Toolchain
from aot_tune.compile.elsewhere import CompilersElsewhere
from aot_tune.compile.jobs import Jobs
from aot_tune.pipeline.measuring.vendor_process import VendorAnswer, VendorQuestion
from aot_tune.plan.library_plan import Paths, Plan
from aot_tune.plan.machines import Machines
from aot_tune.search import Budget
from aot_tune.spec import Operator, Problem

__all__ = ["Executor", "MeasuringBench"]


class MeasuringBench(Protocol):
    """What a build asks of a bench, here or on another machine; see `Bench`."""

    @property
    def referring(self) -> float:
        """Seconds that went into references so far."""

    def measurement(self, prepared: Prepared, candidate: str, code: str, **fields: object) -> Measurement:
        """A measurement of this device and policy that was made elsewhere."""

    def prepare(self, operator_folder: Path, operator: Operator, on: Problem | Check) -> Prepared:
        """References and tolerances of a problem."""

    def alone(self) -> AbstractContextManager[None]:
        """A block in which the device finds out everything for itself."""

    def screen(
        self, prepared: Prepared, entrant: Entrant, best_ns: float | None = None, tune_checks: bool = True
    ) -> Measurement:
        """Verify and time a candidate."""

    def verify(self, prepared: Prepared, entrant: Entrant, tune_checks: bool = True) -> Measurement:
        """Verify a candidate."""

    def race(self, prepared: Prepared, entries: Sequence[Entrant]) -> list[Measurement]:
        """Time candidates and baselines in the same rounds."""

    def survey(
        self, operator_folder: Path, operator: Operator, problem: Problem, entrants: Sequence[Entrant]
    ) -> list[Measurement]:
        """Time candidates that were verified elsewhere."""

    def interrupt(self) -> None:
        """Kill the workers, from another thread."""


class Executor(Machines, CompilersElsewhere, Protocol):
    """Machines beside this one."""

    def jobs(self, toolchain: Toolchain, limit: int | None) -> Jobs:
        """How many compilers run at a time, and why; `limit` is what the user allows."""

    def agree(self, plan: Plan, paths: Paths, files: Sequence[Path]) -> None:
        """See that all of them compile as this machine does, and have the project's files as it does.

        Raises:
            BuildError: naming those that do not.
        """

    def parts(self, targets: Sequence[str]) -> Sequence[tuple[Executor, tuple[str, ...]]]:
        """The same machines with one model of devices for each target, the targets with it; as often as all have had
        their turn."""

    def has(self, device: Device) -> bool:
        """Whether a device is one of theirs."""

    def ask_vendor(self, question: VendorQuestion, device: Device) -> VendorAnswer:
        """What a vendor's library says on a device."""

    def bench(
        self,
        device: Device,
        policy: Policy,
        threads: int,
        patience: Budget | None,
        findings: Findings,
        *,
        exclusive: bool,
    ) -> AbstractContextManager[MeasuringBench]:
        """A bench on a device, which is waited for as long as a budget lasts where it is `exclusive`.

        Of `findings` it shares with benches on devices of the same model what objects come to on odd problems.

        Raises:
            WorkerError: when it cannot be had.
        """
