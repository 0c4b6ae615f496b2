"""What a build needs of other machines: compilers, devices, and benches on them. AOT_TUNE_EXECUTOR says whether."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from aot_tune.bench.host.findings import Findings
from aot_tune.bench.protocol.measurement_records import Check, Device, Measurement, Policy, Prepared
from aot_tune.compile import Toolchain, Variant
from aot_tune.compile.batches import Jobs
from aot_tune.compile.toolchain import CompilersElsewhere
from aot_tune.pipeline.measuring.vendor_process import VendorAnswer, VendorQuestion
from aot_tune.plan.library_plan import Paths, Plan
from aot_tune.plan.preflight import Machines
from aot_tune.search.budget import Budget
from aot_tune.spec import Operator, Problem

__all__ = ["ComingBench", "Executor", "MeasuringBench", "executor_of", "reach_cluster"]


class MeasuringBench(Protocol):
    """What a build needs of a bench, here or on another machine; see `Bench`."""

    @property
    def referring(self) -> float:
        """Seconds that went into references so far."""

    def prepare(self, operator: Operator, on: Problem | Check) -> Prepared:
        """Prepare the references and tolerances of a problem."""

    def alone(self) -> AbstractContextManager[None]:
        """A block in which the device uses nothing that other devices found out."""

    def screen(
        self, prepared: Prepared, variant: Variant, best_ns: float | None = None, tune_checks: bool = True
    ) -> Measurement:
        """Verify and time a candidate."""

    def verify(self, prepared: Prepared, variant: Variant, tune_checks: bool = True) -> Measurement:
        """Verify a candidate."""

    def race(self, prepared: Prepared, variants: Sequence[Variant]) -> list[Measurement]:
        """Time candidates and baselines in the same rounds."""

    def survey(self, operator: Operator, problem: Problem, variants: Sequence[Variant]) -> list[Measurement]:
        """Time candidates that were verified elsewhere."""

    def interrupt(self) -> None:
        """Kill the workers, from another thread."""


class ComingBench(MeasuringBench, AbstractContextManager[MeasuringBench], Protocol):
    """A bench that starts when it is entered. Meanwhile, `interrupt` ends a wait for its device."""


class Executor(Machines, CompilersElsewhere, Protocol):
    """Other machines that take part in a build."""

    def jobs(self, toolchain: Toolchain, limit: int | None) -> Jobs:
        """How many compilers run at a time, and why; `limit` is what the user allows."""

    def agree(self, plan: Plan, paths: Paths, files: Sequence[Path]) -> None:
        """Check that all of them compile as this machine does, and have the same project files.

        Raises:
            BuildError: naming the machines that differ.
        """

    def parts(self, targets: Sequence[str]) -> Sequence[tuple[Executor, tuple[str, ...]]]:
        """These machines as parts with one model of device for each target, and the part's targets.

        There are as many parts as it takes to give every model its turn.
        """

    def has(self, device: Device) -> bool:
        """Whether a device belongs to these machines."""

    def ask_vendor(self, question: VendorQuestion, device: Device) -> VendorAnswer:
        """Ask a vendor's library on a device."""

    def bench(
        self,
        device: Device,
        policy: Policy,
        threads: int,
        patience: Budget | None,
        findings: Findings,
        *,
        exclusive: bool,
    ) -> ComingBench:
        """A bench on a device. If `exclusive`, wait until the device is free, at most until the budget ends.

        Benches on devices of the same model share `findings`: the verdicts of objects on odd problems.

        Raises:
            WorkerError: when there is no such bench.
        """


def reach_cluster(log: Callable[[str], None]) -> AbstractContextManager[Executor]:
    """The cluster with all of its devices. It is used while a plan is made.

    Raises:
        BuildError: when no cluster can be reached, or its nodes have another version of this package.
    """
    from aot_tune.pipeline.cluster.ray_executor import ray_executor

    return ray_executor(lambda line: log(f"aot_tune: {line}"))


@contextmanager
def executor_of(plan: Plan, log: Callable[[str], None]) -> Iterator[Executor | None]:
    """The machines that help this one with a build; None if there are none, as in most builds.

    Raises:
        BuildError: as `reach_cluster` does.
    """
    if plan.options.executor == "local":
        yield None
        return
    from aot_tune.pipeline.cluster.ray_executor import ray_executor

    with ray_executor(log, plan.targets) as executor:
        yield executor
