#!/usr/bin/env python3
"""Compares ways to decide among variants on shapes that nobody measured, by surveys. Needs no GPU.

    benchmarks/decisions.py SURVEY [SURVEY ...] [--folds 10] [--seed 1] [--ways ours,ridge alone] [--caution 0.25]
                            [--variants 12] [--curve] [--markdown FILE] [--json FILE]

A SURVEY is a file of times, such as `gemm-bf16-H200.json.gz`, or a folder of records with surveys, which has one survey
for each kind of calls. Its shapes are divided into folds, the same for all ways. For each fold, the variants to keep
are chosen by the other folds, as a build does. Then each way learns from the others and picks a variant for each shape
of the fold. Tuned problems of a record are learned from, but never judged.

Regret is the time of the picked variant over the best time of any variant there, less 1. No way can be better than `the
best of those kept`. Operations and bytes of tables are for one decision among the variants of a fold. Seconds are for
learning one fold, margins included.

Some ways need scikit-learn, which this project does not depend on: `pip install scikit-learn`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from decision_basis import Lesson, Sheet
from decision_ways import WAYS, has_sklearn, learn_way
from surveyed import SurveyedKind, read_surveys

from aot_tune.select.choose_variants import choose_variants
from aot_tune.select.selection import MAX_REGRET, WORST_REGRET

__all__ = ["Score", "compare", "curve", "deal", "main", "table"]

_SHARES = (0.125, 0.25, 0.5, 1.0)
"""Share of the shapes that may be learned from."""
_BEHIND = 0.95
"""A pick counts as behind if its speed is below this multiple of what users would call otherwise."""
_ORACLE = "the best of those kept"


@dataclass(frozen=True)
class Score:
    """How good a way was on a survey.

    Args:
        mean, high, worst: mean regret, its 95th percentile, and the largest.
        behind: shares of shapes below 0.95 of the speed of the vendor's heuristic, and of the survey's other library.
        seconds: time of learning one fold.
        operations, bytes: about the operations of one decision, and the bytes of its tables.
    """

    survey: str
    way: str
    shapes: int
    mean: float
    high: float
    worst: float
    behind_vendor: float | None
    behind_other: float | None
    seconds: float
    operations: int
    bytes: int


@dataclass(frozen=True)
class _Pick:
    """The pick for a shape: its time, the best time there, and the times that it is compared with."""

    time: float
    best: float
    vendor: float | None
    other: float | None


def deal(problems: Sequence[str], folds: int, seed: int) -> list[list[str]]:
    """The problems in this many random folds of about equal size."""
    shuffled = sorted(problems)
    random.Random(seed).shuffle(shuffled)
    return [shuffled[i::folds] for i in range(folds)]


def compare(
    kind: SurveyedKind, ways: Sequence[str], folds: int, seed: int, *, caution: float, variants: int, share: float = 1.0
) -> list[Score]:
    """The scores of ways on a survey, and of the best possible way. A `share` of the shapes is learned from."""
    sheet = Sheet(kind)
    picks: dict[str, list[_Pick]] = {way: [] for way in (*ways, _ORACLE)}
    told: dict[str, list[tuple[float, int, int]]] = {way: [] for way in ways}
    for fold in deal(list(kind.costs), folds, seed):
        lesson = _lesson(sheet, set(fold), share, caution, variants)
        serving = {p: [v for v in lesson.kept if v in kind.costs[p]] for p in sorted(fold)}
        judged = [p for p in serving if serving[p]]
        for way in ways:
            begun = time.perf_counter()
            decider = learn_way(way, lesson)
            told[way].append((time.perf_counter() - begun, decider.operations, decider.bytes))
            picked = decider.pick(judged, [serving[p] for p in judged])
            picks[way] += [_pick(kind, p, v) for p, v in zip(judged, picked, strict=True)]
        best = [min(serving[p], key=lambda v, p=p: kind.costs[p][v]) for p in judged]  # type: ignore[misc]
        picks[_ORACLE] += [_pick(kind, p, v) for p, v in zip(judged, best, strict=True)]
    costs = {
        way: (statistics.fmean(s), round(statistics.fmean(o)), round(statistics.fmean(b)))
        for way, rows in told.items()
        for s, o, b in [zip(*rows, strict=True)]
    }
    return [_score(kind.name, way, found, *costs.get(way, (0.0, 0, 0))) for way, found in picks.items()]


def _lesson(sheet: Sheet, fold: set[str], share: float, caution: float, variants: int) -> Lesson:
    """What may be learned from if a fold is left out: of the rest the first part, in the order of a hash."""
    kind = sheet.kind
    others = [p for p in sorted(kind.costs) if p not in fold]
    random.Random(len(others)).shuffle(others)
    rows = {p: kind.costs[p] for p in sorted(others[: max(round(share * len(others)), 1)])} | dict(kind.tuned)
    kept = choose_variants(rows, limit=MAX_REGRET, worst=WORST_REGRET, most=variants, given=sorted(kind.vendor))
    return Lesson(sheet, rows, tuple(kept), caution)


def _pick(kind: SurveyedKind, problem: str, variant: str) -> _Pick:
    row = kind.costs[problem]
    vendor = min((row[v] for v in kind.vendor if v in row), default=None)
    return _Pick(row[variant], min(row.values()), vendor, kind.other.get(problem))


def _score(survey: str, way: str, picks: Sequence[_Pick], seconds: float, operations: int, size: int) -> Score:
    regrets = sorted(p.time / p.best - 1 for p in picks)
    return Score(
        survey=survey,
        way=way,
        shapes=len(regrets),
        mean=statistics.fmean(regrets),
        high=regrets[min(int(0.95 * len(regrets)), len(regrets) - 1)],
        worst=regrets[-1],
        behind_vendor=_behind([(p.time, p.vendor) for p in picks]),
        behind_other=_behind([(p.time, p.other) for p in picks]),
        seconds=seconds,
        operations=operations,
        bytes=size,
    )


def _behind(pairs: Sequence[tuple[float, float | None]]) -> float | None:
    """The share of times that are behind the other time, if they have one; None if none has one."""
    known = [_BEHIND * time > other for time, other in pairs if other is not None]
    return sum(known) / len(known) if known else None


def curve(kind: SurveyedKind, folds: int, seed: int, *, caution: float, variants: int) -> Iterator[tuple[float, Score]]:
    """The scores of our way, learning from parts of the shapes."""
    for share in _SHARES:
        yield share, compare(kind, ["ours"], folds, seed, caution=caution, variants=variants, share=share)[0]


def table(scores: Sequence[Score]) -> list[str]:
    """A table of the scores on one survey, the best first."""
    lines = [
        "| way | mean % | 95 % within % | worst % | < 0.95 vendor % | < 0.95 torch % | s to learn | operations | KB |"
    ]
    lines.append("| :-- |" + " --: |" * 8)
    for s in sorted(scores, key=lambda s: s.mean):
        behind = " | ".join("" if b is None else f"{100 * b:.1f}" for b in (s.behind_vendor, s.behind_other))
        cost = f"{s.seconds:.2f} | {s.operations} | {s.bytes / 1024:.1f}" if s.way != _ORACLE else " |  | "
        lines.append(f"| {s.way} | {100 * s.mean:.1f} | {100 * s.high:.0f} | {100 * s.worst:.0f} | {behind} | {cost} |")
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("surveys", nargs="+", type=Path, metavar="SURVEY", help="files of times, folders of records")
    parser.add_argument("--folds", type=int, default=10, help="default 10")
    parser.add_argument("--seed", type=int, default=1, help="of the folds; default 1")
    parser.add_argument("--ways", default="", help=f"separated by commas; default all: {','.join(WAYS)}")
    parser.add_argument(
        "--caution",
        type=float,
        default=0.25,
        help="a variant must be expected to beat the vendor's by this share of its error; default 0.25",
    )
    parser.add_argument("--variants", type=int, default=12, help="kept beside the vendor's at most; default 12")
    parser.add_argument("--curve", action="store_true", help="ours with parts of the shapes, instead of all ways")
    parser.add_argument("--markdown", type=Path, help="write the tables there too")
    parser.add_argument("--json", type=Path, help="write all scores there")
    return parser


def _ways(parser: argparse.ArgumentParser, asked: str) -> list[str]:
    """The requested ways, or all that are possible. A message tells which are not."""
    ways = [w for w in asked.split(",") if w] or list(WAYS)
    for way in ways:
        if way not in WAYS:
            parser.error(f"there is no way {way!r}; there are {', '.join(WAYS)}")
    missing = [w for w in ways if WAYS[w][1] and not has_sklearn()]
    if missing and asked:
        parser.error(f"{missing[0]!r} needs scikit-learn: pip install scikit-learn")
    if missing:
        print(f"left out without scikit-learn (pip install scikit-learn): {', '.join(missing)}", file=sys.stderr)
    return [w for w in ways if w not in missing]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = _parser()
    options = parser.parse_args(arguments)
    ways = _ways(parser, options.ways)
    if options.folds < 2 or options.variants < 1 or not 0 <= options.caution < math.inf:
        parser.error("--folds are at least 2, --variants at least 1, --caution is not negative")
    try:
        kinds = [kind for path in options.surveys for kind in read_surveys(path)]
    except (ValueError, OSError) as error:
        parser.error(str(error))
    lines: list[str] = []
    scores: list[Score] = []
    for kind in kinds:
        given = {"caution": options.caution, "variants": options.variants}
        if options.curve:
            parts = list(curve(kind, options.folds, options.seed, **given))
            own = [replace(s, way=f"{s.way}, {share:g} of the shapes") for share, s in parts]
        else:
            own = compare(kind, ways, options.folds, options.seed, **given)
        scores += own
        own_lines = [f"### {kind.name}: {len(kind.costs)} shapes, {len(kind.terms)} variants", "", *table(own), ""]
        print("\n".join(own_lines), flush=True)
        lines += own_lines
    if options.markdown:
        options.markdown.write_text("\n".join(lines))
    if options.json:
        options.json.write_text(json.dumps([asdict(s) for s in scores], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
