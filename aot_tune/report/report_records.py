"""What a build reports: plain data, written beside the library as `report.json`. Times are medians in ns."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import msgspec

from aot_tune.support.errors import BuildError

SCHEMA = 2
"""The version of these records. It grows if a field changes its meaning or a reader needs a new one."""

NOT_TRIED = "not-tried"
"""The status of candidates that were not tried, for lack of a reason or of time."""


SpentOf = Literal["clock", "compilers", "device"]
"""Whose seconds they are: wall time, all compilers together, or all devices together."""


class RaceRunner(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate or baseline that took part in a race on a problem, or was timed beside it.

    `whose` says whether it is a kernel of the library, a vendor's library called as a variant, or a baseline. `ns` is
    the median of its `samples`. `low` and `high` are their quartiles; of fewer than four samples, the least and the
    most. The drift that a round has in common is taken out. If it has not `raced`, it has only the few samples of a
    screen.
    """

    name: str
    whose: Literal["kernel", "vendor", "baseline"]
    ns: float
    low: float
    high: float
    samples: int
    raced: bool


class ProblemRow(msgspec.Struct, frozen=True, kw_only=True):
    """One problem of the workload.

    `winner` is the candidate with the best time, `picked` the variant that dispatch chooses. `spread` is the
    interquartile range of the winner's samples over their median. A time within the relative difference `noise` of the
    winner's is a tie. `flops` and `bytes` are for one call. `paired` says how many times faster the winner was than the
    fastest baseline in the rounds of one race: the median of the rounds' ratios, and its standard error. `regret` is
    how much more `picked` costs than the best, by the costs that decided the choice; a tie costs nothing more. `remark`
    is a remark on the winner's times. `others` is the number of foreign processes that used the device meanwhile.
    `weight` is how much the problem counts. `roofline` is the least time that the device's peaks allow, divided by the
    winner's time; None if the peaks are unknown. `bound` says whether memory or computing sets that least time; empty
    if unknown. `kind` is its kind of calls, such as `T=bf16`, and `dims` are its extents. `runners` are what raced on
    it, the fastest first, and the variant that dispatch picks. `held_out` is the regret of a decision by the nearest
    other problem; None if unknown. `began` says what its tuning began with; empty if everything was tried.
    """

    problem: str
    winner: str
    ns: float
    spread: float
    picked: str
    regret: float
    tie: bool
    baselines: dict[str, float]
    flops: int
    bytes: int
    noise: float = 0.0
    paired: tuple[float, float] | None = None
    remark: str = ""
    others: int = 0
    weight: float = 1.0
    roofline: float | None = None
    bound: str = ""
    kind: str = ""
    dims: dict[str, int] = {}
    runners: tuple[RaceRunner, ...] = ()
    held_out: float | None = None
    began: str = ""

    @property
    def speedup(self) -> float | None:
        """How many times faster the winner is than the fastest baseline; None without a baseline."""
        if self.paired is not None:
            return self.paired[0]
        return self.baseline[1] / self.ns if self.baseline is not None else None

    @property
    def baseline(self) -> tuple[str, float] | None:
        """The fastest baseline and its time."""
        if not self.baselines:
            return None
        name = min(self.baselines, key=lambda n: (self.baselines[n], n))
        return name, self.baselines[name]


class VariantRow(msgspec.Struct, frozen=True, kw_only=True):
    """A variant that is kept. `wins` counts the problems for which dispatch picks it.

    `varies` says that repeated runs on the same inputs gave different bits. `resources` and `roofline` are as in
    `CandidateRow`. `sanitized` has what sanitizers said of it, as its record.
    """

    name: str
    label: str
    target: str
    bytes: int
    wins: int
    rebuilt: bool
    varies: bool = False
    resources: dict[str, int] = {}
    roofline: float | None = None
    kernel: str = ""
    sanitized: dict[str, str] = {}


class CandidateRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A candidate that was timed.

    `resources` are what its code uses, if it was compiled here: `registers` of a thread, `spill_bytes`, `shared` memory
    of a block including its `dynamic_shared` part, and `stack`. `roofline` is its best share of the roofline, on the
    problem `where`.
    """

    name: str
    label: str
    problems: int
    resources: dict[str, int] = {}
    roofline: float | None = None
    where: str = ""


class DroppedCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A dropped candidate, why, on how many problems for the same reason, and the command that tries it."""

    candidate: str
    status: str
    reason: str
    count: int
    again: str = ""


class RegimeRow(msgspec.Struct, frozen=True, kw_only=True):
    """How calls of a kind and regime are decided that nobody measured, and what that loses on `held_out` shapes.

    `decides` is `nearest` for the nearest problem, `expected` for the least expected time, or `vendor` for the vendor's
    choice. `shapes` counts all surveyed shapes. Regrets are as in `SurveyRow`, and None if no shapes were held out.
    """

    kind: str
    regime: str
    decides: str
    shapes: int
    held_out: int
    mean: float | None = None
    p95: float | None = None
    worst: float | None = None
    where: str = ""


class SurveyPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A surveyed shape: its fastest candidate and time, what dispatch picks, and the regret of that.

    `regret` is None if the picked variant was not timed there. Nothing was learned from a shape that is `held_out`.
    """

    problem: str
    kind: str
    dims: dict[str, int]
    best: str
    ns: float
    picked: str
    regret: float | None
    held_out: bool
    regime: str = ""


class SurveyRow(msgspec.Struct, frozen=True, kw_only=True):
    """The regret of dispatch on surveyed shapes that nothing was learned from, against the best time there.

    A regret is time over best time, less 1. Given are the mean, the 95th percentile, and the worst, with its problem.
    `points` are all surveyed shapes. `regimes` are by kind of calls, in the order of the operator's regimes.
    """

    shapes: int
    learned_from: int
    mean: float
    p95: float
    worst: float
    where: str
    points: tuple[SurveyPoint, ...] = ()
    regimes: tuple[RegimeRow, ...] = ()


class DispatchMap(msgspec.Struct, frozen=True, kw_only=True):
    """What dispatch picks for calls of a kind over two dims. All other dims have the extents in `at`.

    `layout` names the tensors that are not row-major, each with its axes from the slowest to the fastest: `b:10`.
    `picks[j][i]` is the place in `variants` of what serves the call with extent `xs[i]` of dim `x` and `ys[j]` of dim
    `y`; it is -1 if there is no such call. Operators of one dim have an empty `y` and one row.
    """

    kind: str
    x: str
    y: str
    at: dict[str, int]
    xs: tuple[int, ...]
    ys: tuple[int, ...]
    variants: tuple[str, ...]
    picks: tuple[tuple[int, ...], ...]
    layout: str = ""


class RegretCurve(msgspec.Struct, frozen=True, kw_only=True):
    """What variants are worth to a kind of calls: `regret[i]` is the mean regret with the first i + 1 of `variants`.

    The mean is over the workload and the survey, if there is one. It only counts calls that these variants serve:
    `served[i]` is their share.
    """

    kind: str
    variants: tuple[str, ...]
    regret: tuple[float, ...]
    served: tuple[float, ...]


class OperatorReport(msgspec.Struct, frozen=True, kw_only=True):
    """One operator on one target.

    `tried` is the number of its candidates. `statuses` counts them by the worst that happened to each.
    `held_out_regret` is the mean over the problems that could be judged. It leaves out `not_held_out` others, on which
    the picked variant was never timed. `weighted_regret` is the mean by the problems' weights; None if these are all
    equal. `candidates` are those that were timed, at most 40, the nearest to the roofline first. `roofline_of` names
    what their shares refer to. `curves` and `maps` are by kind of calls. `seconds` are the device times of its
    measurements by phase, whenever they were made; records do not keep them.
    """

    operator: str
    target: str
    tried: int = 0
    statuses: dict[str, int] = {}
    problems: tuple[ProblemRow, ...] = ()
    variants: tuple[VariantRow, ...]
    failures: tuple[DroppedCandidate, ...] = ()
    mean_regret: float = 0.0
    held_out_regret: float | None = None
    not_held_out: int = 0
    weighted_regret: float | None = None
    note: str = ""
    survey: SurveyRow | None = None
    candidates: tuple[CandidateRow, ...] = ()
    roofline_of: str = ""
    curves: tuple[RegretCurve, ...] = ()
    maps: tuple[DispatchMap, ...] = ()
    seconds: dict[str, float] = {}

    @property
    def speedup(self) -> float | None:
        """The geometric mean of how many times faster winners are than the fastest baseline; None without baselines."""
        logs = [math.log(row.speedup) for row in self.problems if row.speedup]
        return math.exp(math.fsum(logs) / len(logs)) if logs else None


class TimeSpent(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a build that went into an activity, for one target or, without one, for all."""

    of: SpentOf
    what: str
    seconds: float
    target: str = ""


class MemoryPeak(msgspec.Struct, frozen=True, kw_only=True):
    """The most bytes that one process of a kind has held during a build."""

    what: str
    bytes: int


class DeviceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A device that was measured on. `facts` say what it has.

    In the middle one of its `races`, other processes used `load` of the host's cores, and in `busy` of them more than
    half a core; or others used the device. All is 0 if nothing tells.
    """

    name: str
    facts: dict[str, str]
    load: float = 0.0
    busy: int = 0
    races: int = 0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole build. `notes` are lines that nobody should miss.

    `policy` names the measurement policies. `measuring` describes each in lines, of which the first names it.
    `workload` has a line for each workload file. `spent` says where the time of a build went, if it measured. It is
    empty otherwise, so that a build that measures nothing gives the same report every time. So is `memory`, which has
    the control group as a whole if it is limited, and the kinds of processes, the largest first. `units` are what the
    driver calls the devices that were measured on (UUIDs). A record does not have them, so neither has a replay.
    `kept` are the files below the folder of AOT_TUNE_KEEP. `made` is the UTC date and time of a build that measured.
    `version` is that of aot_tune.
    """

    library: str
    mode: str
    targets: tuple[str, ...]
    devices: tuple[str, ...]
    toolchains: dict[str, str]
    policy: str
    operators: tuple[OperatorReport, ...]
    notes: tuple[str, ...] = ()
    measuring: tuple[tuple[str, ...], ...] = ()
    workload: tuple[str, ...] = ()
    spent: tuple[TimeSpent, ...] = ()
    memory: tuple[MemoryPeak, ...] = ()
    units: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    machine: tuple[DeviceRow, ...] = ()
    made: str = ""
    version: str = ""
    schema: int = SCHEMA

    @property
    def general_notes(self) -> list[str]:
        """The notes without those that operators have themselves."""
        own = {f"{part.operator}: {part.note}" for part in self.operators}
        return [note for note in self.notes if note not in own]


class _Version(msgspec.Struct):
    """Only the version, which is read first. Reports before version 2 have none."""

    schema: int = 1


def read_report(path: Path) -> Report:
    """A report.json, or that in a folder. Raises BuildError when it is missing, or none of this version."""
    try:
        path = path / "report.json" if path.is_dir() else path
        text = path.read_bytes()
    except OSError as error:
        raise BuildError(
            f"{path} cannot be read",
            why=error.strerror or str(error),
            fix="name the folder of a build, or its report.json",
        ) from error
    try:
        version = msgspec.json.decode(text, type=_Version).schema
        if version != SCHEMA:
            raise BuildError(
                f"{path} is a report of another version",
                why=f"it has version {version}, this aot_tune reads version {SCHEMA}",
                fix="read it with the aot_tune that built the library, or "
                + ("update this one" if version > SCHEMA else "build the library again"),
            )
        return msgspec.json.decode(text, type=Report)
    except ValueError as error:
        raise BuildError(f"{path} is not a report", why=str(error), fix="name the report.json of a build") from error
