"""Scores search strategies on recorded spaces: how near to the best config they are after a number of tries.

    python benchmarks/search.py FOLDER --seeds 50 --markdown search.md

A space is a cache file of Kernel Tuner (.json, .json.gz), in which every config has its time. A try is a config that
was not tried before; failed ones count. The score after each try is the best time in the file over the best time so
far. The tables show the median over seeds, with the 10th percentile in brackets.

`ours` knows only the space. `random` and the others are strategies of Kernel Tuner and need its package, on which this
project does not depend: `pip install kernel-tuner`. Without it, `random` is our own.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from spaces import RecordedSpace, best_so_far, find_spaces, read_space
from tuner_strategies import TunerSearch, available

from aot_tune.search import make_strategy

__all__ = ["Score", "main", "run_ours", "score", "table"]

BUDGETS = (25, 50, 100, 200, 400)
THEIRS = (
    "genetic_algorithm",
    "hybrid_vndx",
    "adaptive_tabu_greywolf",
    "greedy_ils",
    "diff_evo",
    "pso",
    "simulated_annealing",
)


@dataclass(frozen=True)
class Score:
    """The scores of one strategy on one space, by number of tries: median and 10th percentile over seeds, in percent.

    `ms` is the mean time of a proposal.
    """

    space: str
    strategy: str
    seeds: int
    median: dict[int, float]
    tenth: dict[int, float]
    ms: float


def run_ours(space: RecordedSpace, seed: int, count: int, step: int = 1) -> list[float]:
    """The costs of the first `count` configs that our search proposes. It learns costs after each `step` of them."""
    strategy = make_strategy(space.configs, (), min(count, len(space.costs) - 1), seed=seed)
    costs: list[float] = []
    while asked := strategy.ask(step):
        told = [(config, space.cost(config)) for config in asked]
        costs += [cost for _, cost in told]
        for config, cost in told:
            strategy.tell(config, cost)
    return costs


def run_random(space: RecordedSpace, seed: int, count: int) -> list[float]:
    """The costs of `count` random configs."""
    costs = list(space.costs.values())
    return random.Random(seed).sample(costs, min(count, len(costs)))


def score(space: RecordedSpace, strategy: str, seeds: int, budgets: Sequence[int], step: int = 1) -> Score:
    """Run a strategy on a space with each of the seeds 0 to `seeds` - 1."""
    theirs = TunerSearch(space) if strategy != "ours" and available() else None
    count = max(budgets)
    rows: list[list[float]] = []
    tries, start = 0, time.perf_counter()
    for seed in range(seeds):
        if strategy == "ours":
            costs = run_ours(space, seed, count, step)
        elif theirs is None:
            costs = run_random(space, seed, count)
        else:
            costs = theirs.run("random_sample" if strategy == "random" else strategy, seed, count)
        tries += len(costs)
        rows.append([*best_so_far(space, costs), *[0.0] * (not costs)])
    spent = time.perf_counter() - start
    shares = {b: sorted(100 * row[min(b, len(row)) - 1] for row in rows) for b in budgets}
    return Score(
        space=space.name,
        strategy=strategy,
        seeds=seeds,
        median={b: statistics.median(s) for b, s in shares.items()},
        tenth={b: percentile(s, 0.1) for b, s in shares.items()},
        ms=1000 * spent / max(tries, 1),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """A percentile of sorted values, by linear interpolation between the two nearest."""
    place = share * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (place - low) * (values[high] - values[low])


def mean_over_spaces(scores: Sequence[Score]) -> list[Score]:
    """For each strategy, the means of its medians and of its percentiles over the spaces."""
    found = []
    for strategy in dict.fromkeys(s.strategy for s in scores):
        own = [s for s in scores if s.strategy == strategy]
        found.append(
            Score(
                space=f"mean of {len(own)} spaces",
                strategy=strategy,
                seeds=min(s.seeds for s in own),
                median={b: statistics.fmean(s.median[b] for s in own) for b in own[0].median},
                tenth={b: statistics.fmean(s.tenth[b] for s in own) for b in own[0].tenth},
                ms=statistics.fmean(s.ms for s in own),
            )
        )
    return found


def table(scores: Sequence[Score]) -> str:
    """A Markdown table for each space. With several spaces, also a table of means over all."""
    names = list(dict.fromkeys(s.space for s in scores))
    lines: list[str] = []
    for name in names:
        lines += _one_table(name, [s for s in scores if s.space == name])
    if len(names) > 1:
        means = mean_over_spaces(scores)
        lines += _one_table(means[0].space, means)
    return "\n".join(lines)


def _one_table(title: str, scores: Sequence[Score]) -> list[str]:
    budgets = list(scores[0].median)
    head = [f"### {title}, {scores[0].seeds} seeds", "", "| strategy | " + " | ".join(map(str, budgets)) + " | ms |"]
    lines = [*head, "| :-- |" + " --: |" * (len(budgets) + 1)]
    for s in scores:
        cells = [f"{s.median[b]:.1f} [{s.tenth[b]:.1f}]" for b in budgets]
        lines.append(f"| {s.strategy} | " + " | ".join(cells) + f" | {s.ms:.1f} |")
    return [*lines, ""]


def _score_file(path: Path, strategy: str, seeds: int, budgets: Sequence[int], step: int) -> Score:
    return score(read_space(path), strategy, seeds, budgets, step)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spaces", nargs="+", type=Path, metavar="SPACE", help="cache files, or folders of them")
    parser.add_argument("--seeds", type=int, default=50, help="runs of each strategy on each space; default 50")
    parser.add_argument(
        "--strategies",
        default="",
        help=f"separated by commas; default ours,random and, where Kernel Tuner is installed, {','.join(THEIRS)}",
    )
    budgets = ",".join(map(str, BUDGETS))
    parser.add_argument("--budgets", default=budgets, help=f"numbers of tries to score after; default {budgets}")
    parser.add_argument("--step", type=int, default=1, help="configs that ours is asked for at a time; default 1")
    parser.add_argument("--processes", type=int, default=1, help="that run at a time; default 1")
    parser.add_argument("--json", type=Path, help="write all scores there")
    parser.add_argument("--markdown", type=Path, help="write the tables there too")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = _parser()
    options = parser.parse_args(arguments)
    default = ("ours", "random", *(THEIRS if available() else ()))
    strategies = [s for s in options.strategies.split(",") if s] or default
    if not available() and (unknown := [s for s in strategies if s not in ("ours", "random")]):
        parser.error(f"{unknown[0]} is not known without Kernel Tuner; pip install kernel-tuner")
    try:
        budgets = sorted({int(b) for b in options.budgets.split(",")})
        paths = find_spaces(options.spaces)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if options.seeds < 1 or options.step < 1 or options.processes < 1 or budgets[0] < 1:
        parser.error("--seeds, --step, --processes and --budgets are positive")
    with ProcessPoolExecutor(options.processes) as pool:
        tasks = [
            pool.submit(_score_file, path, strategy, options.seeds, budgets, options.step)
            for path in paths
            for strategy in strategies
        ]
        scores = []
        for task in tasks:
            scores.append(task.result())
            last = scores[-1]
            shown = " ".join(f"{last.median[b]:.1f} [{last.tenth[b]:.1f}]" for b in budgets)
            print(f"{last.space} {last.strategy}: {shown}, {last.ms:.1f} ms", file=sys.stderr, flush=True)
    text = table(scores)
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n")
    if options.json:
        options.json.write_text(json.dumps([asdict(s) for s in scores], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
