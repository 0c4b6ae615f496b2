"""Writes everything about a library that the linker and the package need. Equal input gives equal bytes.

This includes the public C and C++ header, which is documented from the operators.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
from elftools.common.exceptions import ELFError

from aot_tune.compile import Variant
from aot_tune.link.call_tables import render_xla_handlers
from aot_tune.link.check_tables import check_library
from aot_tune.link.dispatch import render_dispatch
from aot_tune.link.elf import Member, initialiser_count, symbols_of, write_archive
from aot_tune.link.library_records import SHARED_FUNCTIONS, LibrarySpec, family_facts
from aot_tune.link.manifest import render_manifest
from aot_tune.link.python_module import render_module, render_stub
from aot_tune.link.signature import choices_text, handler_names, render_template, shape_text
from aot_tune.render.template_functions import parameters, scalar_type
from aot_tune.spec import Operator
from aot_tune.support.errors import ManifestError
from aot_tune.support.storage import write_changed

__all__ = ["ABI_VERSION", "Generated", "generate", "public_functions", "render_header"]

ABI_VERSION = 1
"""AOT_TUNE_ABI_VERSION of the header that all libraries share."""
_IOSTREAM = "_ZNSt8ios_base4InitC1Ev"  # std::ios_base::Init::Init()
_LAUNCHER, _LOAD = "_ZN8launcher", "4loadERNS_6KernelE"  # launcher::<family>::load(launcher::Kernel&, int), of Triton's


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of what `generate` wrote. All are below its folder."""

    header: str
    dispatch: str
    module: str
    stub: str
    archive: str
    library_exports: str
    module_exports: str
    manifest: str
    xla_handlers: str = ""


def generate(spec: LibrarySpec, out_dir: Path) -> Generated:
    """Write the sources, the archive of objects, the version scripts and the manifest of a library.

    Raises:
        ManifestError: when tables and variants do not fit, or an object is not the one that was measured.
        OSError: when the folder cannot be written.
    """
    check_library(spec)
    objects = _objects(spec)
    spec = _as_objects_tell(spec, objects)
    header, module, stub = render_header(spec), render_module(spec), render_stub(spec)
    exports = _version_script(public_functions(spec))
    module_exports = _version_script([f"PyInit_{spec.face}"])
    sources = {spec.header: header, "module.cpp": module, f"{spec.face}.pyi": stub}
    sources |= {"xla_ffi.cpp": render_xla_handlers(spec)} if spec.xla_ffi else {}
    manifest = render_manifest(spec, sources)
    files = {
        **sources,
        "dispatch.cpp": render_dispatch(spec, manifest),
        "exports.map": exports,
        "module.map": module_exports,
        "manifest.json": manifest,
    }
    for name, text in files.items():
        write_changed(out_dir / name, text.encode())
    write_changed(out_dir / "variants.a", write_archive([objects[symbol].member for symbol in sorted(objects)]))
    return Generated(
        header=str(out_dir / spec.header),
        dispatch=str(out_dir / "dispatch.cpp"),
        module=str(out_dir / "module.cpp"),
        stub=str(out_dir / f"{spec.face}.pyi"),
        archive=str(out_dir / "variants.a"),
        library_exports=str(out_dir / "exports.map"),
        module_exports=str(out_dir / "module.map"),
        manifest=str(out_dir / "manifest.json"),
        xla_handlers=str(out_dir / "xla_ffi.cpp") if spec.xla_ffi else "",
    )


@dataclasses.dataclass(frozen=True)
class _Object:
    """A variant's object, with the functions that it defines and the symbols that it uses from others."""

    member: Member
    uses: frozenset[str]

    @property
    def loads_once(self) -> bool:
        """Whether Triton's launcher loads its kernels."""
        return any(name.startswith(_LAUNCHER) and _LOAD in name for name in self.uses)


def _as_objects_tell(spec: LibrarySpec, objects: Mapping[str, _Object]) -> LibrarySpec:
    """The library with the variants that are `noting` and `settled`, as found in their objects."""
    noting = frozenset(symbol for symbol, one in objects.items() if _note(symbol) in one.member.symbols)
    settled = frozenset(symbol for symbol, one in objects.items() if one.loads_once)
    tables = (dataclasses.replace(t, noting=noting, settled=settled) for t in spec.operators)
    return dataclasses.replace(spec, operators=tuple(tables))


def _note(symbol: str) -> str:
    return f"{symbol}_note"


def _functions(variant: Variant, *, notes: bool) -> tuple[str, ...]:
    """Names of the functions that a variant's object must define, sorted."""
    names = {"launch", "workspace"}
    names |= {"preload"} if family_facts(variant.candidate.target).preloads else set()
    names |= {"note"} if notes else set()
    return tuple(f"{variant.symbol}_{name}" for name in sorted(names))


def _objects(spec: LibrarySpec) -> dict[str, _Object]:
    """The objects of a library by symbol."""
    objects: dict[str, _Object] = {}
    for table in spec.operators:
        for variant in table.variants:
            if variant.symbol in objects:
                continue
            data = Path(variant.made.path).read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            if digest != variant.made.digest:
                raise ManifestError(
                    f"operator {table.operator.name!r}: the object of variant {variant.name!r} has digest {digest}",
                    why=f"the object that was measured has digest {variant.made.digest}",
                    fix="build again; the object cache holds a damaged file",
                )
            where = f"operator {table.operator.name!r}: variant {variant.name!r}"
            objects[variant.symbol] = _checked_object(where, variant, data)
    return objects


def _checked_object(where: str, variant: Variant, data: bytes) -> _Object:
    """A variant's object. It must define the variant's functions, and its note if it has one.

    Objects of several targets are in one library. So nothing of one object may be used, or run, in place of another's.
    A CUDA object has host code for the baseline. It may have an initialiser by which nvcc registers its kernels. It may
    also have that of <iostream>, which CUTLASS includes: before GCC 13, every file that includes <iostream> has one.
    """
    try:
        symbols = symbols_of(data)
        allowed = family_facts(variant.candidate.target).initialisers
        allowed += allowed and int(_IOSTREAM in symbols.used)
        initialisers = initialiser_count(data)
    except ELFError as error:
        raise ManifestError(f"{where}: its object is no ELF file: {error}") from error
    wanted = _functions(variant, notes=_note(variant.symbol) in symbols.defined)
    foreign, missing = sorted(symbols.defined - set(wanted)), sorted(set(wanted) - symbols.defined)
    if missing:
        raise ManifestError(
            f"{where}: its object does not define the function {missing[0]!r}",
            why="the library calls it",
            fix="write kernel_signature('launch'), 'workspace' and for GPUs 'preload' in the template",
        )
    if foreign:
        raise ManifestError(
            f"{where}: its object defines the global symbol {foreign[0]!r}",
            why="another target's variant could then call it, and a device may lack its instructions",
            fix="put the template's helpers into an unnamed namespace, or make them static",
        )
    if initialisers > allowed:
        raise ManifestError(
            f"{where}: its object has code that runs when the library is loaded",
            why="the code is compiled for one target, and the device may be another",
            fix="initialise the template's globals with constants",
        )
    return _Object(Member(f"{variant.symbol}.o", data, wanted), symbols.used)


def _version_script(symbols: list[str]) -> str:
    return "{\n  global:\n" + "".join(f"    {s};\n" for s in symbols) + "  local:\n    *;\n};\n"


def public_functions(spec: LibrarySpec) -> list[str]:
    """Names of all functions that the library exports, sorted."""
    names = [f"{spec.prefix}_{suffix}" for suffix in SHARED_FUNCTIONS]
    for table in spec.operators:
        base = f"{spec.prefix}_{table.operator.name}"
        names += [base, f"{base}_workspace", f"{base}_explain", f"{base}_is_tuned"]
        names += handler_names(spec, table.operator.name).values() if spec.xla_ffi else ()
    return sorted(names)


def render_header(spec: LibrarySpec) -> str:
    """The header's text."""
    operators = [table.operator for table in spec.operators]
    return render_template(
        "header.h.j2",
        spec=spec,
        operators=operators,
        version=ABI_VERSION,
        guard=re.sub(r"[^A-Za-z0-9]", "_", spec.header).upper() + "_",
        aliases=any(t.may_alias for op in operators for t in op.tensors),
        booleans=any(s.dtype_name == "bool" for op in operators for s in op.scalars),
        comment_of=lambda op: _comment(_documentation(op)),
        choices_of=lambda op, attribute: ", ".join(
            f"{spec.prefix}_{op.name}_{attribute.name}_{choice}".upper() + f" = {i}"
            for i, choice in enumerate(attribute.choices)
        ),
        prototype=lambda op, suffix, last: _prototype(f"{spec.prefix}_{op.name}{suffix}", [*parameters(op), *last]),
    )


def _documentation(op: Operator) -> list[str]:
    lines = [line.rstrip() for line in (op.documentation.strip() or op.name).splitlines()]
    lines.append("")
    for tensor in op.tensors:
        role = "read and written" if tensor.inout else "output" if tensor.output else "input"
        role += f", may be the memory of {' or '.join(tensor.may_alias)}" if tensor.may_alias else ""
        optional = ", may be NULL" if tensor.optional else ""
        lines.append(f"{tensor.name}: {tensor.dtype_name} {shape_text(op, tensor.name)}, {role}{optional}")
    lines += [f"{variable}: {choices_text(choices)}, the same for all" for variable, choices in op.dtypes.items()]
    lines += [f"{s.name}: {scalar_type(s)}{f', the dim {s.binds}' if s.binds else ''}" for s in op.scalars]
    for attribute in op.attributes:
        values = ", ".join(f"{i} {c}" for i, c in enumerate(attribute.choices))
        lines.append(f"{attribute.name}: {values}")
    lines.append("exec: how to carry out the call; NULL for defaults")
    return lines


def _comment(lines: list[str]) -> str:
    text = "\n".join([lines[0], *(f" * {line}".rstrip() for line in lines[1:])])
    return f"/* {text.replace('*/', '* /').replace('/*', '/ *')}\n */"  # compilers warn of either within a comment


def _prototype(name: str, declared: list[str]) -> str:
    head = f"int32_t {name}("
    lines = [head]
    for i, parameter in enumerate(declared):
        text = parameter + ("," if i + 1 < len(declared) else ");")
        if len(lines[-1]) + 1 + len(text) > 110:
            lines.append(" " * len(head) + text)
        else:
            lines[-1] += ("" if lines[-1].endswith("(") else " ") + text
    return "\n".join(lines)
