"""Plain records of the bench stage: devices, policies, measurements. Times are nanoseconds unless a name says more."""

from __future__ import annotations

import hashlib
import re
import statistics
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

import msgspec

from aot_tune.spec import Problem

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
"""What became of a candidate. `no-result`: its process ended without an answer and without a signal. `failed`: a
function returned an error, could not be loaded, or changed its process. `skipped`: not run, and the reason says why.
`suspicious`: faster than is possible, or faster when timed than in real use."""


WORKER_FAULT = "in the worker: "
"""A reason that begins so names a fault of the bench, not of the candidate."""


SPOILED = "spoiled by other programs"
"""A reason that begins so is of a time that other programs on the machine have made too long."""

BUSY = 0.5
"""A machine is busy while other programs use more of its cores."""

UNCAPTURED = "cannot be captured in a CUDA graph"
"""Begins the note of a time that is of calls on a stream."""
BASELINE = "baseline:"
"""The candidate of a measurement begins so for a baseline. The baseline's name follows."""


Role = Literal["candidate", "framework"]
"""A worker runs either candidates or frameworks. Frameworks compute references and baselines."""

MOST_CALLS = 4096
"""The most calls of a sample."""


def group_size(call_ns: float, sample_ns: float) -> int:
    """Calls that make a sample last `sample_ns`."""
    return min(max(1, round(sample_ns / max(call_ns, 1.0))), MOST_CALLS)


def digest_of(value: object) -> str:
    """SHA-256, in hex, of a record's canonical JSON: independent of key order, process and machine."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


def rounded(value: float) -> float:
    """The value to five significant digits. That is a hundredth of the smallest difference that matters."""
    return float(f"{value:.5g}")


def is_baseline(candidate: str) -> bool:
    """Whether a measurement's candidate is a baseline."""
    return candidate.startswith(BASELINE)


class Device(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One device. `identity` is all that two devices must have in common to share measurements. `slug` names folders.

    `unit` tells equal devices of one machine apart. It is what the driver calls the device (a GPU's UUID or a MIG
    name). `driver` is the driver's whole version. The digest covers neither.
    """

    family: str
    name: str
    slug: str
    identity: dict[str, str | int]
    unit: str = ""
    driver: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of family and identity."""
        return digest_of([self.family, self.identity])


class DeviceState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a device was like when samples were taken. A field is 0 if the driver does not tell it.

    Args:
        sm_mhz, memory_mhz: clocks.
        celsius: temperature; watts: power.
        reasons: bits of NVML's clock event (throttle) reasons. The power cap is in it if it acted since the state
            before.
        others: processes on the device that are not the bench's. It is the most that were seen since the state before.
        load: how many of the host's cores other processes use.
    """

    sm_mhz: int = 0
    memory_mhz: int = 0
    celsius: int = 0
    watts: float = 0.0
    reasons: int = 0
    others: int = 0
    load: float = 0.0


class Seen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a device was like while times were taken. What nothing tells is left out.

    Args:
        driver: its whole version.
        unit: as in `Device`.
        clock_mhz, memory_mhz: the least and the most of the multiprocessors' or cores' clocks, and of the memory's.
        celsius, watts: the least and the most of the temperatures, and of the power drawn.
        reasons: bits of all clock event (throttle) reasons.
        others: the most processes on the device that were not the bench's.
        load: the most of the host's cores that other processes used, if candidates compute there.
    """

    driver: str = ""
    unit: str = ""
    clock_mhz: tuple[int, int] | None = None
    memory_mhz: tuple[int, int] | None = None
    celsius: tuple[int, int] | None = None
    watts: tuple[int, int] | None = None
    reasons: int = 0
    others: int = 0
    load: float = 0.0

    @property
    def disturbed(self) -> bool:
        """Whether other processes used the device, or more than half a core of the host."""
        return self.others > 0 or self.load > BUSY

    @classmethod
    def of(cls, device: Device, states: Sequence[DeviceState], clocks: Sequence[float] = ()) -> Seen | None:
        """A summary of a device's states, and of clocks in MHz that were probed. None if they tell nothing."""
        if not states:
            return None
        reasons = 0
        for state in states:
            reasons |= state.reasons
        seen = cls(
            driver=device.driver,
            unit=device.unit,
            clock_mhz=_extremes([*(s.sm_mhz for s in states), *map(round, clocks)]),
            memory_mhz=_extremes([s.memory_mhz for s in states]),
            celsius=_extremes([s.celsius for s in states]),
            watts=_extremes([round(s.watts) for s in states]),
            reasons=reasons,
            others=max(s.others for s in states),
            load=max(s.load for s in states),
        )
        return None if seen == cls() else seen


def _extremes(values: Sequence[int]) -> tuple[int, int] | None:
    """The least and the most of the values that are known. 0 is for one that is not."""
    known = [v for v in values if v]
    return (min(known), max(known)) if known else None


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
    """The part of a policy for devices whose own clock takes the times: GPUs.

    Args:
        launch: `graph` replays calls from a CUDA graph if they can be captured. `stream` makes them on a stream.
        statistic: which statistic counts, of the rounds of a race and of the samples of a screen.
        short_ns: a call is short when it takes less. A graph holds at least `short_calls` of the short calls.
        most_calls: the most calls of a graph. Only if there are more copies of the tensors, it holds one call per copy.
        plays: the most plays of its graph in one sample.
        single_ns: how much longer a single call, which the host waits for, may take than one call of many. It is by the
            host's clock, with compilers on all cores. A call that is hopeless by this is not timed in another way.
        empty_calls: how many empty kernels are nodes of the graph whose time is recorded as the overhead.
        streams: on how many streams beside its own a worker launches kernels before it takes times. It does so each
            time that another process used the device, or that other kernels were loaded.
        idle_seconds: a device that had no work for so long is heated up before a sample. That takes `heat_seconds` and
            goes on until the clock is steady, but not longer than `heat_most` seconds.
        loaded_ns: how long calls that are not short load the device before each sample of a race.
        probe_cycles: for how many of its cycles a multiprocessor spins, once a round, to find its clock. 0 is for no
            probe.
        clock_change: a clock is steady while it changes by no more than this share. A round of a race is taken again if
            its clock is farther from the race's median, unless the power cap was seen during the race.
        repeats: the largest share of a race's rounds that is taken again for a changed clock.
        read_limit: a rotation does not keep its tensors cold if they are read at so many times the memory's speed.
        dropped: bits of NVML's clock event reasons under which samples are taken again.
        kept: bits of reasons that excuse a clock below `least_clock` of the highest. Without one, it counts as dropped.
        tries: how often a screen's samples are taken at most. waits: how often a race waits for a slowed device.
        recoveries, recovery_seconds: the most pauses for a slowed device in a whole bench, and the length of one.
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
        """For how many ns the device is loaded before a sample of a race, if a call takes `call_ns`."""
        return self.loaded_ns if call_ns >= self.short_ns else 0


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides how results are checked and times are taken.

    Args:
        version: raised when the code that measures changes its meaning.
        seed: of the inputs' values.
        sample_ns: shortest sample; shorter calls are grouped.
        screen_stop: a screen ends after two samples that are both this many times slower than the best.
        screen_ns: time of the further samples in a screen. screen_samples: the most of them.
        long_ns: calls that take longer are timed while they are verified, and not again.
        race_ns: time of a whole race; race_rounds, race_least: most and fewest rounds.
        cold_factor: copies of cold tensors rotate until they hold this many times the last cache's bytes.
        copies: the most copies.
        workspace_bytes: a candidate that asks for more is skipped.
        memory_bytes: a candidate may hold this much beside the buffers it is given.
        output_bytes: size of the largest file that a candidate may write.
        leak_bytes: a candidate that grows by this much per call is dropped.
        check_bytes: larger odd problems are left out, unless there is no smaller one.
        strikes: a candidate that killed so many workers is not run again.
        special_values: whether NaN and infinities are checked once to come out where they should.
        gpu: only for devices that have it. The digest of the others does not cover it.
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
        """The part for GPUs, or what it would be."""
        return self.gpu or GpuTiming()

    @property
    def digest(self) -> str:
        """SHA-256 of all fields."""
        return digest_of(self)


_CHECK = re.compile(
    r"problem '([^']*)'((?:, (?:NaN and infinities in '\w+'|small integers|zeros|denormal numbers"
    r"|(?!with )\w+ (?:-?inf|nan|-?[\d.]+(?:e[-+]\d+)?)))*)"
)


def check_in(message: str) -> str:
    """The name of the check in a message that has its place; empty if there is none."""
    match = _CHECK.search(message)
    return "" if match is None else (match[1] + match[2]).replace("'", "")


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A problem to verify on.

    `special` names an input that gets NaN and infinities, see `Operator.special`. With `integers`, inputs are small
    integers, and results must be exact, see `IntegerSums`. `scalars` replace those of every other call. With `odd`,
    some elements of all inputs whose values may be 0 are zeros of both signs, or so small that they are denormal. Or
    the scalars are such that results may not exist.
    """

    problem: Problem
    special: str = ""
    integers: bool = False
    odd: Literal["", "zeros", "denormal numbers", "scalars"] = ""
    scalars: dict[str, float | int | bool] = {}

    @property
    def name(self) -> str:
        """What `aot-tune try --problem` takes: the place without quotes."""
        return check_in(self.place)

    @property
    def place(self) -> str:
        """The problem and what is odd about its values, for messages."""
        odd = (f", NaN and infinities in {self.special!r}" if self.special else "") + (
            ", small integers" if self.integers else ""
        )
        odd += f", {self.odd}" if self.odd not in ("", "scalars") else ""
        odd += "".join(f", {name} {value:g}" for name, value in self.scalars.items())
        return f"problem '{self.problem.id}'{odd}"


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A problem whose reference results are read-only files below `folder`. `key` names them."""

    key: str
    operator: str
    operator_folder: str
    check: Check
    folder: str

    @property
    def problem(self) -> Problem:
        return self.check.problem


class Measurement(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What is known of a candidate on a problem and a device.

    Args:
        candidate: the candidate's id, or `baseline:<name>`.
        code: what was measured, see `compile.toolchain.measured_code`; empty for a baseline.
        device, policy: digests.
        reason: why the status is not ok (signal, place, numbers, last lines of output), or a note when it is ok.
        screen: ns per call of each sample of the screen.
        final: ns per call in each round of a race, in the order of the rounds. So entries of one race pair up.
        race: names the race of `final`.
        error: largest |got - want| in units of the tolerance. It is at most 1 when the status is ok.
        bitwise: whether repeated runs gave the same bits, or None if there was one run only.
        overhead: ns per call of an empty call. On a CPU it is taken off the times. On a GPU it is only recorded, for an
            empty kernel in a graph.
        leak: bytes per call by which the process grew.
        threads: 1 if calls had one thread, because more gained too little. Otherwise they had all.
        phases: seconds per phase of the bench.
        seen: what the device was like.
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
    threads: int = 0
    phases: Mapping[str, float] = {}
    seen: Seen | None = None

    @property
    def others(self) -> int:
        """The most other processes that were seen on the device while the times were taken."""
        return 0 if self.seen is None else self.seen.others

    def in_digits(self) -> Measurement:
        """This with its times and its error in the digits of `rounded`, so that they decide the same in a replay."""
        return msgspec.structs.replace(
            self,
            screen=tuple(map(rounded, self.screen)),
            final=None if self.final is None else tuple(map(rounded, self.final)),
            error=None if self.error is None else rounded(self.error),
            overhead=rounded(self.overhead),
        )

    @property
    def spoiled(self) -> bool:
        """Whether other programs have made its times too long. Then it belongs into no record."""
        return self.reason.startswith(SPOILED)

    @property
    def lasting(self) -> bool:
        """Whether the candidate caused the status. If not, it may differ next time, and is not stored."""
        if self.status in ("timeout", "no-result"):
            return False
        if self.status in ("oom", "crashed"):
            return not self.reason.startswith("killed by SIGKILL")  # a worker never sends itself SIGKILL
        return not (self.status == "failed" and self.reason.startswith(WORKER_FAULT))

    @cached_property
    def ns(self) -> float | None:
        """The best known time of a call: median of the race, else of the screen. None unless the status is ok."""
        samples = self.final or self.screen
        return statistics.median(samples) if samples and self.status == "ok" else None
