"""A linked library is what its manifest says, or verification names what is not."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import linked
import pytest
from places import ROOT

from aot_tune.link import check_against_manifest, generate
from aot_tune.link.check.against_manifest import check_module
from aot_tune.link.elf import SharedLibrary
from aot_tune.support.errors import ManifestError


@pytest.fixture
def copy(built: linked.Built, tmp_path: Path) -> Path:
    """A copy of everything, to damage."""
    shutil.copytree(built.library.parent, tmp_path / "copy")
    return tmp_path / "copy"


def check(folder: Path, **more: object) -> None:
    check_against_manifest(
        folder / "liblinked_ops.so",
        folder / "ops.abi3.so",
        folder / "manifest.json",
        folder / "variants.a",
        **more,  # type: ignore[arg-type]
    )


def edit_manifest(folder: Path, change: Callable[[dict[str, object]], None]) -> None:
    document = json.loads((folder / "manifest.json").read_text())
    change(document)
    (folder / "manifest.json").write_text(json.dumps(document))


def gemm(document: dict[str, object]) -> dict[str, list[dict[str, object]]]:
    return document["operators"][0]  # type: ignore[index, no-any-return]


def test_a_good_library(copy: Path) -> None:
    check(copy, forbidden=[str(copy.parent), str(ROOT)])


def test_a_stripped_library(copy: Path) -> None:
    for name in ("liblinked_ops.so", "ops.abi3.so"):
        subprocess.run(["strip", str(copy / name)], check=True)
    check(copy)


@pytest.mark.parametrize("stripped", [False, True])
@pytest.mark.parametrize("name", ["plain", "small_2", "packed_3"])
def test_other_code_than_was_measured(built: linked.Built, copy: Path, stripped: bool, name: str) -> None:
    library = copy / "liblinked_ops.so"
    dumped = subprocess.run(["nm", str(library)], check=True, capture_output=True, text=True).stdout
    line = next(line for line in dumped.splitlines() if line.endswith(f" aot_tune_{name}_launch"))
    address = int(line.split()[0], 16)
    if stripped:
        subprocess.run(["strip", str(library)], check=True)
    data = bytearray(library.read_bytes())
    data[address + 1] ^= 1  # text is mapped at its offset in the file
    library.write_bytes(data)
    with pytest.raises(ManifestError, match=rf"variant '{name}': .text of its object is not linked"):
        check(copy)


def test_constants_are_compared(tmp_path: Path) -> None:
    source = linked.GEMM + ("namespace { __attribute__((used)) const int table[40] = {11, 22, 33, 44, 55}; }\n")
    table = linked.variant(tmp_path, source, "table")
    data = Path(table.object_path).read_bytes()
    subprocess.run(["g++", "-shared", table.object_path, "-o", str(tmp_path / "all.so")], check=True)
    linked_bytes = bytearray((tmp_path / "all.so").read_bytes())
    assert SharedLibrary(bytes(linked_bytes)).missing_pieces(data) == []
    place = linked_bytes.index((33).to_bytes(4, "little") + (44).to_bytes(4, "little"))
    linked_bytes[place] = 34
    assert SharedLibrary(bytes(linked_bytes)).missing_pieces(data) == [".rodata"]


def test_equal_bytes_are_looked_for_as_what_they_are(tmp_path: Path) -> None:
    """As constants they are here, as code they are not; and where the linker filled some in, others are not those."""
    word = ".byte 0x0f, 0x1f, 0x44, 0x71, 0x8e, 0x23, 0x95, 0x6a"
    sources = {
        "held": f'.section .rodata, "a"\n{word}\n.long there - .\n.data\n.globl there\nthere: .long 7\n',
        "code": f'.section .text, "ax"\n{word}\n',
        "constants": f'.section .rodata, "a"\n{word}\n',
        "unfilled": f'.section .rodata, "a"\n{word}\n.long 0\n',
    }
    for name, text in sources.items():
        (tmp_path / f"{name}.s").write_text(f'{text}.section .note.GNU-stack, "", @progbits\n')
        subprocess.run(["gcc", "-c", f"{name}.s"], cwd=tmp_path, check=True)
    subprocess.run(["gcc", "-shared", "-s", "-Wl,-Bsymbolic", "-o", "all.so", "held.o"], cwd=tmp_path, check=True)
    image = SharedLibrary((tmp_path / "all.so").read_bytes())
    for order in (list(sources), [*reversed(sources)]):  # the second time it remembers
        found = {name: image.missing_pieces((tmp_path / f"{name}.o").read_bytes()) for name in order}
        assert found == {"held": [], "code": [".text"], "constants": [], "unfilled": [".rodata"]}


def test_another_object_in_the_archive(built: linked.Built, copy: Path) -> None:
    data = (copy / "variants.a").read_bytes()
    at = data.index(b"\x7fELF") + 0x40
    (copy / "variants.a").write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(ManifestError, match="its object is not the one that was measured"):
        check(copy)


def test_a_variant_without_its_object(copy: Path) -> None:
    edit_manifest(copy, lambda d: gemm(d)["variants"].append({**gemm(d)["variants"][1], "name": "x", "symbol": "x"}))
    with pytest.raises(ManifestError, match="variant 'x': its object is not in the archive"):
        check(copy)


def test_a_table_entry_without_its_kernel(copy: Path) -> None:
    edit_manifest(copy, lambda d: gemm(d)["tables"][0]["nodes"].append({"leaf": ["gone"]}))  # type: ignore[attr-defined]
    with pytest.raises(ManifestError, match="table 'cpu-x86-64-v2' names 'gone', which has no kernel"):
        check(copy)


def test_an_operator_without_its_generic_variant(copy: Path) -> None:
    edit_manifest(copy, lambda d: gemm(d)["variants"][0].update(generic=False))
    with pytest.raises(ManifestError, match="operator 'gemm' has no generic variant for cpu"):
        check(copy)


def test_another_manifest(copy: Path) -> None:
    edit_manifest(copy, lambda d: d.update(mode="tune"))
    with pytest.raises(ManifestError, match=r"liblinked_ops\.so does not hold this manifest"):
        check(copy)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}'])
def test_what_is_no_manifest(copy: Path, text: str) -> None:
    (copy / "manifest.json").write_text(text)
    with pytest.raises(ManifestError, match="the manifest cannot be read"):
        check(copy)


def test_another_schema(copy: Path) -> None:
    edit_manifest(copy, lambda d: d.update(schema=99))
    with pytest.raises(ManifestError, match="the manifest has schema 99, wanted 1"):
        check(copy)


def relink(folder: Path, *flags: str, source: str = "") -> None:
    """Put another shared object in place of the module."""
    (folder / "other.cpp").write_text(source or 'extern "C" void* PyInit_ops() { return nullptr; }\n')
    run = ["g++", "-shared", "-fPIC", "other.cpp", "-L.", "-Wl,--no-as-needed", "-llinked_ops", *flags]
    subprocess.run([*run, "-o", "ops.abi3.so"], cwd=folder, check=True)


def test_an_export_too_many(copy: Path) -> None:
    relink(copy, source='extern "C" void* PyInit_ops() { return nullptr; }\nint helper() { return 1; }\n')
    with pytest.raises(ManifestError, match=r"ops.abi3\.so exports '_Z6helperv', which is not declared"):
        check(copy)


def test_an_export_too_few(copy: Path) -> None:
    relink(copy, source="namespace { int x; }\n")
    with pytest.raises(ManifestError, match=r"ops.abi3\.so does not export 'PyInit_ops'"):
        check(copy)


@pytest.mark.parametrize(
    ("path", "good"),
    [
        ("$ORIGIN", True),
        ("$ORIGIN/lib", True),
        ("/opt/lib", False),
        ("$ORIGIN:/opt/lib", False),
        ("$ORIGINAL", False),
        ("lib", False),
    ],
)
def test_search_paths(copy: Path, path: str, good: bool) -> None:
    relink(copy, f"-Wl,-rpath,{path}")
    if good:
        check(copy)
    else:
        with pytest.raises(ManifestError, match=r"searches libraries in .* not below \$ORIGIN"):
            check(copy)


def test_absolute_source_paths(copy: Path) -> None:
    relink(copy, source='extern "C" const char* PyInit_ops() { return "/home/someone/project/kernel.cpp"; }\n')
    with pytest.raises(
        ManifestError, match=r"ops.abi3\.so holds the path '/home/someone/project/kernel.cpp'"
    ) as caught:
        check(copy)
    assert "such as --coverage" in caught.value.fix


@pytest.mark.parametrize("path", ["./project/of/kernel.cpp", "../some/kernel.h", "project/of/kernel.cpp"])
def test_relative_source_paths(copy: Path, path: str) -> None:
    relink(copy, source=f'extern "C" const char* PyInit_ops() {{ return "{path}"; }}\n')
    check(copy)


def test_forbidden_text(copy: Path) -> None:
    with pytest.raises(ManifestError, match="holds the text 'packed_3'"):
        check(copy, forbidden=["packed_3"])


def test_a_module_of_another_library(copy: Path) -> None:
    source = 'extern "C" void* PyInit_ops() { return nullptr; }\n'
    (copy / "other.cpp").write_text(source)
    subprocess.run(["g++", "-shared", "-fPIC", "other.cpp", "-o", "ops.abi3.so"], cwd=copy, check=True)
    with pytest.raises(ManifestError, match=r"ops.abi3\.so does not need liblinked_ops\.so"):
        check(copy)
    with pytest.raises(ManifestError, match=r"ops.abi3\.so is not .*: ops.abi3\.so does not need liblinked_ops\.so"):
        check_module(copy / "liblinked_ops.so", copy / "ops.abi3.so", copy / "manifest.json")


def test_a_good_module_by_itself(copy: Path) -> None:
    files = (copy / "liblinked_ops.so", copy / "ops.abi3.so", copy / "manifest.json")
    check_module(*files, forbidden=[str(copy.parent)])
    with pytest.raises(ManifestError, match="holds the text 'PyInit_ops'"):
        check_module(*files, forbidden=["PyInit_ops"])


def test_all_problems_are_named_at_once(copy: Path) -> None:
    edit_manifest(copy, lambda d: gemm(d)["variants"][0].update(generic=False))
    with pytest.raises(ManifestError) as caught:
        check(copy)
    assert "no generic variant" in caught.value.what
    assert "does not hold this manifest" in caught.value.why


def test_the_same_bytes_twice(built: linked.Built, tmp_path: Path) -> None:
    other = linked.link_library(built.spec, tmp_path / "a longer folder" / "somewhere else")
    for one, two in ((built.library, other.library), (built.module, other.module)):
        assert one.read_bytes() == two.read_bytes()
    for path in sorted(Path(built.made.dispatch).parent.rglob("*")):
        if path.is_file() and path.suffix != ".so":
            same = Path(other.made.dispatch).parent / path.relative_to(Path(built.made.dispatch).parent)
            assert same.read_bytes() == path.read_bytes(), path.name


def test_nothing_is_written_twice(built: linked.Built, tmp_path: Path) -> None:
    generate(built.spec, tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    generate(built.spec, tmp_path)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before
    generate(dataclasses.replace(built.spec, mode="replay"), tmp_path)
    changed = {p.name for p in tmp_path.rglob("*") if before.get(p) != p.stat().st_mtime_ns}
    assert changed == {"dispatch.cpp", "manifest.json"}


def test_glue_is_for_the_baseline(built: linked.Built, tmp_path: Path) -> None:
    generic = tuple(
        dataclasses.replace(t, variants=tuple(v for v in t.variants if v.generic), tables=())
        for t in built.spec.operators
    )
    made = linked.link_library(dataclasses.replace(built.spec, operators=generic), tmp_path)
    for path in (made.library, made.module):
        code = subprocess.run(["objdump", "-d", str(path)], check=True, capture_output=True, text=True).stdout
        assert "%xmm" in code or path == made.module
        assert "%ymm" not in code
        assert "%zmm" not in code
