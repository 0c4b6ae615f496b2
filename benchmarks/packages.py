"""What a call through a built library takes, compared with the same kernel of a package by its own launcher.

`packages.py triton FOLDER` takes the folder with the built module `ops` of examples/from_packages.
`packages.py cuda FOLDER --nvcc nvcc` takes that of examples/cuda_packages. Calls are in CUDA graphs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import package_launchers
import package_triton
import torch
from package_calls import PackageCall, Row, compared, loaded, table, text_of

from aot_tune.compile import native_targets
from aot_tune.spec import Operator, Problem
from aot_tune.spec.load_operators import load_operator, operator_folders

_FORCE = "AOT_TUNE_FORCE"
_COMPILER_SECONDS = 400.0

Work = Callable[[Row, Operator, Problem], Row]


def tried(row: Row, operator: Operator, problem: Problem, work: Work) -> Row:
    """A row of the table. What goes wrong is said in it."""
    begin = time.monotonic()
    try:
        row |= work(row, operator, problem)
    except (Exception, SystemExit) as error:  # the other rows are measured anyway
        text = " ".join(f"{type(error).__name__}: {error}".split())
        refused = row.get("forced") and _FORCE in text
        row["note" if refused else "error"] = text[:600]
    row["seconds"] = round(time.monotonic() - begin, 2)
    with contextlib.suppress(RuntimeError):  # after an error that the device keeps
        torch.cuda.empty_cache()
    told = row.get("error") or row.get("note") or row.get("own_ratio") or row.get("variant")
    print(f"{row['operator']} {row['problem']}: {told}", file=sys.stderr, flush=True)
    return row


def problems(operators: Mapping[str, Operator], only: set[str]) -> Iterator[tuple[Row, Operator, Problem]]:
    """The workloads' problems, each with a row that names it."""
    for name, operator in operators.items():
        if not only or name in only:
            for problem in operator.workload_for("cuda"):
                yield {"operator": name, "problem": text_of(problem)}, operator, problem


def told_of(variant: Mapping[str, Any]) -> Row:
    """What a row says of a variant."""
    return {"variant": variant["name"], **{key: variant[key] for key in ("kernel", "config", "target", "generic")}}


def variants_of(ops: Any, operator: str) -> list[dict[str, Any]]:
    """The manifest's variants of an operator for GPUs."""
    found = next(o["variants"] for o in ops.manifest()["operators"] if o["name"] == operator)
    return [v for v in found if v["target"].startswith("cuda")]


def triton_rows(given: argparse.Namespace) -> list[Row]:
    """Rows of examples/from_packages. Where a kernel of ours serves, the package's is forced in another process."""
    ops, forced = loaded(given.module), bool(os.environ.get(_FORCE))
    names = sorted({v["target"] for o in ops.operators for v in variants_of(ops, o)})
    operators = package_triton.read_operators(names)
    count = int(torch.cuda.get_device_properties(0).multi_processor_count)
    wanted: dict[str, str] = {}
    other: set[tuple[str, str]] = set()

    def work(row: Row, operator: Operator, problem: Problem) -> Row:
        call = PackageCall(operator, problem)
        variant = call.served(ops)
        row |= told_of(variant)
        if not package_triton.is_package(operator, variant["kernel"]):
            row["note"] = "served by a kernel of the example"
            if kernels := package_triton.forced_kernels(operator, variants_of(ops, operator.name)):
                wanted[operator.name] = kernels[0]
                other.add((row["operator"], row["problem"]))
        triton = operator.kernel(variant["kernel"]).triton
        if triton is None:
            return compared(call, ops, {})
        function = package_triton.jit_function(triton.function)
        others = {"own": package_triton.launcher(call, operator, variant, function, count)}
        if (public := package_triton.public(call, variant["kernel"])) is not None:
            others["package"] = public
        return {"function": triton.function, **compared(call, ops, others, "package")}

    rows = []
    for row, operator, problem in problems({n: o for n, o in operators.items() if n in ops.operators}, given.only):
        rows.append(tried({**row, "forced": forced}, operator, problem, work))
    if wanted and not forced and not given.no_force:
        found = forced_rows(given.module, wanted)
        rows += [row for row in found if not row["problem"] or (row["operator"], row["problem"]) in other]
    return rows


def forced_rows(module: Path, wanted: Mapping[str, str]) -> list[Row]:
    """The same rows where the library must use these kernels."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "rows.json")
        argv = [sys.executable, __file__, "triton", str(module), "--only", ",".join(wanted), "--json", str(out)]
        env = {**os.environ, _FORCE: ",".join(f"{operator}:{kernel}" for operator, kernel in wanted.items())}
        done = subprocess.run(argv, env=env, stdout=subprocess.DEVNULL, check=False)
        if not out.is_file():
            text = f"the process with {env[_FORCE]} ended with status {done.returncode}"
            return [{"operator": ", ".join(wanted), "problem": "", "forced": True, "error": text}]
        found: list[Row] = json.loads(out.read_bytes())["rows"]
        return found


def cuda_rows(given: argparse.Namespace) -> list[Row]:
    """Rows of examples/cuda_packages: what serves is asked first, and everything is compiled in parallel."""
    ops = loaded(given.module)
    folders = operator_folders([package_launchers.TEMPLATES])
    operators = {f.name: load_operator(f) for f in folders if f.name in ops.operators}
    native = _native()
    made: dict[str, Future[Path]] = {}
    plans: dict[tuple[str, str], dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as threads:

        def submit(build: package_launchers.Build) -> str:
            if build.key not in made:
                place = Path(folder, str(len(made)))
                made[build.key] = threads.submit(package_launchers.compiled, build, place, given.nvcc)
            return build.key

        def ask(_: Row, operator: Operator, problem: Problem) -> Row:
            variant = PackageCall(operator, problem).served(ops)
            known = variant["kernel"], variant["config"], problem.dtypes
            targets = {"own": variant["target"], **({"native": native} if "ptx" in variant["target"] else {})}
            builds = {way: package_launchers.Build(operator, *known, target) for way, target in targets.items()}
            plans[operator.name, problem.id] = {way: submit(build) for way, build in builds.items()}
            return told_of(variant)

        def work(_: Row, operator: Operator, problem: Problem) -> Row:
            plan = plans[operator.name, problem.id]
            libraries = {way: made[key].result(_COMPILER_SECONDS) for way, key in plan.items()}
            call = PackageCall(operator, problem)
            ways = {way: package_launchers.launcher(call, library) for way, library in libraries.items()}
            return compared(call, ops, ways)

        asked = [(tried(row, op, problem, ask), op, problem) for row, op, problem in problems(operators, given.only)]
        return [row if "error" in row else tried(row, op, problem, work) for row, op, problem in asked]


def _native() -> str:
    """The best target of this GPU."""
    found = [t.name for t in native_targets() if t.family == "cuda"]
    if not found:
        raise SystemExit("benchmarks: no NVIDIA GPU, or no CUDA compiler that could name it")
    return found[-1]


def main() -> int:
    """Print a table of all rows. The status is 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("triton", "cuda"))
    parser.add_argument("module", type=Path, help="the folder with the built module ops*.so")
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2, help="compilers at once")
    parser.add_argument("--only", type=lambda text: set(filter(None, text.split(","))), default=set())
    parser.add_argument("--no-force", action="store_true", help="no second process where a kernel of ours serves")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device = torch.cuda.get_device_name()
    rows = (triton_rows if given.kind == "triton" else cuda_rows)(given)
    if given.json:
        facts = {"device": device, "torch": torch.__version__, "cuda": torch.version.cuda, "rows": rows}
        given.json.write_text(json.dumps(facts, indent=1) + "\n")
    print(f"{device}\n\n{table(rows, 'package' if given.kind == 'triton' else 'native')}")
    return int(any("error" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
