"""`aot-tune workload`: make, merge and show files of the problems worth tuning."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aot_tune.cli.compile_commands import add_template_roots
from aot_tune.cli.explain_command import json_text
from aot_tune.report.report_text import counted
from aot_tune.spec import Operator
from aot_tune.spec.calls import is_empty
from aot_tune.spec.load_operators import load_operators, template_paths
from aot_tune.support.errors import Mistakes, OptionError, SpecError, did_you_mean
from aot_tune.support.installed_paths import BUNDLED_MODULE
from aot_tune.workloads.mapped_calls import MappedCalls
from aot_tune.workloads.workload_lines import (
    CountedProblem,
    add_up,
    call_tables,
    decode_workload,
    encode_workload,
    known_problems,
)

_ROOTS = "template root with the operators that the files name"
_EXAMPLE = """\
each line of a file is a problem and how much it counts; a trace also says how it was called:
  {"operator": "gemm", "dims": {"M": 16, "N": 4096, "K": 4096}, "dtypes": {"T": "bf16"}, "weight": 2}

  aot-tune workload merge traces/*.jsonl -o workload.jsonl
  aot-tune workload from-model config.json --tokens 1,16,512 --tp 2 -o workload.jsonl
  aot-tune workload show workload.jsonl --top 5
  aot-tune workload coverage traces/*.jsonl
"""


def add_workload(commands: Any) -> None:
    """Add the command and its subcommands to the parser."""
    workload = commands.add_parser(
        "workload",
        help="make, merge and show files of problems worth tuning",
        description="Make, merge and show workload files: the problems that a build should tune.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subcommands = workload.add_subparsers(dest="subcommand", metavar="SUBCOMMAND", required=True)
    _add_merge(subcommands)
    _add_show(subcommands)
    _add_coverage(subcommands)
    _add_from_torch(subcommands)
    _add_from_tunableop(subcommands)
    _add_from_model(subcommands)


def _add_merge(subcommands: Any) -> None:
    merge = subcommands.add_parser(
        "merge",
        help="make one workload file from several, or from traces",
        description="Add up the lines of traces and workload files. The calls of a problem become its weight. The "
        "heaviest problem comes first.",
    )
    _add_files(merge, "traces and workload files")
    _add_output(merge)
    add_template_roots(merge, _ROOTS)
    merge.set_defaults(run=_merge)


def _add_show(subcommands: Any) -> None:
    show = subcommands.add_parser(
        "show",
        help="show which problems are called, and how often",
        description="Print a table for each operator. It shows how often each problem is called, and the share of "
        "these calls that were made while a graph was captured. The most frequent problem comes first. A weight "
        "counts as that many calls.",
    )
    _add_files(show, "traces and workload files")
    show.add_argument(
        "--top", type=_positive, metavar="N", help="show only the N most frequent problems of each operator"
    )
    add_template_roots(show, _ROOTS)
    show.set_defaults(run=_show)


def _add_coverage(subcommands: Any) -> None:
    coverage = subcommands.add_parser(
        "coverage",
        help="show how much of a workload a build has measured",
        description="Compare traces with a library. The table shows which share of the calls its build measured "
        "(`is_tuned`), and which share of their time. The time of other calls is an estimate.",
    )
    _add_files(coverage, "traces and workload files")
    where = coverage.add_mutually_exclusive_group()
    where.add_argument(
        "--build",
        type=Path,
        metavar="PATH",
        help="folder of a library's build, such as build/aot_tune/my_kernels, or its library",
    )
    where.add_argument(
        "--module",
        default=BUNDLED_MODULE,
        help="Python module of an installed library, with both files beside it; default: %(default)s",
    )
    coverage.add_argument("--target", help="only this target of the library, such as cuda-sm_90a")
    coverage.add_argument(
        "--top", type=_positive, default=10, metavar="N", help="list N problems not measured; default: %(default)s"
    )
    coverage.add_argument("--json", action="store_true", help="print all problems as JSON, see docs/report.md")
    add_template_roots(coverage, _ROOTS)
    coverage.set_defaults(run=_coverage)


def _add_from_torch(subcommands: Any) -> None:
    torch = subcommands.add_parser(
        "from-torch",
        help="make a workload file from a torch.profiler trace, or from operator inputs",
        description="Make a workload file from the calls of ATen operators that torch recorded. The input is a Chrome "
        "trace of torch.profiler with record_shapes=True, or a file of operator inputs, as in torch's benchmarks and "
        "TritonBench. The weight of a problem is the number of its calls. The command lists the calls that no bundled "
        "operator computes.",
    )
    _add_files(torch, "traces, .json or .json.gz, and files of operator inputs, .json or .txt")
    _add_output(torch)
    torch.set_defaults(run=_from_torch)


def _add_from_tunableop(subcommands: Any) -> None:
    tunableop = subcommands.add_parser(
        "from-tunableop",
        help="make a workload file from CSV files of PyTorch's TunableOp",
        description="Make a workload file from the products in CSV files of PyTorch's TunableOp, tuned or untuned. "
        "Each product weighs 1, because the files do not say how often it was called.",
    )
    _add_files(tunableop, "such as tunableop_results0.csv or tunableop_untuned0.csv")
    _add_output(tunableop)
    tunableop.set_defaults(run=_from_tunableop)


def _add_from_model(subcommands: Any) -> None:
    model = subcommands.add_parser(
        "from-model",
        help="make a workload file from a decoder's config.json",
        description="Make a workload file from the config.json of a decoder, in the form of Hugging Face. For each "
        "number of tokens it has what a forward pass computes: the products (qkv, o, gate and up in one, down, "
        "lm_head), norms, silu_mul and attention. The weight of a problem is the number of its calls. The layers must "
        "be attention and a gated perceptron or experts, each behind an RMS norm, as in Llama, Mistral, Qwen and "
        "Mixtral.",
    )
    model.add_argument("config", type=Path, metavar="CONFIG", help="a config.json")
    model.add_argument(
        "--tokens",
        type=_positive_list,
        required=True,
        metavar="N,...",
        help="numbers of tokens of a forward pass, such as 1,16,512",
    )
    model.add_argument(
        "--tp", type=_positive, default=1, metavar="N", help="devices that share each layer (tensor parallelism)"
    )
    model.add_argument(
        "--context",
        type=_natural,
        default=0,
        metavar="N",
        help="tokens that attention sees before these, as when one token is made behind N others; default: none",
    )
    model.add_argument("--dtype", choices=("f32", "bf16", "f16"), default="", help="default: the config's torch_dtype")
    _add_output(model)
    model.set_defaults(run=_from_model)


def _add_files(parser: Any, what: str) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=what)


def _add_output(parser: Any) -> None:
    parser.add_argument("-o", "--output", type=Path, metavar="OUT", help="the file to write; default: standard output")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _natural(text: str) -> int:
    return 0 if text == "0" else _positive(text)


def _positive_list(text: str) -> list[int]:
    return [_positive(part.strip()) for part in text.split(",")]


def _operators(templates: Sequence[str] = ()) -> dict[str, Operator]:
    roots = template_paths(templates or ("bundled",))
    return {name: operator for name, (_, operator) in load_operators(roots).items()}


def _read(files: Sequence[Path], mistakes: Mistakes) -> list[CountedProblem]:
    """The lines of all files, in order. `mistakes` collects what is wrong with them."""
    lines: list[CountedProblem] = []
    for file in files:
        with mistakes.gather():
            lines += decode_workload(_bytes(file), str(file), mistakes)
    if not lines and not mistakes:
        raise SpecError(
            f"{', '.join(map(str, files))}: no problem is in these files",
            why="a trace is empty if the program called no operator of the library",
            fix="run the program with AOT_TUNE_TRACE again, or name other files",
        )
    return lines


def _known(files: Sequence[Path], operators: Mapping[str, Operator]) -> list[CountedProblem]:
    """The problems of all files, checked. All mistakes are reported together."""
    mistakes = Mistakes()
    lines = _read(files, mistakes)
    problems: list[CountedProblem] = []
    with mistakes.gather():
        problems = known_problems(lines, operators)
    mistakes.tell()
    return problems


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SpecError(f"{file} cannot be read", why=str(error.strerror or error), fix="check its name") from error


def _computing(problems: Sequence[CountedProblem], operators: dict[str, Operator]) -> list[CountedProblem]:
    """Problems with something to compute; a line counts the others. Raises SpecError when there are none."""
    kept = [entry for entry in problems if not is_empty(operators[entry.operator], entry.problem)]
    left = len(problems) - len(kept)
    if not kept:
        raise SpecError(
            f"{problems[0].place}: there is nothing to compute on this problem, nor on any other",
            why="calls without elements return at once, and are not tuned",
            fix="name a file with other calls",
        )
    if left:
        print(f"aot-tune: left out {left} line{'s' * (left > 1)} of calls without elements", file=sys.stderr)
    return kept


def _write(problems: Sequence[CountedProblem], output: Path | None) -> None:
    text = encode_workload(problems)
    if output is None:
        sys.stdout.write(text.decode())
        return
    output.write_bytes(text)
    weight = sum(entry.weight for entry in problems)
    print(f"{output}: {counted(len(problems), 'problem')}, {counted(weight)}", file=sys.stderr)


def _merge(given: argparse.Namespace) -> int:
    operators = _operators(given.templates)
    _write(add_up(_computing(_known(given.files, operators), operators)), given.output)
    return 0


def _show(given: argparse.Namespace) -> int:
    operators = _operators(given.templates)
    print(call_tables(add_up(_known(given.files, operators)), operators, given.top), end="")
    return 0


def _coverage(given: argparse.Namespace) -> int:
    from aot_tune.workloads.coverage import (
        Coverage,
        coverage_on,
        coverage_table,
        find_library,
        of_library,
        read_library,
    )

    mistakes = Mistakes()
    lines = _read(given.files, mistakes)
    mistakes.tell()
    library = read_library(find_library(given.build, given.module))
    if given.target is not None and given.target not in library.targets:
        raise OptionError(
            f"library {library.name!r} has no target {given.target!r}", fix=did_you_mean(given.target, library.targets)
        )
    operators = _operators(given.templates)
    problems, warnings = of_library(lines, library, operators)
    for warning in warnings:
        print(f"aot-tune: warning: {warning}", file=sys.stderr)
    called = add_up(_computing(problems, operators))
    targets = [given.target] if given.target else library.targets
    covered = {target: coverage_on(target, called, library, operators) for target in targets}
    if given.json:
        print(json_text(Coverage(library=library.name, build=library.build, place=library.place, targets=covered)))
        return 0
    print(f"library {library.name}, build {library.build[:12]} at {library.place}")
    for target, problems_there in covered.items():
        print(coverage_table(target, problems_there, given.top), end="")
    return 0


def _from_torch(given: argparse.Namespace) -> int:
    from aot_tune.workloads.from_torch import map_torch

    return _mapped(given, lambda file, calls: map_torch(_bytes(file), str(file), calls))


def _from_tunableop(given: argparse.Namespace) -> int:
    from aot_tune.workloads.from_tunableop import map_tunableop

    return _mapped(given, lambda file, calls: map_tunableop(_bytes(file).decode(errors="replace"), str(file), calls))


def _mapped(given: argparse.Namespace, read: Callable[[Path, MappedCalls], None]) -> int:
    """Write the calls of all files that were mapped, and list the others."""
    calls = MappedCalls(_operators())
    mistakes = Mistakes()
    for file in given.files:
        with mistakes.gather():
            read(file, calls)
    mistakes.tell()
    for line in calls.told():
        print(line, file=sys.stderr)
    if not calls.problems:
        raise SpecError(
            f"{', '.join(map(str, given.files))}: none of the calls is one of a bundled operator",
            fix="name files with calls of products, norms, softmax or attention in f32, bf16 or f16",
        )
    _write(add_up(calls.problems), given.output)
    return 0


def _from_model(given: argparse.Namespace) -> int:
    from aot_tune.workloads.from_model import decoder_problems, read_model

    sizes = read_model(_bytes(given.config), str(given.config), given.dtype)
    weighted = decoder_problems(sizes, dict.fromkeys(given.tokens), parallel=given.tp, context=given.context)
    lines = [
        CountedProblem(operator=operator, problem=problem, weight=float(calls), place=str(given.config))
        for operator, problem, calls in weighted
    ]
    _write(add_up(known_problems(lines, _operators())), given.output)
    return 0
