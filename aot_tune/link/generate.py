"""Writes everything about a library that the linker and the package need. Equal input gives equal bytes.

The header is documented from the operators, as is the Python module with its stub for type checkers and what it says of
operators as JSON. The texts are in `cpp/`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
from elftools.common.exceptions import ELFError

from aot_tune.compile import Variant
from aot_tune.link.check_tables import check_library
from aot_tune.link.dispatch import render_dispatch
from aot_tune.link.elf import Member, initialiser_count, symbols_of, write_archive
from aot_tune.link.library_records import FAMILIES, SHARED_FUNCTIONS, LibrarySpec, family_facts
from aot_tune.link.manifest import render_manifest
from aot_tune.link.operator_tables import FLOATS, render_tables, scalar_default
from aot_tune.link.signature import (
    c_string,
    choices_text,
    handler_names,
    render_template,
    shape_text,
    xla_families,
)
from aot_tune.render.template_functions import parameters, scalar_type
from aot_tune.spec import Operator, Scalar, Tensor
from aot_tune.spec.calls import bound_dims, folds, outputs_to_pass
from aot_tune.spec.dtypes import dtype
from aot_tune.support.errors import ManifestError
from aot_tune.support.storage import write_changed

__all__ = [
    "ABI_VERSION",
    "SIGNATURES_SCHEMA",
    "Generated",
    "generate",
    "public_functions",
    "python_doc",
    "python_results",
    "python_signature",
    "render_header",
    "render_module",
    "render_stub",
    "signatures_json",
]

ABI_VERSION = 1
"""AOT_TUNE_ABI_VERSION of the header that all libraries share."""
SIGNATURES_SCHEMA = 1
"""It is raised when a reader of the last version would misread the text."""
_IOSTREAM = "_ZNSt8ios_base4InitC1Ev"  # std::ios_base::Init::Init()
_LAUNCHER, _LOAD = "_ZN8launcher", "4loadERNS_6KernelE"  # launcher::<family>::load(launcher::Kernel&, int), of Triton's
_COMMON = (*FLOATS, "i32", "i64")
"""Scalars whose range users do not ask about."""
_WIDTH = 120
_MOST_CHOICES = 3
"""The most outputs that may be left out. Each doubles the overloads. With more of them, a result is `Any`."""


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
    sources |= {"operator_tables.h": render_tables(spec)}
    sources |= {"xla_ffi.cpp": _render_xla_handlers(spec)} if spec.xla_ffi else {}
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
    write_changed(out_dir / "variants.a", write_archive([objects[symbol] for symbol in sorted(objects)]))
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


def _as_objects_tell(spec: LibrarySpec, objects: Mapping[str, Member]) -> LibrarySpec:
    """The library with the variants that are `noting` and `settled`, as found in their objects."""
    noting = frozenset(symbol for symbol, member in objects.items() if _note(symbol) in member.symbols)
    settled = frozenset(symbol for symbol, member in objects.items() if _loads_once(member))
    tables = (dataclasses.replace(t, noting=noting, settled=settled) for t in spec.operators)
    return dataclasses.replace(spec, operators=tuple(tables))


def _loads_once(member: Member) -> bool:
    """Whether Triton's launcher loads its kernels."""
    return any(name.startswith(_LAUNCHER) and _LOAD in name for name in member.uses)


def _note(symbol: str) -> str:
    return f"{symbol}_note"


def _functions_of(variant: Variant, *, notes: bool) -> tuple[str, ...]:
    """Names of the functions that a variant's object must define, sorted."""
    names = {"launch", "workspace"}
    names |= {"preload"} if family_facts(variant.candidate.target).preloads else set()
    names |= {"note"} if notes else set()
    return tuple(f"{variant.symbol}_{name}" for name in sorted(names))


def _objects(spec: LibrarySpec) -> dict[str, Member]:
    """The objects of a library by symbol."""
    objects: dict[str, Member] = {}
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


def _checked_object(where: str, variant: Variant, data: bytes) -> Member:
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
    wanted = _functions_of(variant, notes=_note(variant.symbol) in symbols.defined)
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
    return Member(f"{variant.symbol}.o", data, wanted, frozenset(symbols.used))


def _version_script(symbols: list[str]) -> str:
    return "{\n  global:\n" + "".join(f"    {s};\n" for s in symbols) + "  local:\n    *;\n};\n"


def public_functions(spec: LibrarySpec) -> list[str]:
    """Names of all functions that the library exports, sorted."""
    names = [f"{spec.prefix}_{suffix}" for suffix in SHARED_FUNCTIONS]
    for table in spec.operators:
        base = f"{spec.prefix}_{table.operator.name}"
        names += [base, f"{base}_workspace", f"{base}_explain", f"{base}_is_tuned", f"{base}_infer"]
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


def render_module(spec: LibrarySpec) -> str:
    """The text of module.cpp."""
    return render_template(
        "module.cpp.j2",
        spec=spec,
        operators=[table.operator for table in spec.operators],
        signatures=c_string(signatures_json(spec)),
        doc=c_string(_module_doc(spec)),
        doc_of=lambda op: c_string(f"{op.name}($module, {python_signature(op)})\n--\n\n{python_doc(op)}"),
    )


def _render_xla_handlers(spec: LibrarySpec) -> str:
    """The text of xla_ffi.cpp."""
    devices = [(family, FAMILIES[family].device) for family in xla_families(spec)]
    operators = [table.operator for table in spec.operators]
    return render_template("xla_ffi.cpp.j2", spec=spec, operators=operators, devices=devices)


def _module_doc(spec: LibrarySpec) -> str:
    """The beginning of `help`, which shows the functions themselves only far below, after the errors."""
    operators = [table.operator for table in spec.operators]
    calls = "\n".join(f"{op.name}({python_signature(op)})" for op in operators)
    return (
        f"Kernels chosen by measurement when this package was built: {', '.join(o.name for o in operators)}.\n\n{calls}"
    )


def python_signature(op: Operator) -> str:
    """The parameters of an operator's Python function: inputs by position, the rest by keyword."""
    required = [t.name for t in op.inputs if not t.optional]
    optional = [f"{t.name}=None" for t in op.inputs if t.optional]
    keyword = [s.name + (f"={scalar_default(s)}" if s.default is not None else "") for s in op.scalars]
    keyword += [f"{a.name}='{a.choices[0]}'" for a in op.attributes]
    to_pass = outputs_to_pass(op)
    keyword += [t.name if t.name in to_pass else f"{t.name}=None" for t in python_results(op)]
    return ", ".join([*required, *optional, "*", *keyword, "stream=None", "workspace=None"])


def python_results(op: Operator) -> list[Tensor]:
    """What a call makes if it is not passed, and returns."""
    return [t for t in op.tensors if t.output]


def python_doc(op: Operator) -> str:
    """What `help` says of an operator's function."""
    lines = [op.documentation.strip() or op.name, ""]
    to_pass = outputs_to_pass(op)
    for tensor in op.tensors:
        what = f"{tensor.dtype_name} {shape_text(op, tensor.name)}"
        alias = f"; it may be {' or '.join(tensor.may_alias)} itself" if tensor.may_alias else ""
        if not tensor.output:
            changed = ", changed in place" if tensor.inout else ""
            lines.append(f"{tensor.name}: {what}{changed}" + (", may be left out." if tensor.optional else "."))
        elif tensor.optional:
            lines.append(f"{tensor.name}: {what}, written when passed{alias}; True makes a new one.")
        elif tensor.name in to_pass:
            told = f"; it tells {' and '.join(to_pass[tensor.name])}" if to_pass[tensor.name] else ""
            lines.append(f"{tensor.name}: {what}, to be passed{told}{alias}.")
        else:
            layout = f", with the layout of {tensor.layout_of}" if tensor.layout_of else ""
            lines.append(f"{tensor.name}: {what}, made when not passed{layout}{alias}.")
    if op.fold:
        names = [t.name for t in op.tensors if folds(op, t)]
        lines.append(f"{op.fold}: stands for any number of leading dims, the same of {', '.join(names)}.")
    lines += [f"{variable}: {choices_text(choices)}, the same for all." for variable, choices in op.dtypes.items()]
    lines += [_scalar_doc(s) for s in op.scalars]
    lines += [f"{a.name}: one of {', '.join(a.choices)}." for a in op.attributes]
    lines += [
        "stream: of the GPU, as a number or an object of a framework; the framework's current one when not passed.",
        "workspace: memory of the device for the call, any tensor; the library's own when not passed.",
    ]
    several = "the output; a tuple when several are written"
    returned = {0: "nothing", 1: "the output"}.get(len(python_results(op)), several)
    lines += ["", f"Returns {returned}."]
    return "\n".join(lines)


def _scalar_doc(scalar: Scalar) -> str:
    what = f"the dim {scalar.binds}" if scalar.binds else "a number"
    if scalar.dtype_name == "bool":
        what = "True or False"
    elif scalar.dtype_name not in _COMMON and not scalar.binds:
        low, high = dtype(scalar.dtype_name).limits
        what = f"a whole number from {low} to {high}"
    return f"{scalar.name}: {what}{', to be passed' if scalar.default is None else ''}."


def signatures_json(spec: LibrarySpec) -> str:
    """The text that `signatures()` of a module parses.

    Shapes are expressions over dims, as `Expr.data` writes them. `bound` says, in order, where a call gets each dim
    from: an axis of a tensor, whose extent is the fact `.extent` of `value`, or an integer. `xla_ffi` has the names of
    the library's handlers, if there are any, by operator and XLA platform.
    """
    operators = [_signature(table.operator) for table in spec.operators]
    handlers = {op["name"]: handler_names(spec, str(op["name"])) for op in operators} if spec.xla_ffi else {}
    document = {"schema": SIGNATURES_SCHEMA, "operators": operators, **({"xla_ffi": handlers} if handlers else {})}
    return json.dumps(document, separators=(",", ":"))


def _signature(op: Operator) -> dict[str, object]:
    bound = [
        {"dim": name, "scalar": source.scalar}
        if source.scalar
        else {"dim": name, "tensor": source.tensor, "axis": source.axis, "value": source.value.data()}
        for name, source in bound_dims(op).items()
    ]
    to_pass = outputs_to_pass(op)
    return {
        "name": op.name,
        "documentation": op.documentation.strip(),
        "bound": bound,
        "dtypes": {variable: list(choices) for variable, choices in op.dtypes.items()},
        "tensors": [_tensor_signature(t, to_pass=t.name in to_pass, leading=folds(op, t)) for t in op.tensors],
        "scalars": [_scalar_signature(s) for s in op.scalars],
        "attributes": [{"name": a.name, "choices": list(a.choices)} for a in op.attributes],
    }


def _tensor_signature(tensor: Tensor, *, to_pass: bool, leading: bool) -> dict[str, object]:
    flags = {
        "output": tensor.output,
        "inout": tensor.inout,
        "optional": tensor.optional,
        "folds": leading,  # its first axis stands for any number of leading dims
        "to_pass": to_pass,  # for an output: it tells a dim, a dtype or the device of the call
    }
    shape = [extent.data() for extent in tensor.shape]
    fields: dict[str, object] = {flag: True for flag, on in flags.items() if on}
    fields |= {"layout_of": tensor.layout_of} if tensor.layout_of else {}
    return {"name": tensor.name, "dtype": tensor.dtype_name, "shape": shape, **fields}


def _scalar_signature(scalar: Scalar) -> dict[str, object]:
    default = {} if scalar.default is None else {"default": scalar.sample}
    return {"name": scalar.name, "dtype": scalar.dtype_name, **default}


def render_stub(spec: LibrarySpec) -> str:
    """The module's .pyi."""
    operators = [table.operator for table in spec.operators]
    names = ", ".join(f'Literal["{op.name}"]' for op in operators)
    functions = [line for op in operators for line in _stub_functions(op)]
    return render_template("stub.pyi.j2", spec=spec, names=names, functions=functions)


def _stub_functions(op: Operator) -> list[str]:
    """The function of an operator: an overload for each choice of the outputs that are written."""
    optional = [t.name for t in python_results(op) if t.optional]
    if not optional or len(optional) > _MOST_CHOICES:
        wanted = dict.fromkeys(optional)
        returned = "Any" if optional else _returned(op, {})
        return [_stub_function(op, wanted, returned), ""]
    lines: list[str] = []
    for choice in itertools.product((False, True), repeat=len(optional)):
        wanted = dict(zip(optional, choice, strict=True))
        lines += ["@overload", _stub_function(op, wanted, _returned(op, wanted), documented=not lines)]
    return [*lines, ""]


def _returned(op: Operator, wanted: Mapping[str, bool | None]) -> str:
    types = [_type(op, t) for t in python_results(op) if wanted.get(t.name, True)]
    if not python_results(op):
        return "None"
    return types[0] if len(types) == 1 else f"tuple[{', '.join(types)}]"


def _stub_function(op: Operator, wanted: Mapping[str, bool | None], returned: str, *, documented: bool = True) -> str:
    head = f"def {op.name}({', '.join(_stub_parameters(op, wanted))}) -> {returned}:"
    if len(head) > _WIDTH:
        lines = "".join(f"    {parameter},\n" for parameter in _stub_parameters(op, wanted))
        head = f"def {op.name}(\n{lines}) -> {returned}:"
    if not documented:
        return f"{head} ..."
    first, *rest = python_doc(op).replace("\\", "\\\\").replace('"""', "'''").splitlines()
    return "\n".join([head, f'    """{first}', *(f"    {line}".rstrip() for line in rest), '    """'])


def _stub_parameters(op: Operator, wanted: Mapping[str, bool | None]) -> list[str]:
    """Like `python_signature`. `wanted` says which optional outputs are written. None means either."""
    like = _like(op) if "_T" in [_type(op, t) for t in python_results(op)] else None
    stated = [f"{t.name}: {'_T' if t is like else 'Tensor'}" for t in op.inputs if not t.optional]
    stated += [f"{t.name}: Tensor | None = None" for t in op.inputs if t.optional]
    stated.append("*")
    for s in op.scalars:
        stated.append(f"{s.name}: {_number(s)}" + (f" = {scalar_default(s)}" if s.default is not None else ""))
    for a in op.attributes:
        choices = ", ".join(f'"{c}"' for c in a.choices)
        stated.append(f'{a.name}: Literal[{choices}] = "{a.choices[0]}"')
    to_pass = outputs_to_pass(op)
    for t in python_results(op):
        kind = _type(op, t) if _type(op, t) != "Any" else "Tensor"
        if t.optional:
            kinds = {None: f"{kind} | bool | None = None", False: "Literal[False] | None = None"}
            kinds |= {True: f"{kind} | Literal[True]"}
            stated.append(f"{t.name}: {kinds[wanted[t.name]]}")
        else:
            stated.append(f"{t.name}: {kind}" + ("" if t.name in to_pass else " | None = None"))
    return [*stated, "stream: _Stream = None", "workspace: Tensor | None = None"]


def _like(op: Operator) -> Tensor | None:
    """The tensor whose type the results have: the first that every call passes."""
    to_pass = outputs_to_pass(op)
    return next((t for t in op.inputs if not t.optional), None) or next(
        (t for t in python_results(op) if t.name in to_pass), None
    )


def _type(op: Operator, output: Tensor) -> str:
    """`_T` if a result is like the first tensor. The types of arrays may have dtype and rank as parameters."""
    like = _like(op)
    same = like is not None and (output.dtype_name, output.rank) == (like.dtype_name, like.rank)
    return "_T" if same else "Any"


def _number(scalar: Scalar) -> str:
    return "float" if scalar.dtype_name in FLOATS else "bool" if scalar.dtype_name == "bool" else "int"
