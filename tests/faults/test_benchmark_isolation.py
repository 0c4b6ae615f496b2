"""What the benchmark of isolation has in place of workers does all that the bench asks of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from isolation import Here


def test_a_bench_measures_in_its_own_process(make_bench: Callable[..., Any], make_bed: Callable[[Any], Any]) -> None:
    bench = make_bench()
    bench.context.pool = Here(bench)
    with bench:
        bed = make_bed(bench)
        prepared = bed.prepare()
        assert bed.screen("good", prepared).status == "ok"
        raced = {m.candidate: m.status for m in bench.race(prepared, [bed.entry("good")])}
    assert raced == {"good": "ok", "baseline:numpy": "ok"}
