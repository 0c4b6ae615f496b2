"""The manifest of a library: sorted JSON without paths, host names or times. Linked files are checked against it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from aot_tune.compile import Variant
from aot_tune.compile.object_files import device_digest
from aot_tune.link.elf import Member, SharedLibrary, own_folders_first, read_archive
from aot_tune.link.library_records import FAMILIES, SHARED_FUNCTIONS, LibrarySpec, OperatorTable, TargetTable, family_of
from aot_tune.link.signature import handler_names
from aot_tune.support.errors import BuildError, ManifestError
from aot_tune.support.run_program import run
from aot_tune.support.storage import scratch_folder

SCHEMA = 1
"""The version of the manifest's form. It changes when a field changes its meaning."""
_SOURCE_PATH = re.compile(
    rb"(?<![A-Za-z0-9_.+-])/[A-Za-z0-9_.+-]+(?:/[A-Za-z0-9_.+ -]+)+\.(?:cpp|cc|c|h|hpp|cu|cuh|py|o|a|j2)\b"
)
"""Only absolute paths. Debug information of CMake's Debug builds has relative ones."""
_SYSTEM_PATH = re.compile(rb"/usr/(?:local/)?(?:include|lib\w*)/|.*/include/c\+\+/")
"""Headers of compilers, which name themselves with -D_GLIBCXX_ASSERTIONS. They say nothing of who builds."""
_PATH = "holds the path"
_NOT_FOUND = "cannot open shared object file"
_IMPORT_SECONDS = 60.0
_CHANGED = "importing it, or a library that it needs, changes how a process computes with floats"
_IMPORT = """
import sys
least, small, tiny = map(float, ("5e-324", "2.3e-308", "1e-20"))
sums = lambda: (least * 1.0, small / 4, 1 + tiny, 1 - tiny, tiny - 1)
before = sums()
sys.path.insert(0, sys.argv[1])
import {name}
sys.exit(0 if sums() == before else "{changed}")
"""
_LATE = (*(name for facts in FAMILIES.values() for name in facts.late), "libc10", "libtorch")
"""Libraries that are linked statically, or found at a call."""
_FUNCTIONS = ("", "_workspace", "_explain", "_is_tuned", "_infer")


def render_manifest(spec: LibrarySpec, sources: dict[str, str]) -> str:
    """The manifest's text; equal libraries have equal ones. `sources` are generated files without it, by name."""
    xla = sorted(n for t in spec.operators for n in handler_names(spec, t.operator.name).values() if spec.xla_ffi)
    document = {
        "schema": SCHEMA,
        "library": spec.name,
        "prefix": spec.prefix,
        "header": spec.header,
        "module": spec.face,
        "mode": spec.mode,
        "devices": [dict(d) for d in spec.devices],
        "policy": dict(spec.policy),
        "tools": dict(spec.tools),
        "sources": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sources.items()},
        "operators": [_operator(t) for t in spec.operators],
        **({"xla_ffi": xla} if xla else {}),
    }
    text = msgspec.json.encode(document, order="deterministic")
    return msgspec.json.format(text, indent=1).decode() + "\n"


def _operator(table: OperatorTable) -> dict[str, object]:
    return {
        "name": table.operator.name,
        "variants": [_variant(v, table) for v in table.variants],
        "tables": [_table(t, table) for t in table.tables],
    }


def _variant(v: Variant, table: OperatorTable) -> dict[str, object]:
    candidate, compiled = v.candidate, v.made
    device = {"device": compiled.device} if compiled.device else {}
    details = {"resources": v.resources, "roofline": dict(table.rooflines.get(v.name, {}))}
    return {
        "name": v.name,
        "symbol": v.symbol,
        "kernel": candidate.kernel,
        "target": candidate.target,
        "level": v.target.level,
        "last": v.target.last,
        "dtypes": dict(candidate.dtypes),
        "config": dict(candidate.config),
        "requires": [r.key() for r in v.guards],
        "object": compiled.digest,
        **device,
        "generic": candidate.generic,
        "rebuilt": v.rebuilt,
        **{name: value for name, value in details.items() if value},
    }


def _table(target: TargetTable, table: OperatorTable) -> dict[str, object]:
    return {
        "target": target.target,
        "level": target.level,
        "last": target.last,
        "rank": target.rank,
        "variants": [table.variants[i].name for i in target.used],
        "tuned": sorted(p.id for p in target.tuned),
    }


class ManifestVariant(msgspec.Struct, frozen=True):
    """A variant in a manifest."""

    name: str
    symbol: str
    target: str
    level: int
    object: str
    generic: bool
    rebuilt: bool
    device: str = ""
    last: int = 0
    dtypes: dict[str, str] = {}


class _Table(msgspec.Struct, frozen=True):
    target: str
    level: int
    variants: tuple[str, ...] = ()
    last: int = 0
    tuned: tuple[str, ...] = ()


class _Operator(msgspec.Struct, frozen=True):
    name: str
    variants: tuple[ManifestVariant, ...]
    tables: tuple[_Table, ...]


class Document(msgspec.Struct, frozen=True):
    """The fields of a manifest that can be checked against the files."""

    schema: int
    library: str
    prefix: str
    module: str
    operators: tuple[_Operator, ...]
    xla_ffi: tuple[str, ...] = ()


def read_manifest(data: bytes, place: str = "the manifest") -> Document:
    """Decode a manifest that lies at `place`. Raises ManifestError when it is none of this schema."""
    try:
        document = msgspec.json.decode(data, type=Document)
    except ValueError as error:
        raise ManifestError(f"{place} cannot be read: {error}", fix="build the library again") from error
    if document.schema != SCHEMA:
        raise ManifestError(f"{place} has schema {document.schema}, wanted {SCHEMA}", fix="build the library again")
    return document


def check_against_manifest(
    library: Path,
    module: Path | None,
    manifest: Path,
    archive: Path,
    *,
    forbidden: Sequence[str] = (),
    others: bool = False,
) -> Document:
    """Check a linked library, and its Python module if there is one, against the manifest.

    Every variant's object must be in the archive under its digest. Its code and constants must be in the library, equal
    except for what the linker fills in. The library must hold the manifest's text, and must export its functions and
    nothing else. Neither file may need a library of CUDA or torch. Neither may name an absolute source path, or a text
    of `forbidden` (build folders). With `others`, an author's own libraries are linked, whose paths are not ours to
    judge. Then variants must have none. Both files must search libraries beside them first, and are changed so that
    they do.

    Raises:
        ManifestError: listing everything that does not fit.
    """
    text = manifest.read_bytes()
    document = read_manifest(text)
    variants = archive.read_bytes()
    members = {m.name: m for m in read_archive(variants)}
    image = _settled(library, forbidden)
    problems = _check_tables(document)
    problems += _check_variants(document, members, image)
    if text not in image.data:
        problems.append(f"{library.name} does not hold this manifest")
    exports = {f"{document.prefix}_{f}" for f in SHARED_FUNCTIONS}
    exports |= {f"{document.prefix}_{op.name}{f}" for op in document.operators for f in _FUNCTIONS}
    exports |= set(document.xla_ffi)
    problems += _check_file(library.name, image, exports)
    problems += _check_paths(library.name, variants if others else image.data, forbidden)
    if module is not None:
        problems += _check_module(_loaded_as(library, image), module, document, forbidden)
    _refuse(library, problems)
    return document


def check_flags(tiny: Path, forbidden: Sequence[str]) -> None:
    """Check a library of one function, `tiny`, linked with a project's flags. Raises BuildError."""
    image = _settled(tiny, forbidden)
    if image.lacks_frames():
        raise BuildError(
            "with the project's flags, no exception is caught in a library: it has no table of frames",
            why="linkers leave that table out with -static, which is for programs; an exception would end the process",
            fix="remove -static from CXX, CXXFLAGS, LDFLAGS, and what CMakeLists.txt adds to them",
        )
    problems = _check_file("a library", image, {"tiny"}) + _check_paths("a library", image.data, forbidden)
    if not any(path.startswith("$ORIGIN") for path in image.dynamic("DT_RPATH", "DT_RUNPATH")):
        problems.append("the linker takes no -rpath, so a module would not find its library")
    if problems:
        raise BuildError(
            f"with the project's flags, {problems[0]}",
            why="; ".join(problems[1:]),
            fix="look for the cause in CXX, CXXFLAGS, LDFLAGS, and what CMakeLists.txt adds to them"
            + _of_paths(problems),
        )


def check_import(library: Path, module: Path, manifest: Path) -> str:
    """Import a Python module from where a wheel has it: the library is in the folder `lib` beside it.

    Returns what cannot be found of other libraries that an author links, which a wheel does not hold.

    Raises:
        ManifestError: when the import fails otherwise.
    """
    face, name = SharedLibrary(module.read_bytes()), read_manifest(manifest.read_bytes()).module
    if face.machine != SharedLibrary(Path(sys.executable).read_bytes()).machine:
        return ""
    loaded = _loaded_as(library, SharedLibrary(library.read_bytes()))
    with scratch_folder() as folder:
        (Path(folder) / "lib").mkdir()
        shutil.copy(module, folder)
        shutil.copy(library, Path(folder) / "lib" / loaded)
        argv = [sys.executable, "-I", "-B", "-c", _IMPORT.format(name=name, changed=_CHANGED), folder]
        done = run(argv, folder=Path(folder), environ=os.environ, timeout=_IMPORT_SECONDS)
    said = (done.output.strip() or "no message").splitlines()[-1]
    if done.code == 0 or (_NOT_FOUND in said and loaded not in said):
        return said * (done.code != 0)
    if said == _CHANGED:
        raise ManifestError(
            f"{module.name}: {said}",
            why="results of the whole process would change",
            fix="compile what you link without -ffast-math",
        )
    raise ManifestError(
        f"{module.name} cannot be imported as {name!r} from a wheel: {said}",
        fix="leave the target's file name and run path as aot_tune_add_library sets them",
    )


def _settled(library: Path, forbidden: Sequence[str]) -> SharedLibrary:
    """A library whose run path is in order, also in its file."""
    data = library.read_bytes()
    settled = own_folders_first(data, forbidden)
    if settled != data:
        library.write_bytes(settled)
    return SharedLibrary(settled)


def _of_paths(problems: Sequence[str]) -> str:
    return "; --coverage and -fprofile-generate keep paths" * any(_PATH in p for p in problems)


def check_module(library: Path, module: Path, manifest: Path, *, forbidden: Sequence[str] = ()) -> None:
    """Check the Python module of a library that was checked already. Raises ManifestError with all that is wrong."""
    name = _loaded_as(library, SharedLibrary(library.read_bytes()))
    _refuse(module, _check_module(name, module, read_manifest(manifest.read_bytes()), forbidden))


def _loaded_as(library: Path, image: SharedLibrary) -> str:
    """The name by which programs need a library: its SONAME, which may end in a version."""
    return next(iter(image.dynamic("DT_SONAME")), library.name)


def _refuse(file: Path, problems: Sequence[str]) -> None:
    if problems:
        raise ManifestError(
            f"{file.name} is not what its manifest says: {problems[0]}",
            why="; ".join(problems[1:]),
            fix="build again from an empty build folder" + _of_paths(problems),
        )


def _check_module(library: str, module: Path, document: Document, forbidden: Sequence[str]) -> list[str]:
    face = _settled(module, forbidden)
    problems = _check_file(module.name, face, {f"PyInit_{document.module}"})
    problems += _check_paths(module.name, face.data, forbidden)
    if library not in face.dynamic("DT_NEEDED"):
        problems.append(f"{module.name} does not need {library}")
    return problems


def _check_tables(document: Document) -> list[str]:
    problems = []
    for op in document.operators:
        variants = {v.name: v for v in op.variants}
        bounded = {family_of(v.target) for v in op.variants if v.generic and v.last}
        served = {_serves(v, bounded) for v in op.variants if v.generic}
        wanted = {_serves(v, bounded) for v in op.variants} or {"cpu"}
        problems += [f"operator {op.name!r} has no generic variant for {s}" for s in sorted(wanted - served)]
        for table in op.tables:
            for name in table.variants:
                if name not in variants:
                    problems.append(f"operator {op.name!r}: table {table.target!r} names {name!r}, which has no kernel")
                elif variants[name].level > table.level or 0 < variants[name].last < (table.last or 1 << 30):
                    problems.append(f"operator {op.name!r}: table {table.target!r} names {name!r} of another level")
    return problems


def _serves(v: ManifestVariant, bounded: Collection[str]) -> str:
    """Devices and dtypes of a variant. In `bounded` families, each generic variant is for one architecture."""
    devices = v.target if family_of(v.target) in bounded else family_of(v.target)
    return " ".join([devices, *(f"{variable}={name}" for variable, name in sorted(v.dtypes.items()))])


def _check_variants(document: Document, members: dict[str, Member], image: SharedLibrary) -> list[str]:
    problems = []
    for op in document.operators:
        for v in op.variants:
            where = f"operator {op.name!r}: variant {v.name!r}"
            member = members.get(f"{v.symbol}.o")
            if member is None:
                problems.append(f"{where}: its object is not in the archive")
            elif hashlib.sha256(member.data).hexdigest() != v.object:
                problems.append(f"{where}: its object is not the one that was measured")
            elif other_device_code(v, member):
                problems.append(f"{where}: its device code is not the one that was measured")
            else:
                problems += [f"{where}: {s} of its object is not linked" for s in image.missing_pieces(member.data)]
    return problems


def other_device_code(v: ManifestVariant, member: Member) -> bool:
    """Whether an object has device code that is not the code in the manifest."""
    digest = device_digest(member.data)
    return bool(v.device and digest) and digest != v.device


def _check_file(name: str, image: SharedLibrary, exports: set[str]) -> list[str]:
    exported = image.exported()
    problems = [f"{name} exports {s!r}, which is not declared" for s in sorted(exported - exports)]
    problems += [f"{name} does not export {s!r}" for s in sorted(exports - exported)]
    if image.start_sets_arithmetic():
        problems.append(
            f"{name} changes the floating-point unit when it is loaded; -ffast-math in CXXFLAGS or LDFLAGS does that"
        )
    for needed in image.dynamic("DT_NEEDED"):
        if needed.startswith(_LATE):
            problems.append(f"{name} needs {needed}, which a machine without a GPU does not have")
    return problems


def _check_paths(name: str, data: bytes, forbidden: Sequence[str]) -> list[str]:
    paths = sorted(m for m in set(_SOURCE_PATH.findall(data)) if not _SYSTEM_PATH.match(m))
    problems = [f"{name} {_PATH} {m.decode()!r}" for m in paths[:5]]
    problems += [
        f"{name} {_PATH} {t!r}" for t in forbidden if re.search(rb"%b(?![\w.+-])" % re.escape(t.encode()), data)
    ]
    return problems
