"""A linked library is what its manifest says, or verification names what is not."""

import ctypes
import dataclasses
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import linked
import pytest
from places import ROOT

from aot_tune.link import check_against_manifest, generate
from aot_tune.link.elf import SharedLibrary, own_folders_first
from aot_tune.link.manifest import check_module
from aot_tune.support.errors import ManifestError


@pytest.fixture
def copy(built: linked.Built, tmp_path: Path) -> Path:
    shutil.copytree(built.library.parent, tmp_path / "copy", ignore=shutil.ignore_patterns("library", "module"))
    return tmp_path / "copy"


def check(folder: Path, **more: object) -> None:
    check_against_manifest(
        folder / "liblinked_ops.so",
        folder / "ops.abi3.so",
        folder / "manifest.json",
        folder / "variants.a",
        **more,  # type: ignore[arg-type]
    )


def test_a_good_library(copy: Path) -> None:
    """Also when it is stripped; and the module by itself."""
    check(copy, forbidden=[str(copy.parent), str(ROOT)])
    files = (copy / "liblinked_ops.so", copy / "ops.abi3.so", copy / "manifest.json")
    check_module(*files, forbidden=[str(copy.parent)])
    with pytest.raises(ManifestError, match="holds the path 'PyInit_ops'"):
        check_module(*files, forbidden=["PyInit_ops"])
    with pytest.raises(ManifestError, match="holds the path 'aot_tune_packed_3'"):
        check(copy, forbidden=["aot_tune_packed_3"])
    with pytest.raises(ManifestError, match="holds the path '\"schema\": 1'"):
        check(copy, forbidden=['"schema": 1'])
    check(copy, forbidden=['"schema": 1'], others=True)  # it may be of a library that the author links
    with pytest.raises(ManifestError, match=r"holds the path 'aot_tune_packed_3\.o'"):
        check(copy, forbidden=["aot_tune_packed_3.o"], others=True)
    for path in files[:2]:
        subprocess.run(["strip", str(path)], check=True)
    check(copy)


def test_other_code_than_was_measured(copy: Path) -> None:
    library = copy / "liblinked_ops.so"
    dumped = subprocess.run(["nm", str(library)], check=True, capture_output=True, text=True).stdout
    places = {line.split()[2]: int(line.split()[0], 16) for line in dumped.splitlines() if len(line.split()) == 3}
    for stripped in (False, True):
        if stripped:
            subprocess.run(["strip", str(library)], check=True)
        whole = library.read_bytes()
        for name in ("plain", "small_2", "packed_3"):
            data = bytearray(whole)
            data[places[f"aot_tune_{name}_launch"] + 1] ^= 1  # text is mapped at its offset in the file
            library.write_bytes(data)
            with pytest.raises(ManifestError, match=rf"variant '{name}': .text of its object is not linked"):
                check(copy)
        library.write_bytes(whole)


def test_constants_are_compared(tmp_path: Path) -> None:
    source = linked.GEMM + ("namespace { __attribute__((used)) const int table[40] = {11, 22, 33, 44, 55}; }\n")
    table = linked.variant(tmp_path, source, "table")
    data = Path(table.made.path).read_bytes()
    subprocess.run(["g++", "-shared", table.made.path, "-o", str(tmp_path / "all.so")], check=True)
    linked_bytes = bytearray((tmp_path / "all.so").read_bytes())
    assert SharedLibrary(bytes(linked_bytes)).missing_pieces(data) == []
    place = linked_bytes.index((33).to_bytes(4, "little") + (44).to_bytes(4, "little"))
    linked_bytes[place] = 34
    assert SharedLibrary(bytes(linked_bytes)).missing_pieces(data) == [".rodata"]


def test_another_object_in_the_archive(built: linked.Built, copy: Path) -> None:
    data = (copy / "variants.a").read_bytes()
    at = data.index(b"\x7fELF") + 0x40
    (copy / "variants.a").write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(ManifestError, match="its object is not the one that was measured"):
        check(copy)


def lonely(document: dict[str, Any]) -> None:
    variants = document["operators"][0]["variants"]
    variants.append({**variants[1], "name": "x", "symbol": "x"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lonely, "variant 'x': its object is not in the archive"),
        (
            lambda d: d["operators"][0]["tables"][0]["variants"].append("gone"),
            "table 'cpu-x86-64-v2' names 'gone', which has no kernel",
        ),
        (
            lambda d: d["operators"][0]["variants"][0].update(generic=False),
            r"(?s)operator 'gemm' has no generic variant for cpu.*does not hold this manifest",  # all is named
        ),
        (lambda d: d.update(mode="tune"), r"liblinked_ops\.so does not hold this manifest"),
        (lambda d: d.update(schema=99), "the manifest has schema 99, wanted 1"),
    ],
)
def test_a_manifest_of_something_else(copy: Path, change: Callable[[Any], object], message: str) -> None:
    document = json.loads((copy / "manifest.json").read_text())
    change(document)
    (copy / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(ManifestError, match=message):
        check(copy)


INIT = 'extern "C" void* PyInit_ops() { return nullptr; }\n'
SAYS = 'extern "C" const char* PyInit_ops() { return "%s"; }\n'


@pytest.mark.parametrize(
    ("source", "flags", "message"),
    [
        (INIT + "int helper() { return 1; }\n", [], r"ops.abi3\.so exports '_Z6helperv', which is not declared"),
        ("namespace { int x; }\n", [], r"ops.abi3\.so does not export 'PyInit_ops'"),
        (
            SAYS % "/home/someone/project/kernel.cpp",
            [],
            r"(?s)ops.abi3\.so holds the path '/home/someone/project/kernel.cpp'.*--coverage and",
        ),
        *((SAYS % path, [], "") for path in ("./of/kernel.cpp", "../some/kernel.h", "/usr/include/c++/12/vector.h")),
        (INIT, ["-Wl,--as-needed"], r"ops.abi3\.so does not need liblinked_ops\.so"),
    ],
)
def test_another_module(copy: Path, source: str, flags: list[str], message: str) -> None:
    (copy / "other.cpp").write_text(source)
    run = ["g++", "-shared", "-fPIC", "other.cpp", "-L.", "-Wl,--no-as-needed", *flags, "-llinked_ops"]
    subprocess.run([*run, "-o", "ops.abi3.so"], cwd=copy, check=True)
    if not message:
        check(copy)
        return
    with pytest.raises(ManifestError, match=message):
        check(copy)
    with pytest.raises(ManifestError, match=message):
        check_module(copy / "liblinked_ops.so", copy / "ops.abi3.so", copy / "manifest.json")


def test_run_paths_of_the_environment_come_after_the_librarys_own_folders(copy: Path) -> None:
    """FAULTS 86. They stay: a compiler's own libraries may be nowhere else."""
    given = ["/opt/x", "", "lib", "$ORIGINAL", f"{copy}/lib", f"{copy}-beside", "$ORIGIN/lib", "/opt/x", "$ORIGIN"]
    for tags, name in (("--enable-new-dtags", "DT_RUNPATH"), ("--disable-new-dtags", "DT_RPATH")):
        run = ["g++", "-shared", f"-Wl,{tags},-rpath={':'.join(given)}", "-xc++", "/dev/null", "-o", "tiny.so"]
        subprocess.run(run, cwd=copy, check=True)
        (copy / "tiny.so").write_bytes(own_folders_first((copy / "tiny.so").read_bytes(), [str(copy)]))
        wanted = ["$ORIGIN/lib", "$ORIGIN", "/opt/x", f"{copy}-beside"]
        assert SharedLibrary((copy / "tiny.so").read_bytes()).dynamic(name) == [":".join(wanted)]
        assert f"{copy}/lib".encode() not in (copy / "tiny.so").read_bytes()
        ctypes.CDLL(str(copy / "tiny.so"))


def test_the_same_bytes_twice_and_nothing_is_written_twice(built: linked.Built, tmp_path: Path) -> None:
    other, made = tmp_path / "a longer folder" / "somewhere else", Path(built.made.dispatch).parent
    generate(built.spec, other)
    before = {p: p.stat().st_mtime_ns for p in other.rglob("*")}
    assert sum(p.is_file() for p in before) > 5
    for path in before:
        assert path.is_dir() or path.read_bytes() == (made / path.relative_to(other)).read_bytes(), path.name
    generate(built.spec, other)
    assert {p: p.stat().st_mtime_ns for p in other.rglob("*")} == before
    generate(dataclasses.replace(built.spec, mode="replay"), other)
    changed = {p.name for p in other.rglob("*") if before.get(p) != p.stat().st_mtime_ns}
    assert changed == {"dispatch.cpp", "manifest.json"}
