"""What a Ray cluster costs compiles: the same candidates with local compilers, and with as many on a cluster's nodes.

    python benchmarks/cluster.py --nodes 3 --candidates 36 --rounds 3 --json cluster.json

All nodes are on this machine, with one CPU each, so both ways have the same cores. The object cache is empty each time.
The way that comes first alternates from round to round. The first compiles of a cluster wait for its processes, which
import the package. They are counted in a separate round before the others.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aot_tune.compile import Batch, Jobs, ObjectCache, compile_batches, native_targets, toolchain_for
from aot_tune.compile.elsewhere import CompilersElsewhere
from aot_tune.pipeline.cluster.ray_cluster import RayCluster
from aot_tune.pipeline.cluster.ray_executor import RayExecutor
from aot_tune.render import Rendered, Renderer, candidates_for
from aot_tune.spec.load_operators import bundled_templates, load_operators

__all__ = ["drawn", "main", "seconds"]


def drawn(count: int, seed: int = 1) -> list[Rendered]:
    """Random candidates of the bundled operators for this machine's CPU."""
    root = bundled_templates()
    target = [t for t in native_targets() if t.on_host][-1]
    renderer, found = Renderer([root]), []
    for _, operator in load_operators([root]).values():
        for kernel in operator.kernels:
            if kernel.backend == "cxx" and not kernel.generic:
                for config in kernel.configs(target.facts):
                    found += [(operator, c) for c in candidates_for(operator, kernel, config, target)]
    chosen = random.Random(seed).sample(found, min(count, len(found)))
    return [renderer.render(operator, candidate, target) for operator, candidate in chosen]


def seconds(rendered: Sequence[Rendered], count: int, elsewhere: CompilersElsewhere | None) -> float:
    """Seconds that `count` compilers need for candidates, with an empty cache.

    Raises:
        SystemExit: when one does not compile.
    """
    with tempfile.TemporaryDirectory() as folder:
        cache = ObjectCache(Path(folder), toolchain_for("cxx"), elsewhere=elsewhere)
        begun = time.monotonic()
        made = compile_batches([Batch(cache, rendered, Jobs(count=count, reason=""))])
        took = time.monotonic() - begun
        if failed := [o.error for o in made.values() if o.status != "ok" or o.cached]:
            raise SystemExit(f"{len(failed)} of {len(made)} were not compiled: {failed[0]}")
        return took


def main(arguments: Sequence[str] | None = None) -> None:
    """Print seconds and throughput of both ways, and write all rounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--candidates", type=int, default=36)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    rendered = drawn(given.candidates)
    cluster = Cluster(shutdown_at_exit=False)
    try:
        for _ in range(given.nodes):
            cluster.add_node(num_cpus=1, include_dashboard=False)
        with RayCluster(cluster.address) as ray:
            executor = RayExecutor(ray, print, targets=())
            executor.chooses(os.environ)
            report = _measured(rendered, given.nodes, given.rounds, executor)
    finally:
        cluster.shutdown()
    for name, took in (("first of the cluster", [report["first"]]), *report["rounds"].items()):
        each = statistics.median(took)
        print(f"{name}: {each:.1f} s, {len(rendered) / each:.2f} candidates a second")
    ratios = [a / b for a, b in zip(report["rounds"]["local"], report["rounds"]["cluster"], strict=True)]
    print(
        f"throughput of the cluster: {statistics.median(ratios):.3f} x local ({min(ratios):.3f} to {max(ratios):.3f})"
    )
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")


def _measured(rendered: Sequence[Rendered], count: int, rounds: int, executor: RayExecutor) -> dict[str, Any]:
    ways: dict[str, CompilersElsewhere | None] = {"local": None, "cluster": executor}
    found: dict[str, list[float]] = {name: [] for name in ways}
    first = seconds(rendered, count, executor)
    for number in range(rounds):
        for name in sorted(ways, reverse=bool(number % 2)):
            found[name].append(seconds(rendered, count, ways[name]))
    return {"candidates": len(rendered), "compilers": count, "first": first, "rounds": found}


if __name__ == "__main__":
    main()
