"""Which module may import which: data flows one way, between folders, between their rooms, and without a circle."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "aot_tune"

FOLDERS = (
    "support", "expr", "signatures", "torch", "jax", "spec", "render", "triton", "compile", "vendor", "bench",
    "database", "search", "select", "link", "report", "workloads", "plan", "pipeline", "cli",
)  # fmt: skip
"""Each imports itself and those before it. `runtime` is C++; `build.py`, the build backend, imports `plan` alone."""

ROOMS = {
    "bench.protocol": set(),
    "bench.devices": {"bench.protocol"},
    "bench.worker": {"bench.protocol", "bench.devices"},
    "bench.host": {"bench.protocol", "bench.devices"},
    "pipeline.records": set(),
    "pipeline.measuring": {"pipeline.records"},
    "pipeline.cluster": {"pipeline.measuring"},
    "pipeline.scheduling": {"pipeline.records", "pipeline.measuring"},
    "pipeline.shipping": {"pipeline.records", "pipeline.measuring", "pipeline.scheduling"},
}
"""The rooms of a folder, and which others of it each may import beside the modules of the folder itself."""


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(p): p for p in sorted(PACKAGE.rglob("*.py"))}


@cache
def imported(module: str) -> frozenset[str]:
    """The package's modules that a module imports anywhere: in functions and for types alone, too."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "aot_tune":
            parts = (f"{node.module}.{a.name}" for a in node.names)
            found |= {p if p in MODULES else str(node.module) for p in parts}
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.partition(".")[0] == "aot_tune"}
    return frozenset(found - {module})


def folder_of(module: str) -> str:
    return module.split(".")[1] if module.count(".") else ""


def room_of(module: str) -> str:
    """`folder.room` of a module in a room; empty for one of the folder itself."""
    parts = module.split(".")[1:]
    return next((".".join(parts[:n]) for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in ROOMS), "")


def test_every_folder_has_its_place() -> None:
    assert len(MODULES) > 100
    folders = {folder_of(m) for m in MODULES if MODULES[m].parent != PACKAGE}
    assert folders == set(FOLDERS)


def test_a_module_imports_its_own_folder_and_those_before_it() -> None:
    for module in (m for m in MODULES if folder_of(m) in FOLDERS):
        place = FOLDERS.index(folder_of(module))
        later = {m for m in imported(module) if folder_of(m) in FOLDERS[place + 1 :]}
        assert not later, f"{module} is before what it imports: {sorted(later)}"


def test_a_room_knows_those_that_it_may() -> None:
    assert {room_of(m) for m in MODULES} - {""} == set(ROOMS)
    for module in (m for m in MODULES if room_of(m)):
        room = room_of(module)
        same_folder = {r for m in imported(module) if (r := room_of(m)).partition(".")[0] == room.partition(".")[0]}
        assert same_folder - {room} <= ROOMS[room], f"{module} imports {sorted(same_folder - {room} - ROOMS[room])}"


def test_no_import_goes_in_a_circle() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " imports ".join((*path[path.index(module) :], module))
        if module not in done:
            for other in sorted(imported(module)):
                visit(other, (*path, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())


def test_specifications_touch_no_disk() -> None:
    """But for the modules that find operators, and sources of theirs: all else of `spec` is data."""
    for module, path in MODULES.items():
        if folder_of(module) == "spec" and not module.endswith((".load_operators", ".load_sources")):
            assert not re.search(r"\b(Path\(|open\(|read_text|read_bytes|os\.)", path.read_text()), module


def test_the_core_names_no_backend() -> None:
    """Toolchains are found by what they offer, and asked by the name of their backend."""
    backends = {m for m, p in MODULES.items() if folder_of(m) == "compile" and "Toolchain):\n" in p.read_text()}
    assert len(backends) > 2
    for module in MODULES.keys() - backends:  # the compilers of two backends may share a host compiler
        assert not imported(module) & backends, module


def test_a_name_stands_once() -> None:
    """A module's name says what is in it wherever it is read."""
    places: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        if path.stem not in ("__init__", "__main__"):
            places.setdefault(path.stem, []).append(module)
    assert not {n: found for n, found in places.items() if len(found) > 1}


def test_a_class_stands_once() -> None:
    """Nor do two classes have one name."""
    places: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    assert not {n: found for n, found in places.items() if len(found) > 1}
