"""What a build has to tell: plain data, written beside the library as `report.json`. Times are medians in ns."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

__all__ = [
    "NOT_TRIED",
    "SCHEMA",
    "CandidateRow",
    "DispatchMap",
    "DroppedCandidate",
    "OperatorReport",
    "ProblemRow",
    "RaceRunner",
    "RegretCurve",
    "Report",
    "SpentOf",
    "SurveyPoint",
    "SurveyRow",
    "TimeSpent",
    "VariantRow",
]

SCHEMA = 2
"""The version of these records: raised when a field changes its meaning or a reader needs one that was not there."""

NOT_TRIED = "not-tried"
"""The status of candidates that there was no reason to try, or no time."""


class RaceRunner(msgspec.Struct, frozen=True, kw_only=True):
    """What took part in a race on a problem, or was timed beside it.

    `whose` says whether it is a kernel of the library, a vendor's library called as a variant, or a baseline. `ns` is
    the median of its `samples`, `low` and `high` are their quartiles (least and most of fewer than four), what a round
    did to all runners taken out. It was `raced`, or else has the few samples of a screen.
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

    `winner` is the candidate with the best time, `picked` the variant that dispatch chooses; `spread` is the
    interquartile range of the winner's samples over their median, `noise` the relative difference from its time up to
    which another's is a tie; `flops` and `bytes` are those of one call. `paired` says how many times faster the winner
    was than the fastest baseline in the rounds of one race: the median of the rounds' ratios and its standard error.
    `regret` is what `picked` costs more than the best, by the costs that the choice went by: nothing for a tie.
    `remark` is what is to be said of the winner's times, `others` how many processes that were not ours used the device
    meanwhile. `weight` is how much the problem counts. `roofline` is the least time by the device's peaks over the
    winner's, None where these are not known, and `bound` whether memory or computing takes that long, empty where they
    do not tell. `kind` is the kind of calls it belongs to, as `T=bf16`, `dims` are its extents. `runners` are what
    raced on it, the fastest first, and the variant that dispatch picks. `held_out` is the regret of a decision that was
    learned without the problem, None where that is not known.
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

    @property
    def speedup(self) -> float | None:
        """How many times faster the winner is than the fastest baseline; None without one."""
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
    """A variant that is kept; `wins` counts the problems that dispatch gives to it.

    `varies` says that repeated runs on the same inputs did not give the same bits. `resources` and `roofline` are as in
    `CandidateRow`.
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


class CandidateRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A candidate that was timed.

    `resources` are what its code takes, if it was compiled here: `registers` of a thread, `spill_bytes`, `shared`
    memory of a block with what of it is `dynamic_shared`, `stack`. `roofline` is its best share of the roofline, on
    the problem `where`.
    """

    name: str
    label: str
    problems: int
    resources: dict[str, int] = {}
    roofline: float | None = None
    where: str = ""


class DroppedCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate that was dropped, and why; `count` problems had the same.

    `again` is the command that tries it by itself.
    """

    candidate: str
    status: str
    reason: str
    count: int
    again: str = ""


class SurveyPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A surveyed shape: the fastest there and its time, what dispatch picks, and the regret of that.

    `regret` is None where what is picked was not timed there. From a shape that is `held_out` nothing was learned.
    """

    problem: str
    kind: str
    dims: dict[str, int]
    best: str
    ns: float
    picked: str
    regret: float | None
    held_out: bool


class SurveyRow(msgspec.Struct, frozen=True, kw_only=True):
    """What dispatch gives up on shapes that were surveyed and not learned from, against the best that was timed there.

    Regrets are time over best time, less 1: the mean, that which 95 % of the shapes do not exceed, and the worst, with
    its problem. `points` are all shapes that were surveyed.
    """

    shapes: int
    learned_from: int
    mean: float
    p95: float
    worst: float
    where: str
    points: tuple[SurveyPoint, ...] = ()


class DispatchMap(msgspec.Struct, frozen=True, kw_only=True):
    """What dispatch picks for calls of a kind over two dims, all others of which are `at` an extent.

    `picks[j][i]` is the place in `variants` of what serves the call with extent `xs[i]` of dim `x` and `ys[j]` of dim
    `y`, -1 where there is no such call. Operators of one dim have an empty `y` and one row.
    """

    kind: str
    x: str
    y: str
    at: dict[str, int]
    xs: tuple[int, ...]
    ys: tuple[int, ...]
    variants: tuple[str, ...]
    picks: tuple[tuple[int, ...], ...]


class RegretCurve(msgspec.Struct, frozen=True, kw_only=True):
    """What variants are worth to a kind of calls: `regret[i]` is the mean regret with the first i + 1 of `variants`.

    It is over the workload and, where there is one, the survey; over that share of their calls, `served[i]`, that these
    variants serve.
    """

    kind: str
    variants: tuple[str, ...]
    regret: tuple[float, ...]
    served: tuple[float, ...]


class OperatorReport(msgspec.Struct, frozen=True, kw_only=True):
    """One operator on one target.

    `tried` are all its candidates, which `statuses` counts by the worst that happened to them.
    `held_out_regret` is a mean over the problems that could be judged; it leaves out `not_held_out` others, on which
    what is picked was never timed. `weighted_regret` is the mean in which problems count by their weights; None where
    these do not differ. `candidates` are those that were timed, the nearest to the roofline first, the best 40 at most;
    `roofline_of` names what their shares are of. `curves` and `maps` are by kind of calls. `seconds` are what its
    measurements took on their devices, whenever they were made, by phase; records do not keep them.
    """

    operator: str
    target: str
    tried: int
    statuses: dict[str, int]
    problems: tuple[ProblemRow, ...]
    variants: tuple[VariantRow, ...]
    failures: tuple[DroppedCandidate, ...]
    mean_regret: float
    held_out_regret: float | None
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


SpentOf = Literal["clock", "compilers", "device"]
"""Whose seconds they are: of the clock on the wall, of compilers on all cores together, of all devices together."""


class TimeSpent(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a build that went into something, for a target or, without one, for all of it."""

    of: SpentOf
    what: str
    seconds: float
    target: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole build; `notes` are lines that nobody should miss.

    `policy` names the measurement policies, `measuring` says what each is: lines of which the first names it.
    `workload` has a line for each file that states one. `spent` is where the time of a build that measured went, empty
    for others: what measures nothing is the same every time.
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
    schema: int = SCHEMA
