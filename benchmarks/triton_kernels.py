"""Measures Triton kernels that are compiled ahead of time: their code, calls, start, compiling, and attention.

Usage: python benchmarks/triton_kernels.py [--parts sections,calls,maps,start,attention,products,throughput]
    [--rounds N] [--configs N] [--workers N] [--target NAME] [--objects DIR] [--json FILE] [--markdown FILE]

The part `throughput` needs no GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_tables import Verdict, render_verdicts
from triton_products import products, verdicts_of

__all__ = ["main", "report", "verdicts"]

PARTS = ("sections", "calls", "maps", "start", "attention", "products", "throughput")
_SECONDS = {"sections": 1200, "calls": 600, "maps": 300, "attention": 600, "machine": 120}
_BARE = "bare cuLaunchKernel"
KERNELS = Path(__file__).resolve().parents[1] / "examples" / "triton_package" / "templates" / "kernels.py"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)} (default all)")
    parser.add_argument("--rounds", type=int, default=51, help="batches of calls of each way (default 51)")
    parser.add_argument("--starts", type=int, default=7, help="processes of each way to start (default 7)")
    parser.add_argument("--races", type=int, default=11, help="turns of each contender of attention (default 11)")
    parser.add_argument("--configs", type=int, default=100, help="to compile, at most 100 (default 100)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="default: the cores")
    parser.add_argument("--target", default="cuda-sm_90a", help="of the part throughput (default cuda-sm_90a)")
    parser.add_argument("--objects", type=Path, help="compiled objects of a cache to start the part products from")
    parser.add_argument("--no-bundled", action="store_true", help="compare the example's sections alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured to a file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to a file")
    options = parser.parse_args()
    options.parts = options.parts.split(",")
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"unknown parts: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if not 1 <= options.configs <= 100 or min(options.workers, options.rounds, options.starts, options.races) < 1:
        parser.error("--configs is 1 to 100, all other numbers are at least 1")
    return options


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def on_gpu(part: str, **given: Any) -> Any:
    """The answer of a part in a separate process; `{"error": ...}` if it fails."""
    argv = [sys.executable, str(Path(__file__).with_name("triton_gpu.py")), part, json.dumps(given)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS[part],
                              check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {_SECONDS[part]} s"}
    if done.returncode != 0:
        return {"error": done.stderr.strip()[-1500:] or f"ended with status {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def _starts(count: int) -> Any:
    """Seconds of each way and process, in rounds. The JIT runs with an empty cache, and with one that it has filled."""
    taken: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as warm:
        for number in range(count + 1):
            for name in ("cuda", "aot_tune", "jit, warm cache", "jit, cold cache"):
                with tempfile.TemporaryDirectory() as cold:
                    cache = warm if "warm" in name else cold
                    try:
                        told = time_start(name.partition(",")[0], cache)
                    except subprocess.CalledProcessError as error:
                        return {"error": f"{name}: {error.stderr.strip()[-800:]}"}
                if number > 0:  # the first round loads files into memory and fills the warm cache
                    taken.setdefault(name, []).append(told)
    return taken


def time_start(way: str, cache: str) -> dict[str, float]:
    argv = [sys.executable, str(Path(__file__).with_name("triton_start.py")), way, str(KERNELS)]
    given = {**os.environ, "TRITON_CACHE_DIR": cache, "AOT_TUNE_BENCHMARK_START": str(time.monotonic())}
    done = subprocess.run(argv, capture_output=True, text=True, env=given, check=True, timeout=300)
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


def verdicts(found: Mapping[str, Any]) -> list[Verdict]:
    """The requirements for which something was measured. A part that failed is a missed one."""
    told = [
        Verdict(f"part {part}", "measured", str(answer["error"])[-300:], False)
        for part, answer in found.items()
        if isinstance(answer, dict) and "error" in answer
    ]
    whole = {p: a for p, a in found.items() if not (isinstance(a, dict) and "error" in a)}
    for part, judge in (
        ("sections", _sections),
        ("calls", _calls),
        ("maps", _maps),
        ("start", _start_times),
        ("attention", _attention),
        ("products", verdicts_of),
        ("throughput", _throughput),
    ):
        told += judge(whole[part]) if part in whole else []
    return told


def _sections(answers: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    same = sum(bool(a.get("same")) for a in answers)
    what = "kernels whose code sections are those of the JIT without line numbers"
    return [Verdict(what, "all", f"{same} of {len(answers)}", bool(answers) and same == len(answers))]


def _beyond(ns: Mapping[str, Sequence[float]], way: str, base: str) -> float:
    return statistics.median(a - b for a, b in zip(ns[way], ns[base], strict=True))


def _calls(answers: Mapping[str, Any]) -> list[Verdict]:
    told = []
    for name, answer in answers.items():
        for way, most in (("launcher from C", 150), ("library from C", 150), ("library from Python", 1000)):
            if way in answer["ns"]:
                extra = _beyond(answer["ns"], way, _BARE)
                told.append(
                    Verdict(f"{name}: {way}, beyond a {_BARE}", f"<= {most} ns", f"{extra:.0f} ns", extra <= most)
                )
            else:
                told.append(Verdict(f"{name}: {way}", f"<= {most} ns", answer["explained"]["missing"], False))
    return told


def _maps(answer: Mapping[str, Any]) -> list[Verdict]:
    what = "a tensor map that is new, beyond one that is known"
    if "missing" in answer:
        return [Verdict(what, "<= 300 ns", answer["missing"], False)]
    extra = _beyond(answer["ns"], "one new tensor", "the same tensors")
    return [Verdict(what, "<= 300 ns", f"{extra:.0f} ns", extra <= 300)]


def _after(runs: Iterable[Mapping[str, float]]) -> float:
    return statistics.median(r["first"] - r["ready"] for r in runs)


def _start_times(answer: Mapping[str, Any]) -> list[Verdict]:
    ours = _after(answer["aot_tune"])
    theirs = ", ".join(f"{name} {1000 * _after(runs):.0f} ms" for name, runs in answer.items() if name[:3] == "jit")
    what = f"first result of a process, beyond CUDA's own start ({theirs})"
    return [Verdict(what, "< 100 ms", f"{1000 * ours:.0f} ms", ours < 0.1)]


def _attention(answers: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    told = []
    for answer in (a for a in answers if a["width"] == 128):
        what = f"attention of {answer['tokens']} tokens, width 128{', causal' if answer['causal'] else ''}, against"
        others = {n: _ratio(answer["us"], n) for n in answer["us"] if n != "aot_tune"}
        if "flash" in others:
            told.append(_at_least(f"{what} torch's flash", others["flash"], 1.0))
        if others:
            best = min(others, key=lambda n: others[n])
            told.append(_at_least(f"{what} torch's best ({best})", others[best], 0.75))
    return told


def _ratio(us: Mapping[str, Sequence[float]], other: str) -> float:
    """Our speed over the other's: the mean of the paired logarithms, as a ratio."""
    logs = [math.log(o / t) for o, t in zip(us[other], us["aot_tune"], strict=True)]
    return math.exp(statistics.fmean(logs))


def _at_least(what: str, ratio: float, least: float) -> Verdict:
    return Verdict(what, f">= {least:g} x", f"{ratio:.3f} x", ratio >= least)


def _throughput(answers: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    told = []
    for a in answers:
        what = f"{a['operator']}: {a['count']} configs in {a['workers']} processes, against plain triton.compile"
        told += [_at_least(what, a["ratio"], 0.9), _at_least(f"{what}, by CPU seconds", a["cpu_ratio"], 0.9)]
    return told


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = [":--", *["--:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def _middle(values: Sequence[float], digits: int = 0) -> str:
    return f"{statistics.median(values):.{digits}f}"


def report(found: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """The requirements, then a table for each part."""
    parts = [", ".join(f"{key} {value}" for key, value in about.items())]
    parts.append(f"### Requirements\n\n{render_verdicts(verdicts(found))}")
    whole = {p: a for p, a in found.items() if not (isinstance(a, dict) and ("error" in a or "missing" in a))}
    if "sections" in whole:
        rows = [
            (f"{a['operator']} {a['kernel']}", a["problem"], str(a["config"] or ""), _outcome(a))
            for a in whole["sections"]
        ]
        parts.append(f"### Code sections\n\n{_table(('kernel', 'problem', 'config', 'as the JIT'), rows)}")
    calls = {**whole.get("calls", {}), **({"gemm, tensor maps": whole["maps"]} if "maps" in whole else {})}
    if calls:
        rows = [(name, way, _middle(ns), f"{min(ns):.0f}") for name, a in calls.items() for way, ns in a["ns"].items()]
        parts.append(f"### Host time of a call, ns\n\n{_table(('operator', 'call', 'median', 'least'), rows)}")
    if "start" in whole:
        rows = [
            (way, *(_middle([r[key] for r in runs], 3) for key in ("ready", "first")), f"{_after(runs):.3f}")
            for way, runs in whole["start"].items()
        ]
        head = ("process", "CUDA is ready, s", "first result, s", "between, s")
        parts.append(f"### From the start of a process\n\n{_table(head, rows)}")
    if "attention" in whole:
        parts.append(f"### Attention, µs\n\n{_attention_table(whole['attention'])}")
    if "products" in whole:
        parts.append(f"### Persistent products, µs\n\n{_products_table(whole['products'])}")
    if "throughput" in whole:
        rows = [
            (a["operator"], way, *(" ".join(f"{s:.1f}" for s in a[key][way]) for key in ("seconds", "cpu_seconds")))
            for a in whole["throughput"]
            for way in a["seconds"]
        ]
        head = ("operator", "way", "seconds", "CPU seconds")
        parts.append(f"### Compiling, s of each round\n\n{_table(head, rows)}")
    return "\n\n".join(parts) + "\n"


def _outcome(answer: Mapping[str, Any]) -> str:
    if "error" in answer:
        return str(answer["error"]).replace("|", "/").replace("\n", " ")[:160]
    if not answer["same"]:
        return "**differs**"
    more = "" if answer["lined"] else "; not with line numbers"
    more += "; the JIT makes others too" if answer.get("varies") else ""
    return f"same, {answer['bytes']} bytes{more}"


def _attention_table(answers: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(n for a in answers for n in a["us"]))
    rows = [
        (
            f"{a['width']}, {a['tokens']} tokens{', causal' if a['causal'] else ''}",
            str(a["explained"].get("kernel")),
            *(_middle(a["us"][n], 1) if n in a["us"] else "" for n in names),
            *(f"{_ratio(a['us'], n):.3f}" if n in a["us"] else "" for n in names if n != "aot_tune"),
        )
        for a in answers
    ]
    return _table(("width", "kernel", *names, *(f"x {n}" for n in names if n != "aot_tune")), rows)


def _products_table(answers: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            a["problem"],
            a["kernel"],
            f"{a['ns'] / 1e3:.1f}",
            f"{min(a['cublas_ns'].values()) / 1e3:.1f}" if a["cublas_ns"] else "",
            f"{a['paired'][0]:.3f} ± {a['paired'][1]:.3f}" if a["paired"] else "",
        )
        for a in answers
    ]
    return _table(("problem", "kernel", "ours", "cuBLAS", "x cuBLAS, paired"), rows)


def measure_all(options: argparse.Namespace) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """After each part, everything that was found so far, and the machine."""
    about: dict[str, Any] = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes")}
    if set(options.parts) - {"throughput"}:
        about |= on_gpu("machine")
    given = {
        "sections": {"bundled": not options.no_bundled},
        "calls": {"rounds": options.rounds},
        "maps": {"rounds": options.rounds},
        "attention": {"rounds": options.races},
    }
    found: dict[str, Any] = {}
    for part in options.parts:
        _say(f"part {part}")
        try:
            found[part] = _part(part, options, given)
        except (Exception, SystemExit) as failure:  # the others are measured anyway
            found[part] = {"error": f"{type(failure).__name__}: {failure}"[-1500:]}
        yield found, about


def _part(part: str, options: argparse.Namespace, given: Mapping[str, Any]) -> Any:
    if part == "throughput":
        from triton_throughput import throughput

        return throughput(options.target, options.configs, options.workers, 3, _say)
    if part == "products":
        return products(options.objects, _say)
    return _starts(options.starts) if part == "start" else on_gpu(part, **given[part])


def main() -> None:
    """Run, print the tables, and write the requested files, after each part."""
    options = _arguments()
    found: dict[str, Any] = {}
    text = ""
    for found, about in measure_all(options):
        text = report(found, about)
        if options.markdown is not None:
            options.markdown.write_text(text)
        if options.json is not None:
            everything = {"about": about, "parts": found, "requirements": [vars(v) for v in verdicts(found)]}
            options.json.write_text(json.dumps(everything, indent=1) + "\n")
    print(text)
    for verdict in verdicts(found):
        print(f"  {verdict.line}")


if __name__ == "__main__":
    main()
