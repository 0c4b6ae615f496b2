"""The regret of the final choice: how much slower the chosen config is than the best, by recorded repetitions.

    python benchmarks/selection.py convolution-A4000.json.gz --repetitions 1000

Each repetition measures all configs of a space again (or `--candidates` random ones), with the project's own code.
Screens, the race of the best, ties and the selection are those of a build. Only the device is replaced: it answers with
recorded times, drawn at random with replacement. The regret is the mean of all recorded times of the chosen config over
the least such mean among the configs, less 1. It is given for three choices, to show where it comes from: the best of
the screens, the best of the race, and the final selection.

A file is left out, unless `--anyway` is given, if more than one config in a hundred has repetitions whose mean is more
than 1 % off its recorded time.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from search import percentile
from spaces import RecordedSpace, find_spaces, read_space

from aot_tune.bench.devices.family import policy_for
from aot_tune.bench.host.race import Race
from aot_tune.bench.host.remarks import Remarks
from aot_tune.bench.host.runner import Entrant
from aot_tune.bench.host.worker_process import Holdings
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Check, Measurement, Policy, Prepared
from aot_tune.bench.worker.cpu.timing import screen
from aot_tune.compile import Object
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.measuring.measure import finalists
from aot_tune.select import select
from aot_tune.spec import Kernel, Operator, Tensor, dims, problem

__all__ = ["Regret", "chosen", "main", "regrets"]

STAGES = ("screen", "race", "selection")

N = dims("N")[0]
PROBLEM = problem(N=1)
OPERATOR = Operator(
    name="recorded",
    dims=("N",),
    dtypes={"T": ("f32",)},
    tensors=(Tensor("x", (N,), "T"), Tensor("y", (N,), "T", output=True)),
    reference=lambda xp, call: {"y": call.x},  # noqa: ARG005 - nothing is computed
    flops=N,
    workload=(PROBLEM,),
    kernels=(Kernel("generic", "recorded/generic.cu.j2", "nvcc", generic=True),),
)


@dataclass(frozen=True)
class _Subject:
    """A candidate as the race and the evidence see it: a config of the space by number."""

    id: str
    kernel: str = OPERATOR.kernels[0].name
    generic: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class _Entry:
    candidate: _Subject
    object: Object | None = None


class _Worker(Holdings):
    state = "READY"


class _Device:
    """Replaces a bench, its pool and its workers: it answers a race's requests with recorded times, in ns."""

    on_host = False

    def __init__(self, times: Mapping[str, Sequence[float]], policy: Policy, draw: random.Random) -> None:
        self.policy, self.pool, self.family = policy, self, self
        self._times, self._draw, self._worker = times, draw, _Worker()
        self._loaded: dict[str, str] = {}
        self.remarks = Remarks(self.log)

    def log(self, _line: str) -> None: ...

    def sampler(self, candidate: str) -> Callable[[int], float]:
        """Samples of a candidate. Each is the mean of the requested number of calls."""
        times, draw = self._times[candidate], self._draw
        return lambda calls: statistics.fmean(draw.choices(times, k=calls))

    def candidates(self) -> _Worker:
        return self._worker

    def request(self, _worker: _Worker, request: messages.Request, _seconds: float) -> messages.Reply:
        if isinstance(request, messages.Load):
            self._loaded[request.handle] = request.symbol
        elif isinstance(request, messages.Verify):
            return messages.Checked(status="ok", runs=(self.sampler(self._loaded[request.handle])(1),))
        elif isinstance(request, messages.Turn):
            return messages.Timed(samples=(self.sampler(self._loaded[request.handle])(request.calls),))
        return messages.Done()

    def introduce(self, _worker: _Worker, *_problems: Prepared) -> None: ...

    def make_buffers(self, _worker: _Worker, _prepared: Prepared) -> None: ...

    def struck(self, _digest: str) -> None: ...

    def conditions(self) -> None: ...

    def floor_ns(self, _prepared: Prepared) -> float:
        return 0.0

    @property
    def monitor(self) -> _Device:
        return self

    def spoiled(self, _state: object) -> str:
        return ""

    def capped(self, _state: object) -> bool:
        return False

    def measurement(self, _prepared: Prepared, candidate: str, digest: str, **fields: Any) -> Measurement:
        return Measurement(
            candidate=candidate, code=digest, problem=PROBLEM, device="recorded", policy=self.policy.digest, **fields
        )


def chosen(times: Mapping[str, Sequence[float]], policy: Policy, draw: random.Random) -> dict[str, str]:
    """By `STAGES`: the best candidate of the screen, the best of the race, and the selected one.

    Args:
        times: repetitions in ns, by candidate. Samples are drawn from these.
        policy: how to measure.
        draw: the source of random numbers.
    """
    device = _Device(times, policy, draw)
    prepared = Prepared(
        key="recorded", operator="recorded", operator_folder="", check=Check(problem=PROBLEM), folder=""
    )
    entries: dict[str, Any] = {c: _Entry(_Subject(c)) for c in times}
    evidence = Evidence(OPERATOR, target=None, entries=entries)  # type: ignore[arg-type]
    best: float | None = None
    for candidate in draw.sample(list(times), len(times)):
        samples = tuple(screen(device.sampler(candidate), policy, best))
        found = device.measurement(prepared, candidate, candidate, status="ok", screen=samples)
        evidence.add(found)
        best = found.ns if best is None or (found.ns or math.inf) < best else best
    evidence.fresh[PROBLEM.id] = set(times)
    entrants: list[Any] = [e.candidate for e in finalists(evidence, PROBLEM)]
    row = evidence.measurements[PROBLEM.id]
    screened = min(row, key=lambda c: row[c].ns or math.inf)
    racing = [Entrant(candidate=c, shared_object=Path(c.id), symbol=c.id, code=c.id) for c in entrants]
    for measurement in Race(device, prepared, racing, ()).run():  # type: ignore[arg-type]
        evidence.add(measurement)
    facts = {PROBLEM.id: OPERATOR.facts(PROBLEM)}
    selection = select(evidence.choice_costs(), facts, lambda _candidate, _facts: True, times=evidence.times())
    raced = min((c.id for c in entrants), key=lambda c: row[c].ns or math.inf)
    return dict(zip(STAGES, (screened, raced, selection.nodes[0].ranked[0]), strict=True))


@dataclass(frozen=True)
class Regret:
    """The regret of one choice in one space: mean, 95th percentile and largest, in percent."""

    space: str
    choice: str
    candidates: int
    repetitions: int
    mean: float
    high: float
    most: float


def regrets(space: RecordedSpace, repetitions: int, candidates: int | None, family: str, seed: int = 0) -> list[Regret]:
    """Repeat the selection on a space, each time with other `candidates` random configs, or all. Regrets by stage."""
    nanoseconds = {str(i): [1e6 * t for t in ts] for i, ts in enumerate(space.times.values())}
    means = {c: statistics.fmean(ts) for c, ts in nanoseconds.items()}
    policy, draw = policy_for(family, Policy()), random.Random(seed)
    count = min(candidates or len(means), len(means))
    found: dict[str, list[float]] = {stage: [] for stage in STAGES}
    for _ in range(repetitions):
        among = draw.sample(sorted(means), count)
        best = min(means[c] for c in among)
        for stage, pick in chosen({c: nanoseconds[c] for c in among}, policy, draw).items():
            found[stage].append(100 * (means[pick] / best - 1))
    return [
        Regret(space.name, stage, count, repetitions, statistics.fmean(row), percentile(sorted(row), 0.95), max(row))
        for stage, row in found.items()
    ]


def unfit(space: RecordedSpace) -> float:
    """The share of configs whose repetitions have a mean more than 1 % off the recorded time; 1 if there are none."""
    off = [abs(statistics.fmean(ts) / space.costs[key] - 1) > 0.01 for key, ts in space.times.items()]
    return sum(off) / len(off) if off else 1.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spaces", nargs="+", type=Path, metavar="SPACE", help="cache files, or folders of them")
    parser.add_argument("--repetitions", type=int, default=200, help="selections per space; default 200")
    parser.add_argument("--candidates", type=int, help="random configs that each is among; default all")
    parser.add_argument("--family", default="cuda", help="of the devices whose policy is used; default cuda")
    parser.add_argument(
        "--anyway", action="store_true", help="also take files whose repetitions do not fit their means"
    )
    parser.add_argument("--json", type=Path, help="write the regrets there")
    parser.add_argument("--markdown", type=Path, help="write the table there too")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.repetitions < 1 or (options.candidates is not None and options.candidates < 1):
        parser.error("--repetitions and --candidates are positive")
    try:
        spaces = [read_space(path) for path in find_spaces(options.spaces)]
    except (ValueError, OSError) as error:
        parser.error(str(error))
    found = []
    for space in spaces:
        if not space.times or (unfit(space) > 0.01 and not options.anyway):
            print(f"{space.name}: left out, its repetitions are missing or do not fit its means", file=sys.stderr)
            continue
        found += regrets(space, options.repetitions, options.candidates, options.family)
    lines = ["| space | best of | candidates | repetitions | mean % | 95th percentile % | most % |"]
    lines.append("| :-- | :-- |" + " --: |" * 5)
    for r in found:
        figures = f"{r.mean:.2f} | {r.high:.2f} | {r.most:.2f}"
        lines.append(f"| {r.space} | {r.choice} | {r.candidates} | {r.repetitions} | {figures} |")
    print("\n".join(lines))
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n")
    if options.json:
        options.json.write_text(json.dumps([r.__dict__ for r in found], indent=1) + "\n")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
