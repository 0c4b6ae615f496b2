"""Layers of Llama and of BERT: torch, torch.compile, and both with operators by `aot_tune.torch.patch`.

`python benchmarks/models.py --small` runs on a CPU. On a GPU, it uses the sizes of Llama-3-8B and BERT-large in bf16.
Each way runs in its own process, twice: with empty caches, for the time from its start to its first result, and again
with what it compiled. With `--steady`, it runs once. The last processes then take turns, in rounds of changing order,
while the others wait. `--ways` also takes whole calls in CUDA graphs of ours: `"patched, captured"` and its like.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

WAYS = ("eager", "compile", "max-autotune", "patched", "patched, compile", "patched, graphs")
CAPTURED = ("eager, captured", "max-autotune, captured", "patched, captured", "patched, compile, captured")
"""The whole call in a CUDA graph of ours, which takes the host's part out of every way alike."""
TOKENS = (1, 16, 512)
FIRST = 16
"""Number of tokens of the first result."""

SMALL = {
    "llama": {"hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8, "num_key_value_heads": 2},
    "bert": {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4},
}
LARGE = {
    "llama": {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8},
    "bert": {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16},
}


def make_layer(model: str, sizes: dict[str, int]) -> tuple[Any, Callable[[Any], dict[str, Any]]]:
    """A layer in evaluation mode, and its arguments beside the hidden states."""
    import torch
    import transformers

    torch.manual_seed(0)
    if model == "bert":
        from transformers.models.bert.modeling_bert import BertLayer

        bert = transformers.BertConfig(**sizes, attn_implementation="sdpa")
        return BertLayer(bert).eval().requires_grad_(False), lambda _: {}
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    llama = transformers.LlamaConfig(**sizes, attn_implementation="sdpa")
    rotary = LlamaRotaryEmbedding(llama)

    def given(x: Any) -> dict[str, Any]:
        places = torch.arange(x.shape[1])[None]
        return {"position_embeddings": tuple(t.to(x) for t in rotary(torch.zeros(1), places))}

    return LlamaDecoderLayer(llama, 0).eval().requires_grad_(False), given


def load(path: str) -> Any:
    """A module, by its name or by the path of its file."""
    if not path.endswith(".so"):
        return importlib.import_module(path)
    name = Path(path).name.partition(".")[0]
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise SystemExit(f"{path} is not a module")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def made_ready(options: argparse.Namespace) -> tuple[Callable[[int], Any], Callable[[], None], Any]:
    """One way in this process: what calls the layer on so many tokens, what waits for it, what was replaced in it."""
    import torch

    torch.set_grad_enabled(False)
    dtype = getattr(torch, options.dtype)
    sizes = json.loads(options.sizes)
    with torch.device("cpu"):
        layer, given = make_layer(options.model, sizes)
    layer = layer.to(device=options.device, dtype=dtype)
    replaced: Any = ""
    if options.worker.startswith("patched"):
        from aot_tune.torch import patch

        replaced = patch(layer, load(options.module), tuned=not options.generic)
    run = layer
    way = options.worker.removesuffix(", captured")
    captured = options.worker != way
    if way.endswith("compile"):
        run = torch.compile(layer, fullgraph=True, dynamic=False)
    elif way.endswith("graphs"):  # CUDA graphs, as max-autotune has them
        run = torch.compile(layer, fullgraph=True, dynamic=False, mode="reduce-overhead")
    elif way == "max-autotune":
        mode = "max-autotune-no-cudagraphs" if captured else "max-autotune"
        run = torch.compile(layer, fullgraph=True, dynamic=False, mode=mode)
    inputs = {}
    for length in TOKENS:
        x = torch.randn(1, length, sizes["hidden_size"], generator=torch.Generator().manual_seed(length))
        x = x.to(device=options.device, dtype=dtype)
        inputs[length] = x, given(x)

    def call(tokens: int) -> Any:
        x, more = inputs[tokens]
        return run(x, **more)

    if captured:
        call = captured_calls(call)
    return call, (lambda: None) if options.device == "cpu" else torch.cuda.synchronize, replaced


def captured_calls(call: Callable[[int], Any]) -> Callable[[int], Any]:
    """Replays a CUDA graph of the call, which the first call with so many tokens makes."""
    import torch

    graphs: dict[int, tuple[torch.cuda.CUDAGraph, Any]] = {}

    def replay(tokens: int) -> Any:
        if tokens not in graphs:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):  # what is compiled or loaded at first must not be in the graph
                for _ in range(3):
                    call(tokens)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = call(tokens)
            graphs[tokens] = graph, result
        graph, result = graphs[tokens]
        graph.replay()
        return result

    return replay


def run_worker(options: argparse.Namespace) -> None:
    """Measure one way in this process.

    It reads lines of tokens and what is wanted: seconds to measure for, `result`, or `shown`.
    """
    import torch
    import transformers.models.bert.modeling_bert
    import transformers.models.llama.modeling_llama  # noqa: F401

    torch.zeros(1, device=options.device)
    imported = time.time() - options.started
    call, wait, replaced = made_ready(options)
    call(FIRST)
    wait()
    say({"first": time.time() - options.started, "imported": imported})
    for line in sys.stdin:
        words = line.split()
        tokens = int(words[0])
        if words[1] == "shown":  # at the end: it counts calls
            say({"shown": str(replaced)})
            continue
        if words[1] == "result":
            say({"result": call(tokens).float().flatten()[::tokens].tolist()})
            continue
        call(tokens)
        wait()
        count, end = 0, time.perf_counter() + float(words[1])
        start = time.perf_counter()
        while time.perf_counter() < end:
            for _ in range(8):
                call(tokens)
            wait()
            count += 8
        say({"us": (time.perf_counter() - start) / count * 1e6})


def say(message: dict[str, Any]) -> None:
    """Write a line to the host. Libraries may write to stdout too."""
    print("@" + json.dumps(message), flush=True)


class Contender:
    """The process of one way."""

    def __init__(self, way: str, model: str, options: argparse.Namespace, caches: str) -> None:
        sizes = (SMALL if options.small else LARGE)[model]
        arguments = [
            "--model",
            model,
            "--sizes",
            json.dumps(sizes),
            "--device",
            options.device,
            "--dtype",
            options.dtype,
        ]
        arguments += [
            "--module",
            options.module,
            "--threads",
            str(options.threads),
            *(["--generic"] if options.generic else []),
        ]
        threads = {"OMP_NUM_THREADS": str(options.threads)} if options.threads else {}
        where = {**threads, "TORCHINDUCTOR_CACHE_DIR": caches, "TRITON_CACHE_DIR": str(Path(caches) / "triton")}
        self.way = way
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", way, "--started", repr(time.time()), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **where},
        )
        said = self.hear()
        self.first: float = said["first"]
        self.imported: float = said["imported"]

    def hear(self) -> dict[str, Any]:
        """The next message of the process."""
        if self._process.stdout is None:
            raise RuntimeError("the process has no output")
        for line in self._process.stdout:
            if line.startswith("@"):
                found: dict[str, Any] = json.loads(line[1:])
                return found
        raise SystemExit(f"{self.way}: its process ended with {self._process.wait()}")

    def ask(self, line: str) -> dict[str, Any]:
        """Write a line to the process, and return its answer."""
        if self._process.stdin is None:
            raise RuntimeError("the process has no input")
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self.hear()

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def measure(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure all ways on one model."""
    found: dict[str, Any] = {way: {"first": [], "imported": [], "us": {n: [] for n in TOKENS}} for way in options.ways}
    with tempfile.TemporaryDirectory() as folder:

        def start(way: str) -> Contender:
            made = Contender(way, model, options, str(Path(folder) / way.replace(", ", "-")))
            found[way]["first"].append(made.first)
            found[way]["imported"].append(made.imported)
            print(f"{model}, {way}: first result after {made.first:.1f} s", file=sys.stderr, flush=True)
            return made

        if options.steady:  # those that tune time kernels meanwhile, and start alone
            with ThreadPoolExecutor() as pool:
                started = list(pool.map(start, [w for w in options.ways if "autotune" not in w]))
            contenders = started + [start(w) for w in options.ways if "autotune" in w]
        else:
            contenders = []
            for way in options.ways:
                start(way).close()
                contenders.append(start(way))
        check(contenders, options.dtype)
        for number in range(options.rounds):
            for tokens in TOKENS:
                random.Random(f"{number} {tokens}").shuffle(contenders)
                for one in contenders:
                    found[one.way]["us"][tokens].append(one.ask(f"{tokens} {options.seconds}")["us"])
        for one in contenders:
            found[one.way]["shown"] = one.ask("0 shown")["shown"]
            one.close()
    return found


def check(contenders: list[Contender], dtype: str) -> None:
    """End if the results of two ways differ by more than rounding explains."""
    near = {"float32": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}[dtype]
    for tokens in TOKENS:
        results = [(one.way, one.ask(f"{tokens} result")["result"]) for one in contenders]
        scale = max(abs(v) for v in results[0][1])
        for way, values in results[1:]:
            apart = max(abs(a - b) for a, b in zip(values, results[0][1], strict=True))
            if not apart <= near * scale:
                raise SystemExit(f"{way}: {tokens} tokens: results are {apart / scale:.2g} of the largest value apart")


def table(found: dict[str, Any]) -> str:
    """Medians with half of the interquartile range, in Markdown."""
    heads = [f"{n} token{'s' * (n > 1)}, us" for n in TOKENS]
    lines = [
        f"| way | {' | '.join(heads)} | first result, s | again, s | of that imports |",
        "|---|" + "--:|" * (len(TOKENS) + 3),
    ]
    for way, said in found.items():
        cells = []
        for n in TOKENS:
            low, middle, high = statistics.quantiles(said["us"][n], n=4, method="inclusive")
            cells.append(f"{middle:.4g} ± {(high - low) / 2:.2g}")
        if len(said["first"]) > 1:
            cells += [f"{seconds:.1f}" for seconds in (*said["first"], said["imported"][1])]
        else:
            cells += ["", "", ""]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--module", default="aot_tune.ops", help="a library's module with its operators, or its file")
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    parser.add_argument("--generic", action="store_true", help="also replace modules that generic variants serve")
    parser.add_argument("--models", nargs="+", default=["llama", "bert"], choices=("llama", "bert"))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=(*WAYS, *CAPTURED))
    parser.add_argument("--device", default=None, help="cuda where --small is not given")
    parser.add_argument("--dtype", default=None, help="float32 on a CPU, bfloat16 on a GPU")
    parser.add_argument("--threads", type=int, default=0, help="threads of a process on a CPU; 0 for torch's default")
    parser.add_argument("--steady", action="store_true", help="start all at once, and leave out times of first results")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a turn")
    parser.add_argument("--json", type=Path, help="every round, and the machine")
    for name in ("--worker", "--model", "--sizes"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.device = options.device or ("cpu" if options.small else "cuda")
    options.dtype = options.dtype or ("float32" if options.device == "cpu" else "bfloat16")
    if options.worker:
        run_worker(options)
        return
    everything = {}
    for model in options.models:
        everything[model] = measure(model, options)
        sizes = (SMALL if options.small else LARGE)[model]
        print(
            f"\n{model}, {options.dtype} on {options.device}, {sizes}: {options.rounds} rounds of {options.seconds} s\n"
        )
        print(table(everything[model]), flush=True)
        for way, said in everything[model].items():
            if said["shown"]:
                print(f"\n{way}:\n{said['shown']}", flush=True)
    if options.json:
        about = {"python": platform.python_version(), "machine": platform.processor()}
        options.json.write_text(json.dumps({**about, **vars(options), "json": "", "found": everything}, indent=1))


if __name__ == "__main__":
    main()
