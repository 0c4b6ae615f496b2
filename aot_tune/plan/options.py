"""The options of a build: one table that checks values, and prints help."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from aot_tune.plan.run_time_variables import RUN_TIME_VARIABLES
from aot_tune.support.errors import OptionError, did_you_mean

TOLERANT = "replay-or-generic"
"""The replay mode that tolerates missing records and records that no longer hold."""


def _parts(_name: str, value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(";") if part.strip())


def _names(name: str, value: str) -> tuple[str, ...]:
    """The items of a list. Semicolons separate them, as in CMake. A comma, as other tools take it, is an error."""
    if "," in value:
        raise OptionError(
            f"{name}={value!r} has a comma",
            why="semicolons separate the items of a list, as in CMake",
            fix=f"write {name}='{';'.join(_parts(name, value.replace(',', ';')))}', in quotes on a command line",
        )
    return _parts(name, value)


def _folder(name: str, value: str) -> str:
    if value and not os.path.isabs(value):  # noqa: PTH117 - a text is a path here, and nothing of the disk is asked
        raise OptionError(
            f"{name}={value!r} is not an absolute path",
            why="builds run in their own folders, which are often temporary",
            fix=f'write for example {name}="$PWD/kept"',
        )
    return value


def _headers(name: str, value: str) -> str:
    """Empty for none, auto, 1, or a folder."""
    if value not in ("auto", "0", "1") and not os.path.isabs(value):  # noqa: PTH117 - as above
        raise OptionError(
            f"{name}={value!r} is neither auto, 0, 1 nor an absolute path",
            fix=f"write {name}=1 for the headers of the build's jaxlib, or the folder that jax.ffi.include_dir() "
            f"returns",
        )
    return "" if value == "0" else value


def _number(fits: Callable[[float], bool], what: str, example: str) -> Callable[[str, str], float | None]:
    def read(name: str, value: str) -> float | None:
        try:
            number = float(value) if value else None
        except ValueError:
            number = math.nan
        if number is not None and not fits(number):
            raise OptionError(f"{name}={value!r} is not {what}", fix=f"write for example {name}={example}")
        return number

    return read


def _count(least: int = 1, most: int = 4096, example: int = 2) -> Callable[[str, str], int | None]:
    def read(name: str, value: str) -> int | None:
        if value and not (value.isdecimal() and least <= int(value) <= most):
            raise OptionError(
                f"{name}={value!r} is not a whole number from {least} to {most}",
                fix=f"write for example {name}={example}",
            )
        return int(value) if value else None

    return read


@dataclass(frozen=True)
class Option:
    """A CMake cache variable, with an environment variable as the fallback. `read` checks a text, given the name."""

    name: str
    default: str
    help: str
    choices: tuple[str, ...] = ()
    read: Callable[[str, str], Any] = lambda _name, value: value


def _option(*about: Any, **more: Any) -> Any:
    """A field with what its `Option` says beside the name."""
    return field(metadata={"option": lambda name: Option(name, *about, **more)})


@dataclass(frozen=True, kw_only=True)
class Options:
    """All options, with their checked values. Times are in seconds. CMake reads the names of the fields here."""

    mode: str = _option(
        "auto",
        "`auto` uses recorded measurements of this device and measures the rest. `tune` measures again, or continues "
        "a `tune` that did not end. `replay` uses the database only and fails on a miss. `replay-or-generic` "
        "replays the records that still hold. What they lack gets the generic variant, and a `NOTE` lists it "
        "([tuning-elsewhere.md](../tuning-elsewhere.md)). `generic` does not tune. "
        "`compile` compiles every candidate without a device, and continues as `generic` "
        "([compiling.md](../compiling.md))",
        ("auto", "tune", "replay", TOLERANT, "generic", "compile"),
    )
    targets: tuple[str, ...] = _option(
        "native",
        "targets to build for, separated by `;`, such as `cpu-x86-64-v3;cuda-sm_90a`. `native` is the best CPU target "
        "and GPU target of this machine. `cpu` or `cuda` is the best of that family only. If records "
        "are replayed, `native` is all targets of the database",
        read=lambda name, value: _names(name, value) or ("native",),
    )
    older_cpus: int = _option(
        "40",
        "extra seconds that a build may take to tune variants for older CPUs, `cpu-x86-64-v3`, if no record has them. "
        "It makes them if this machine's CPU has AVX-512 and `AOT_TUNE_TARGETS` is `native`. 0 makes none "
        "([targets.md](../targets.md))",
        read=lambda name, value: _count(least=0)(name, value) or 0,
    )
    budget: float | None = _option(
        "",
        "seconds for the whole build, link included. Empty is no limit: the effort decides",
        read=_number(lambda s: 0 < s < math.inf, "a positive number of seconds", "300"),
    )
    effort: str = _option(
        "default",
        "how many configs of each kernel are tried. `quick`: 4. `default`: its author's guesses, and at least 8. "
        "`thorough`: 100, which a search picks step by step. `exhaustive`: all. The first two try what the record of a "
        "like device names, and search where it does not hold ([searching.md](../searching.md))",
        ("quick", "default", "thorough", "exhaustive"),
    )
    survey: int | None = _option(
        "",
        "how many shapes of each kind of calls to survey: the best candidates are timed on them, so that calls outside "
        "the workload get the right variant too. 0 is none. Empty is 0 for the effort `quick`, else 800. For "
        "`default` it is 200 within 90 s, on a CPU what fits into 20 s ([surveys.md](../surveys.md))",
        read=_count(least=0),
    )
    max_regret: float | None = _option(
        "",
        "mean regret that a build may accept to keep fewer variants, such as 0.02. Empty is 0.01 over workload and "
        "survey, or 0.005 over the workload if there is no survey",
        read=_number(lambda r: 0 <= r <= 1, "a share from 0 to 1", "0.02, for 2 %"),
    )
    max_variants: int | None = _option(
        "",
        "how many variants of each kind of calls are kept at most, even if more would lower the regret. Generic "
        "variants, a vendor's own choice and its algorithms for single problems do not count. Empty is 12, and 60 of "
        "all kinds together, with a survey, else no limit",
        read=_count(),
    )
    max_bytes: int | None = _option(
        "",
        "bytes of code that the variants of each kind of calls may have. Empty is no limit",
        read=_count(most=2**40, example=2**20),
    )
    workspace_max: int | None = _option(
        "",
        "bytes of workspace that a candidate may ask for, and that cuBLAS gets as a baseline. Empty is 1 GiB, and 32 "
        "MiB for cuBLAS. Another number is another way to measure, so earlier times do not count. An operator's own "
        "limit is `workspace_max`",
        read=_count(least=0, most=2**50, example=2**28),
    )
    cache: str = _option(
        "rw",
        "how the object cache and the measurement store are used: `rw`, `ro` (read only), `fresh` (write, never "
        "read), `off`",
        ("rw", "ro", "fresh", "off"),
    )
    keep: str = _option(
        "",
        "folder for the source and the compiled text of the variants that are kept. For GPUs that is PTX, TTGIR, and "
        "SASS if the toolkit has `cuobjdump`. For CPUs it is assembly ([compiling.md](../compiling.md)). The log of "
        "the build is there too ([report.md](../report.md#when-it-did-what))",
        read=_folder,
    )
    cache_dir: str = _option(
        "",
        "folder of the object cache and the measurement store. Empty is `$XDG_CACHE_HOME/aot_tune`, else "
        "`~/.cache/aot_tune`",
    )
    cache_tiers: tuple[str, ...] = _option(
        "",
        "folders of other caches, such as a mounted volume, separated by `;`. What the cache lacks is looked up there, "
        "in this order. Nothing is written to them ([tuning-elsewhere.md](../tuning-elsewhere.md#caches-of-others))",
        read=_parts,
    )
    jobs: int | None = _option(
        "",
        "how many compilers run at once. Empty takes `CMAKE_BUILD_PARALLEL_LEVEL`, then `MAX_JOBS`, "
        "then the cores and memory of the machine",
        read=_count(),
    )
    threads: int | None = _option(
        "", "how many threads CPU candidates and baselines may use. Empty is all usable cores", read=_count()
    )
    executor: str = _option(
        "local",
        "`ray` compiles on the nodes of a Ray cluster that runs already, and measures on their GPUs; see "
        "[clusters.md](../clusters.md)",
        ("local", "ray"),
    )
    strict: bool = _option(
        "0",
        "1 makes a replay fail if an object is not bit-equal to the recorded one. For a GPU its device code counts. 1 "
        "also makes the mode `compile` fail if any candidate fails, and a build if [calls that nobody measured "
        "lose](../dispatch.md#rules) more than they may",
        ("0", "1"),
        read=lambda _, value: value == "1",
    )
    no_survivor: str = _option(
        "fail",
        "what to do if every candidate of an operator fails. `fail` fails the build. `generic` ships the operator's "
        "generic variant alone. `leave-out` does that too, and leaves out an operator whose generic variant fails. "
        "`stop` ends the build when the first candidate fails",
        ("fail", "generic", "leave-out", "stop"),
    )
    operators: tuple[str, ...] = _option(
        "",
        "operators to build, separated by `;`, such as `gemm;scaled_mm`. `*` is all that the library's templates have. "
        "Empty is what its `CMakeLists.txt` names, else all. Fewer are built in less time",
        read=lambda name, value: () if value == "*" else _names(name, value),
    )
    filter: str = _option(
        "*",
        "shell pattern of `operator/kernel` names to tune, such as `gemm/*`. An operator without such a kernel is not "
        "measured, and its generic variant serves",
    )
    exclude_backends: tuple[str, ...] = _option(
        "",
        "backends to leave out of the library, separated by `;`, such as `cublaslt`. Their kernels are neither tuned "
        "nor replayed. The build chooses among the others",
        read=lambda name, value: tuple(sorted(set(_names(name, value)))),
    )
    device: tuple[str, ...] = _option(
        "",
        "whose records decide for targets that this build does not measure. Name devices, such as `NVIDIA H200`, or "
        "folders of records, separated by `;`. `*` is any characters. Empty takes the records of a device that is here "
        "or is like it, else the first folder by name",
        read=_names,
    )
    workload: tuple[str, ...] = _option(
        "",
        "files with the problems worth tuning, separated by `;`. They are JSON lines with weights. `FILE` replaces the "
        "declared problems of the operators that it names. `+FILE` is added to them "
        "([workload-files.md](../workload-files.md))",
        read=_parts,  # a path may contain a comma
    )
    sanitize: str = _option(
        "off",
        "`winners` runs every variant that is kept under sanitizers, and fails on a report: on CPUs address, "
        "undefined-behaviour and thread sanitizers, on NVIDIA GPUs the tools of `compute-sanitizer`. Records have "
        "their verdicts ([sandbox.md](../sandbox.md#sanitizers))",
        ("off", "winners"),
    )
    debug: bool = _option(
        "0",
        "1 compiles C++ and CUDA C++ of the variants that are kept once more, without optimisation, with line "
        "information and with assertions, for debuggers. What is measured, chosen and recorded stays as it is "
        "([compiling.md](../compiling.md#debug))",
        ("0", "1"),
        read=lambda _, value: value == "1",
    )
    xla_ffi: str = _option(
        "auto",
        "whether the library exports handlers of XLA's FFI, for calls from JAX ([jax.md](../jax.md)). `auto`: if the "
        "build's Python has `jaxlib`, whose headers they need. `1` demands them, `0` leaves them out. A folder, as "
        "`jax.ffi.include_dir()` returns it, has other headers",
        read=_headers,
    )

    @property
    def replays(self) -> bool:
        """Whether records decide and nothing is measured."""
        return self.mode in ("replay", TOLERANT)


OPTIONS: tuple[Option, ...] = tuple(f.metadata["option"](f"AOT_TUNE_{f.name.upper()}") for f in fields(Options))


def effort_limit(effort: str, guesses: int) -> int | None:
    """How many configs of a kernel to try for a target, given its author's number of guesses; None is all."""
    limits = {"quick": 4, "default": max(8, guesses), "thorough": max(100, guesses), "exhaustive": None}
    return limits[effort]


_OTHERS = ("AOT_TUNE_IMPORT_PATH", "AOT_TUNE_TEMPLATE_ROOTS", "AOT_TUNE_TRUST_CACHE")
"""Variables that are neither options of a build nor read by a library."""


def misspelt(environment: Mapping[str, str]) -> list[str]:
    """A line for each variable in the environment whose name is almost an option's. Nothing else would report it."""
    names_known = [*(o.name for o in OPTIONS), *(v.name for v in RUN_TIME_VARIABLES), *_OTHERS]
    names = sorted(n for n in environment if n.startswith("AOT_TUNE_") and n not in names_known)
    near = {n: difflib.get_close_matches(n, names_known, n=1, cutoff=0.85) for n in names}
    return [
        f"{n} in the environment is not an option and has no effect; did you mean {m[0]}?" for n, m in near.items() if m
    ]


def resolve(given: Mapping[str, str], environment: Mapping[str, str] | None = None) -> Options:
    """Check what CMake passed; environment and defaults fill in. Raises OptionError with name, value, choices."""
    environment = os.environ if environment is None else environment
    names = [o.name for o in OPTIONS]
    for name in given:
        if name not in names:
            raise OptionError(f"unknown option {name}", fix=did_you_mean(name, names))
    values: dict[str, str] = {}
    for option in OPTIONS:
        value = (given.get(option.name) or environment.get(option.name) or option.default).strip()
        if option.choices and value not in option.choices:
            raise OptionError(f"{option.name}={value!r} is not allowed", fix=did_you_mean(value, option.choices))
        values[option.name] = value
    return Options(**{f.name: o.read(o.name, values[o.name]) for f, o in zip(fields(Options), OPTIONS, strict=True)})


def markdown_table() -> str:
    """The options as a table in Markdown, with links from docs/reference/."""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    rows += [f"| `{o.name}` | {f'`{o.default}`' if o.default else 'empty'} | {o.help} |" for o in OPTIONS]
    return "\n".join(rows)
