"""Builds for the tests on a GPU: the bundled operators as a small library, and single kernels for the bench."""

import hashlib
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compiled import linked_variant
from environments import ROOT, environment, run

from aot_tune.bench.devices.family import family
from aot_tune.bench.host.bench import Bench
from aot_tune.bench.protocol.measurement_records import Measurement, Policy, Prepared
from aot_tune.compile import Variant, native_targets, toolchain_for
from aot_tune.render import Renderer, candidate_for
from aot_tune.spec import problem
from aot_tune.spec.load_operators import load_operator

TEMPLATES = Path(__file__).resolve().parent / "templates"
BUDGET = os.environ.get("AOT_TUNE_GPU_TEST_BUDGET", "180")
"""Seconds for tuning the library of the tests."""
# AOT_TUNE_GPU_TEST_CACHE: a cache folder to use, such as that of builds before; else a new one.
# AOT_TUNE_GPU_TEST_DATABASE: a record of this device for the bundled operators, which are tuned for the tests else.
AT_ONCE = 4
"""Processes that use the GPU side by side where nothing is timed: each imports torch for seconds."""

_LISTS = """
cmake_minimum_required(VERSION 3.25)
project(gpu_tests LANGUAGES CXX)
include("{cmake}/aot_tune_add_library.cmake")
aot_tune_add_library(gpu_tests TEMPLATES "{templates}" MODULE ops{database})
"""

# For each dtype and math mode the smallest problem and the middle one, so that the set is tuned within minutes; in TF32
# the largest too, for what is worth it only there.
_CUT = """
import dataclasses


def _few(problems):
    found = {}
    for one in sorted(problems, key=lambda p: operator.flops.evaluate(operator.facts(p))):
        found.setdefault((*one.dtypes.values(), one.attributes.get("math")), []).append(one)
    return tuple(
        m[i]
        for (*_, math), m in found.items()
        for i in dict.fromkeys((0, len(m) // 2, *((len(m) - 1,) if math == "tf32" else ())))
    )


operator = dataclasses.replace(
    operator, workload={family: _few(operator.workload_for(family)) for family in ("cpu", "cuda")}
)
"""


@dataclass(frozen=True)
class Library:
    """A built library: its folder, the templates it was made of, and what the build printed."""

    folder: Path
    templates: Path
    log: str
    import_path: str

    @property
    def module(self) -> Path:
        (found,) = self.folder.rglob("ops*.so")
        return found

    @property
    def manifest(self) -> Any:
        (found,) = self.folder.rglob("manifest.json")
        return json.loads(found.read_bytes())

    def variants(self) -> dict[str, list[dict[str, Any]]]:
        return {
            o["name"]: [v for v in o["variants"] if v["target"].startswith("cuda")] for o in self.manifest["operators"]
        }

    def run(self, scenario: str, *arguments: object, status: int | None = 0, timeout: float = 300, **env: str) -> str:
        script = Path(__file__).with_name("scenarios.py")
        argv = [sys.executable, "-B", script, scenario, self.module, self.templates, *arguments]
        given = environment(PYTHONPATH=self.import_path, **env)
        return run(argv, env=given, status=status, timeout=timeout)


def build_project(folder: Path, templates: Path, import_path: str, database: str = "", **env: str) -> Library:
    """Configure and build with CMake, for the GPU alone, with a cache of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    given_database = f' DATABASE "{database}"' if database else ""
    lists = _LISTS.format(cmake=ROOT / "cmake", templates=templates, database=given_database)
    (folder / "CMakeLists.txt").write_text(lists)
    settings = {
        "AOT_TUNE_CACHE_DIR": os.environ.get("AOT_TUNE_GPU_TEST_CACHE", str(folder / "cache")),
        "AOT_TUNE_TARGETS": "cuda",
        "AOT_TUNE_EFFORT": "quick",
        "PYTHONPATH": import_path,
        **env,
    }
    given = environment(**settings)
    build = folder / "build"
    argv = ["cmake", "-G", "Ninja", "-S", folder, "-B", build, f"-DPython_EXECUTABLE={sys.executable}"]
    log = run(argv, env=given)
    log += run(["cmake", "--build", build], env=given, timeout=900)
    (report,) = build.glob("aot_tune/*/report.json")
    log += run([sys.executable, "-m", "aot_tune", "report", "--build", report.parent], env=given)
    (folder / "build.txt").write_text(log)
    return Library(build, templates, log, import_path)


def build_bundled(folder: Path, import_path: str) -> Library:
    """The project's operators, each with a few problems."""
    templates = folder / "templates"
    shutil.copytree(ROOT / "templates", templates, ignore=shutil.ignore_patterns("__pycache__"))
    for path in templates.glob("*/operator.py"):
        path.write_text(path.read_text() + _CUT)
    database = os.environ.get("AOT_TUNE_GPU_TEST_DATABASE", "")
    handlers = "1" if importlib.util.find_spec("jaxlib") is not None else "0"  # for test_jax.py
    return build_project(folder, templates, import_path, database, AOT_TUNE_BUDGET=BUDGET, AOT_TUNE_XLA_FFI=handlers)


def twice_templates(folder: Path, faults: tuple[str, ...]) -> Path:
    """A copy of the tests' templates whose bad kernel has only these faults."""
    templates = folder / "templates"
    shutil.copytree(TEMPLATES, templates, ignore=shutil.ignore_patterns("__pycache__"))
    path = templates / "twice" / "operator.py"
    text = path.read_text()
    begin, end = text.index("FAULTS = ("), text.index("\n)\n") + 3
    path.write_text(f"{text[:begin]}FAULTS = {faults!r}\n{text[end:]}")
    return templates


@dataclass(frozen=True)
class Compiled:
    """A candidate for the bench."""

    candidate: Any
    path: Path
    symbol: str
    digest: str
    requires: tuple[Any, ...]


def compile_twice(folder: Path, fault: str) -> Compiled:
    """Render, compile and link one config of the tests' kernel: `none` is the good one."""
    kernel = "good" if fault == "none" else "bad"
    return _compiled(folder / fault, TEMPLATES / "twice", kernel, {"THREADS": 128, "FAULT": fault}, {"T": "f32"})


def compile_first(folder: Path, templates: Path, kernel: str, dtypes: dict[str, str], **fixed: Any) -> Compiled:
    """The first config of a kernel that has these values."""
    parameters = {p.name: p.values for p in load_operator(templates).kernel(kernel).parameters}
    return _compiled(folder, templates, kernel, {n: v[0] for n, v in parameters.items()} | fixed, dtypes)


def _compiled(folder: Path, templates: Path, name: str, config: dict[str, Any], dtypes: dict[str, str]) -> Compiled:
    operator = load_operator(templates)
    kernel = operator.kernel(name)
    target = [t for t in native_targets() if t.family == "cuda"][-1]
    candidate = candidate_for(operator, kernel, config, target, dtypes=dtypes)
    rendered = Renderer([templates.parent]).render(operator, candidate, target)
    chain, out = toolchain_for("nvcc"), folder / "candidate.o"
    out.parent.mkdir(parents=True)
    outcome = chain.compile(rendered.source, target, out, 120.0)
    assert outcome.status == "ok", outcome.log
    shared = out.with_suffix(".so")
    chain.link_shared([out], shared)
    digest = hashlib.sha256(out.read_bytes()).hexdigest()
    return Compiled(candidate, shared, rendered.symbol, digest, kernel.requires)


class Bed:
    """A bench on the first GPU and the tests' operator."""

    def __init__(self, scratch: Path, objects: Callable[[str], Compiled], deadlines: Mapping[str, float]) -> None:
        self.objects, self.lines = objects, list[str]()
        self.folder = TEMPLATES / "twice"
        self.operator = load_operator(self.folder)
        policy = family("cuda").policy(Policy())
        limits = {f: getattr(policy.deadlines, f) for f in policy.deadlines.__struct_fields__} | dict(deadlines)
        fields = {f: getattr(policy, f) for f in policy.__struct_fields__}
        self.policy = Policy(**{**fields, "deadlines": type(policy.deadlines)(**limits)})
        self.device = family("cuda").devices(1)[0]
        self.bench = Bench(self.device, self.policy, scratch=scratch, threads=1, log=self.lines.append)
        self.bench.__enter__()

    def close(self) -> None:
        self.bench.__exit__(None, None, None)

    def prepare(self, rows: int = 64, width: int = 1024) -> Prepared:
        return self.bench.prepare(self.operator, problem(R=rows, D=width))

    def screen(self, fault: str, prepared: Prepared | None = None) -> Measurement:
        return self.bench.screen(prepared or self.prepare(), self.entry(fault))

    def entry(self, fault: str) -> Variant:
        return self.variant(self.objects(fault))

    def variant(self, made: Compiled) -> Variant:
        return linked_variant(made.candidate, made.path, made.symbol, made.digest, made.requires)
