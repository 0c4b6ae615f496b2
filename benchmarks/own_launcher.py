"""What a call through the library costs, compared with the same kernel called by its own launcher: in graphs, on a GPU.

`python benchmarks/own_launcher.py MODULE_FOLDER` takes the folder with the built module `ops` of examples/cuda_author.
It compiles the example's gemv.cu by itself, as its project would, with the config that the library has chosen.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "examples" / "cuda_author" / "csrc" / "gemv.cu"
EXPORT = """
extern "C" int call_gemv(const float* matrix, const float* x, float* y, int rows, int columns, void* stream) {
  return launch_gemv(matrix, x, y, rows, columns, static_cast<cudaStream_t>(stream));
}
"""
CALLS, ROUNDS = 200, 41


def own_launcher(folder: Path, warps: int, nvcc: str) -> Any:
    """The launcher, compiled as a separate library."""
    (folder / "own.cu").write_text(SOURCE.read_text() + EXPORT)
    capability = "".join(map(str, torch.cuda.get_device_capability()))
    flags = ["-O3", "-shared", "-Xcompiler=-fPIC", f"-arch=sm_{capability}", f"-DWARPS={warps}"]
    subprocess.run([nvcc, *flags, "own.cu", "-o", "own.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "own.so")).call_gemv


def recorded(call: Callable[[], object], calls: int = CALLS) -> torch.cuda.CUDAGraph:
    """A graph of many calls."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph


def played(graph: torch.cuda.CUDAGraph, calls: int = CALLS) -> float:
    """Microseconds per call in a graph."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1000 / calls


def turns(graphs: Sequence[torch.cuda.CUDAGraph], calls: int = CALLS) -> list[list[float]]:
    """Microseconds per call of each graph in each round. In each round, another graph is first."""
    times: list[list[float]] = [[] for _ in graphs]
    for turn in range(ROUNDS):
        for number in range(len(graphs)):
            which = (turn + number) % len(graphs)
            times[which].append(played(graphs[which], calls))
    return times


def compared(ops: Any, folder: Path, nvcc: str, rows: int, columns: int) -> dict[str, float]:
    """Paired medians for one shape."""
    matrix, x = torch.randn(rows, columns, device="cuda"), torch.randn(columns, device="cuda")
    y, other = torch.empty(rows, device="cuda"), torch.empty(rows, device="cuda")
    served = ops.explain("gemv", matrix, x)["variant"]
    (gemv,) = (o for o in ops.manifest()["operators"] if o["name"] == "gemv")
    warps = next(v for v in gemv["variants"] if v["name"] == served)["config"].get("WARPS", 4)
    launch = own_launcher(folder, warps, nvcc)
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (matrix, x, other)]

    def by_itself() -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if launch(*pointers, rows, columns, stream):
            sys.exit("the launcher failed")

    graphs = [recorded(lambda: ops.gemv(matrix, x, y=y)), recorded(by_itself)]
    if not torch.equal(y, other):
        sys.exit(f"results differ on {rows} x {columns}")
    times = turns(graphs)
    ratios = [a / b for a, b in zip(*times, strict=True)]
    more = [a - b for a, b in zip(*times, strict=True)]
    return {
        "rows": rows,
        "columns": columns,
        "warps": warps,
        "library_us": statistics.median(times[0]),
        "own_us": statistics.median(times[1]),
        "ratio": statistics.median(ratios),
        "more_us": statistics.median(more),
    }


def main() -> None:
    """Print a line of JSON for each shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", type=Path, help="the folder with ops.abi3.so of examples/cuda_author")
    parser.add_argument("--nvcc", default="nvcc")
    given = parser.parse_args()
    sys.path.insert(0, str(given.module))
    import ops

    for rows, columns in ((64, 256), (512, 1024), (4096, 4096), (14336, 4096)):
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(compared(ops, Path(folder), given.nvcc, rows, columns)), flush=True)


if __name__ == "__main__":
    main()
