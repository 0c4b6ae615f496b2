"""Plain records of the bench stage: devices, policies, measurements. Times are nanoseconds unless a name says more."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Mapping
from functools import cached_property
from typing import Literal, Protocol

import msgspec

from aot_tune.spec import Problem

__all__ = [
    "BASELINE",
    "WORKER_FAULT",
    "CandidateLike",
    "Check",
    "Deadlines",
    "Device",
    "DeviceState",
    "GpuTiming",
    "Measurement",
    "Policy",
    "Prepared",
    "Status",
    "digest_of",
    "is_baseline",
]

Status = Literal[
    "ok",
    "compile-failed",
    "crashed",
    "no-result",
    "timeout",
    "wrong-result",
    "oom",
    "suspicious",
    "skipped",
    "failed",
    "leaves-threads",
    "too-much-disk",
]
"""What a candidate came to. `no-result`: its process ended without an answer and without a signal; `failed`: a function
returned an error, could not be loaded or changed its process; `skipped`: not run, with the reason; `suspicious`: faster
than is possible, or than it is where it is needed."""


WORKER_FAULT = "in the worker: "
"""A reason that starts so tells of a fault of the bench, not of the candidate."""


BASELINE = "baseline:"
"""A measurement's candidate that begins so is the baseline of that name."""


Role = Literal["candidate", "framework"]
"""Workers run either candidates, or frameworks: references and baselines."""

MOST_CALLS = 4096
"""Calls of a sample, at most."""


def group_size(call_ns: float, sample_ns: float) -> int:
    """Calls that make a sample last `sample_ns`."""
    return min(max(1, round(sample_ns / max(call_ns, 1.0))), MOST_CALLS)


def digest_of(value: object) -> str:
    """SHA-256, in hex, of a record's canonical JSON: independent of key order, process and machine."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


def is_baseline(candidate: str) -> bool:
    """Whether a measurement's candidate is a baseline."""
    return candidate.startswith(BASELINE)


class CandidateLike(Protocol):
    """What the bench needs to know of a candidate."""

    @property
    def id(self) -> str:
        """Stable across processes and machines."""


class Device(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One device. `identity` is everything that two devices must share to share measurements; `slug` names folders.

    `unit` tells equal devices of one machine apart, as the driver wants it told (a GPU's UUID or a MIG name); it is no
    part of the digest.
    """

    family: str
    name: str
    slug: str
    identity: dict[str, str | int]
    unit: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of family and identity."""
        return digest_of([self.family, self.identity])


class DeviceState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a device was like when samples were taken; 0 where its driver does not tell.

    Args:
        sm_mhz, memory_mhz: clocks.
        celsius: temperature; watts: power.
        reasons: bits of NVML's clock event (throttle) reasons; the power cap where it acted since the state before.
        others: processes on the device that are not the bench's; the most that were seen since the state before.
    """

    sm_mhz: int = 0
    memory_mhz: int = 0
    celsius: int = 0
    watts: float = 0.0
    reasons: int = 0
    others: int = 0


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds after which a worker is killed, per request. A verification also gets `per_best` times the best time."""

    handshake: float = 60.0
    prepare: float = 300.0
    load: float = 10.0
    check: float = 10.0
    verify: float = 20.0
    verify_least: float = 2.0
    per_best: float = 50.0
    bench: float = 20.0
    graceful: float = 0.0
    terminate: float = 0.0


class GpuTiming(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy says beside the rest where a GPU's own clock takes the times.

    Args:
        launch: calls are played from a CUDA graph, where they can be captured in one, or are made on a stream.
        statistic: what counts of the rounds of a race and of the samples of a screen.
        short_ns: shorter calls are short; a graph holds at least `short_calls` of them.
        most_calls: a graph holds at most so many calls, unless there are more copies of the tensors than that.
        plays: a sample is at most so many plays of its graph.
        single_ns: a single call that is waited for takes at most so much longer than one of many, by the host's clock
            and with compilers on all cores; one that is hopeless by that is not timed otherwise.
        empty_calls: nodes of the graph of empty kernels whose time is recorded as the overhead.
        streams: a worker launches kernels on so many streams beside its own before it takes times, each time that
            another process used the device or other kernels were loaded.
        idle_seconds: a device without work for so long is heated up before a sample, for `heat_seconds` and on until
            its clock is steady, `heat_most` seconds at most.
        loaded_ns: calls that are not short load the device for so long before each sample of a race.
        probe_cycles: of its clock a multiprocessor spins for so many, in each round, to tell what its clock is; 0 is
            for no probe.
        clock_change: a clock is steady while it changes by no more than this share of it. A round of a race in which
            it is farther from the race's median is taken again, unless the power cap was seen during the race.
        repeats: at most this share of a race's rounds is taken again for that.
        read_limit: a rotation does not keep its tensors cold where they are read this many times as fast as memory is.
        dropped: bits of NVML's clock event reasons under which samples are taken again.
        kept: bits of reasons that excuse a clock below `least_clock` of the highest; without one it counts as dropped.
        tries: a screen's samples are taken at most so often in all; waits: a race waits so often for a slowed device.
        recoveries, recovery_seconds: pauses for a slowed device in a whole bench, and the length of one.
        busy_percent, busy_seconds: a bench begins when kernels run for less than this share of the time, or after this
            wait.
    """

    launch: Literal["graph", "stream"] = "graph"
    statistic: Literal["median"] = "median"
    short_ns: int = 50_000
    short_calls: int = 32
    most_calls: int = 4096
    plays: int = 64
    single_ns: int = 500_000
    empty_calls: int = 64
    streams: int = 16
    idle_seconds: float = 1.0
    heat_seconds: float = 0.02
    heat_most: float = 0.2
    loaded_ns: int = 8_000_000
    probe_cycles: int = 100_000
    clock_change: float = 0.05
    repeats: float = 0.25
    read_limit: float = 1.25
    dropped: int = 0x8 | 0x20 | 0x40 | 0x80
    kept: int = 0x1 | 0x2 | 0x4
    least_clock: float = 0.8
    tries: int = 3
    waits: int = 3
    recoveries: int = 12
    recovery_seconds: float = 5.0
    busy_percent: int = 5
    busy_seconds: float = 10.0

    def load_before(self, call_ns: float) -> int:
        """ns for which calls that take so many each load the device before a sample of a race."""
        return self.loaded_ns if call_ns >= self.short_ns else 0


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides how results are checked and times are taken.

    Args:
        version: raised when the code that measures changes its meaning.
        seed: of the inputs' values.
        sample_ns: shortest sample; shorter calls are grouped.
        screen_stop: a screen ends after two samples that are both this many times slower than the best.
        screen_ns: time of further samples in a screen; screen_samples: at most so many.
        long_ns: calls that take longer are timed while they are verified instead of again.
        race_ns: time of a whole race; race_rounds, race_least: most and fewest rounds.
        cold_factor: copies of cold tensors rotate until they hold this many times the last cache's bytes.
        copies: at most so many copies.
        workspace_bytes: a candidate that asks for more is skipped.
        memory_bytes: a candidate may hold this much beside the buffers it is given.
        output_bytes: size of the largest file that a candidate may write.
        leak_bytes: growth per call from which a candidate is dropped.
        check_bytes: odd problems larger than this are left out unless nothing smaller is left.
        strikes: a candidate that killed so many workers is not run again.
        special_values: check once that NaN and infinities come out where they should.
        gpu: what there is to say only of devices that have it; no part of the digest of others.
    """

    version: int = 2
    seed: int = 20240229
    sample_ns: int = 50_000
    screen_stop: float = 1.5
    screen_ns: int = 20_000_000
    screen_samples: int = 40
    long_ns: int = 20_000_000
    race_ns: int = 1_000_000_000
    race_rounds: int = 21
    race_least: int = 5
    cold_factor: float = 2.0
    copies: int = 64
    workspace_bytes: int = 1 << 30
    memory_bytes: int = 1 << 31
    output_bytes: int = 64 << 20
    leak_bytes: int = 64 << 10
    check_bytes: int = 8 << 20
    strikes: int = 2
    special_values: bool = True
    deadlines: Deadlines = Deadlines()
    gpu: GpuTiming | msgspec.UnsetType = msgspec.UNSET

    @property
    def on_gpu(self) -> GpuTiming:
        """What is said of GPUs, or what would be."""
        return self.gpu or GpuTiming()

    @property
    def digest(self) -> str:
        """SHA-256 of all fields."""
        return digest_of(self)


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A problem to verify on.

    `special` names an input that NaN and infinities are put into, see `Operator.special`; with `integers`, inputs are
    small integers on which results must be exact, see `IntegerSums`. `scalars` are passed in place of those of every
    other call.
    """

    problem: Problem
    special: str = ""
    integers: bool = False
    scalars: dict[str, float | int | bool] = {}

    @property
    def place(self) -> str:
        """The problem and what is odd about its values, for messages."""
        odd = (f", NaN and infinities in {self.special!r}" if self.special else "") + (
            ", small integers" if self.integers else ""
        )
        odd += "".join(f", {name} {value:g}" for name, value in self.scalars.items())
        return f"problem '{self.problem.id}'{odd}"


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A problem whose reference results lie in read-only files below `folder`; `key` names them."""

    key: str
    operator: str
    operator_folder: str
    check: Check
    folder: str

    @property
    def problem(self) -> Problem:
        """The problem."""
        return self.check.problem


class Measurement(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What is known of a candidate on a problem and a device.

    Args:
        candidate: the candidate's id, or `baseline:<name>`.
        code: what was measured, see `compile.object_records.measured_code`; empty for a baseline.
        device, policy: digests.
        reason: why the status is not ok: signal, place, numbers, last lines of output; a note when it is ok.
        screen: ns per call of each sample of the screen.
        final: ns per call in each round of a race, in the order of rounds, so that entries of one race pair up.
        race: names the race that `final` is from.
        error: largest |got - want| in units of the tolerance; at most 1 when the status is ok.
        bitwise: whether repeated runs gave the same bits; None when it was not run twice.
        overhead: ns per call of an empty call; taken off the times on a CPU, only recorded (an empty kernel in a graph)
            on a GPU.
        leak: bytes per call by which the process grew.
        phases: seconds per phase of the bench.
        conditions: of the device before and after the samples.
        clocks: MHz of the multiprocessors in each round of `final`, where there is a probe; 0 where it did not tell.
    """

    candidate: str
    code: str
    problem: Problem
    device: str
    policy: str
    status: Status
    reason: str = ""
    screen: tuple[float, ...] = ()
    final: tuple[float, ...] | None = None
    race: str | None = None
    error: float | None = None
    bitwise: bool | None = None
    overhead: float = 0.0
    leak: int = 0
    phases: Mapping[str, float] = {}
    conditions: tuple[DeviceState, ...] = ()
    clocks: tuple[int, ...] = ()

    @property
    def others(self) -> int:
        """The most other processes that were seen on the device while the times were taken."""
        return max((s.others for s in self.conditions), default=0)

    @property
    def lasting(self) -> bool:
        """Whether the status is the candidate's own doing; else it may differ the next time and is not to be stored."""
        if self.status in ("timeout", "no-result"):
            return False
        if self.status in ("oom", "crashed"):
            return not self.reason.startswith("killed by SIGKILL")  # which a worker never sends itself
        return not (self.status == "failed" and self.reason.startswith(WORKER_FAULT))

    @cached_property
    def ns(self) -> float | None:
        """The best known time of a call: the median of the race, else of the screen; None unless the status is ok."""
        samples = self.final or self.screen
        return statistics.median(samples) if samples and self.status == "ok" else None
