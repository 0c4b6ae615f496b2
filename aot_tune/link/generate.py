"""Writes everything about a library that the linker and the package need. Equal input gives equal bytes.

Before that, it checks the library's tables: every index has its variant, every operator its answer.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from elftools.common.exceptions import ELFError

from aot_tune.compile import Variant
from aot_tune.compile.object_files import symbols_of, why_unlinkable
from aot_tune.link.dispatch import render_dispatch
from aot_tune.link.elf import Member, write_archive
from aot_tune.link.interfaces import render_header, render_module, render_stub, render_tables, render_xla_handlers
from aot_tune.link.library_records import (
    SHARED_FUNCTIONS,
    LibrarySpec,
    OperatorTable,
    TargetTable,
    family_facts,
    family_of,
)
from aot_tune.link.manifest import render_manifest
from aot_tune.link.signature import handler_names
from aot_tune.spec import Expr, Operator, all_of
from aot_tune.spec.calls import legal_combinations, values_of_fact
from aot_tune.spec.names import check_identifier
from aot_tune.spec.tensors import MAX_RANK
from aot_tune.support.errors import ManifestError, did_you_mean
from aot_tune.support.storage import write_changed

_MOST_COMBINATIONS = 1 << 14

# The most arguments of an operator, and the most operators of a library (the binding's constants of these names).
_LIMITS = {"tensors": 16, "scalars": 8, "attributes": 8, "dims": 16, "dtypes": 4}
_MAX_OPERATORS = 256


def check_library(spec: LibrarySpec) -> None:
    """Check the whole library. Raises ManifestError naming the operator, table and variant that do not fit."""
    for what, name in (("library", spec.name), ("prefix", spec.prefix), ("module", spec.face)):
        check_identifier(name, what)
    if not spec.operators:
        raise ManifestError(f"library {spec.name!r} has no operator", fix="name at least one operator")
    if len(spec.operators) > _MAX_OPERATORS:
        count = len(spec.operators)
        raise ManifestError(f"library {spec.name!r} has {count} operators", fix=f"at most {_MAX_OPERATORS}")
    _unique((t.operator.name for t in spec.operators), f"library {spec.name!r}: operator")
    symbols: dict[str, str] = {}
    for table in spec.operators:
        _check_operator(table)
        for variant in table.variants:
            if symbols.setdefault(variant.symbol, variant.made.digest) != variant.made.digest:
                raise ManifestError(
                    f"two objects define the symbol {variant.symbol!r}",
                    why=f"digests {symbols[variant.symbol]} and {variant.made.digest}",
                )


def _check_operator(table: OperatorTable) -> None:
    where = f"operator {table.operator.name!r}"
    for what, limit in _LIMITS.items():
        count = len(getattr(table.operator, what))
        if count > limit:
            raise ManifestError(f"{where} has {count} {what}", fix=f"at most {limit}")
    for tensor in table.operator.tensors:
        if tensor.rank > MAX_RANK:
            raise ManifestError(f"{where}: tensor {tensor.name!r} has {tensor.rank} axes", fix=f"at most {MAX_RANK}")
    _unique((v.name for v in table.variants), f"{where}: variant")
    families = {v.target.family for v in table.variants} | {family_of(t.target) for t in table.tables}
    for variant in table.variants:
        _check_variant(variant, table, where)
    for family in sorted(families or {"cpu"}):
        _check_generics(family, table, where)
    _unique((t.target for t in table.tables), f"{where}: table")
    _unique(
        (f"{family_of(t.target)} level {t.level} to {t.last} of rank {t.rank}{t.target[-1]}" for t in table.tables),
        f"{where}: table",
    )
    for target in table.tables:
        _check_table(target, table, f"{where}: table {target.target!r}")


def _check_generics(family: str, table: OperatorTable, where: str) -> None:
    """One variant must answer every legal call with the dtypes of some variant, on each device of some variant."""
    of_family = [v for v in table.variants if v.target.family == family]
    places = {family: of_family}
    if table.bounded(family):
        places = {t: [v for v in of_family if v.candidate.target == t] for t in table.targets(family)}
    for devices, group in places.items():
        for dtypes in sorted({table.choices(v) for v in group}) or [()]:
            variants = [v for v in group if v.candidate.generic and table.choices(v) == dtypes]
            generics = [v.name for v in variants]
            unanswered = _not_answered_once(table.operator, variants) if variants else ""
            if not variants or unanswered:
                chosen = zip(table.operator.dtypes.items(), dtypes, strict=True)
                text = "".join(f" with {variable}={choices[i]}" for (variable, choices), i in chosen) if dtypes else ""
                raise ManifestError(
                    f"{where} has {len(generics)} generic variants for {devices}{text}: {generics}",
                    why=unanswered or "one variant must answer every legal call",
                    fix="link exactly one variant with generic=True for each choice of dtypes and each family of "
                    "devices. "
                    "Where code runs on one architecture alone, link one for each architecture. There may also be one "
                    "for each combination of optional tensors and attributes",
                )


def _check_variant(variant: Variant, table: OperatorTable, where: str) -> None:
    check_identifier(variant.name, f"{where}: variant")
    check_identifier(variant.symbol, f"{where}: variant {variant.name!r}: symbol")
    for name, choice in variant.candidate.dtypes.items():
        if choice not in table.operator.dtypes.get(name, ()):
            raise ManifestError(
                f"{where}: variant {variant.name!r}: {name}={choice!r} is no dtype of the operator",
                fix=did_you_mean(choice, table.operator.dtypes.get(name, table.operator.dtypes)),
            )
    for guard in variant.guards:
        check_guard(guard, table.operator, f"{where}: variant {variant.name!r}: guard {guard.key()}")


def check_guard(expr: Expr, operator: Operator, where: str) -> None:
    """Check that dispatch can evaluate a guard, named `where`, in every call. Raises ManifestError."""
    facts = operator.fact_names()
    for fact in sorted(expr.facts()):
        if fact not in facts:
            raise ManifestError(f"{where} uses the unknown fact {fact!r}", fix=did_you_mean(fact, facts))
    if expr.op in ("//", "%"):
        divisor = expr.args[1]
        if not _divides(divisor, operator):
            raise ManifestError(
                f"{where} divides by {divisor.key()}",
                why="it may be zero in a call",
                fix="divide by a positive constant, a dim or next_power_of_2 of one, or by max of one and a positive "
                "constant",
            )
    for arg in expr.args:
        check_guard(arg, operator, where)


def _divides(expr: Expr, operator: Operator) -> bool:
    """Whether an expression is above 0 in every call that reaches the guards. No such call has an empty tensor."""
    if expr.op == "const":
        return int(expr.value) > 0
    if expr.op == "fact":
        return str(expr.value) in operator.dims
    if expr.op in ("min", "max"):
        return (all if expr.op == "min" else any)(_divides(a, operator) for a in expr.args)
    if expr.op == "where":
        return all(_divides(a, operator) for a in expr.args[1:])
    return expr.op == "next_power_of_2"


def _check_table(target: TargetTable, table: OperatorTable, where: str) -> None:
    for variant in target.used:
        _check_tried(variant, target, table, where)
    for problem in (*target.tuned, *(p for p, _ in target.surveyed)):
        for dim in table.operator.dims:
            if dim not in problem.dims:
                raise ManifestError(f"{where}: problem '{problem.id}' does not state {dim!r}")


def _check_tried(index: int, target: TargetTable, table: OperatorTable, where: str) -> None:
    if not 0 <= index < len(table.variants):
        raise ManifestError(f"{where} names variant {index}, which is not in the library")
    variant = table.variants[index]
    runs = variant.target.level <= target.level and (variant.target.last == 0 or 0 < target.last <= variant.target.last)
    if variant.target.family != family_of(target.target) or not runs:
        raise ManifestError(
            f"{where} names variant {variant.name!r} for {variant.candidate.target}",
            why=f"a device of {target.target} may lack its instructions",
        )


def _unique(names: Iterable[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ManifestError(f"{what} {name!r} is defined twice")
        seen.add(name)


def _not_answered_once(operator: Operator, generics: Sequence[Variant]) -> str:
    """Combinations that several generic variants of the same devices and dtypes answer, or none; "" if right."""
    guards = {
        v.name: tuple(g for g in v.guards if not all(fact.startswith("dtype.") for fact in g.facts())) for v in generics
    }
    facts = sorted({fact for several in guards.values() for g in several for fact in g.facts()})
    values = [values_of_fact(operator, fact) for fact in facts]
    if math.prod(map(len, values)) > _MOST_COMBINATIONS:
        return f"their guards have too many combinations of {', '.join(facts)}"
    for call in legal_combinations(operator, facts, values):
        answering = [name for name, several in guards.items() if all_of(several, call)]
        if len(answering) != 1:
            shown = f" with {', '.join(f'{fact}={value}' for fact, value in call.items())}" if call else ""
            return f"of calls{shown}, {len(answering)} of them answer: {answering}"
    return ""


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


def _held(variant: Variant) -> bytes:
    return Path(variant.made.path).read_bytes()


def generate(spec: LibrarySpec, out_dir: Path, read: Callable[[Variant], bytes] = _held) -> Generated:
    """Write the sources, the archive of objects, the version scripts and the manifest of a library.

    `read` gives a variant's object file.

    Raises:
        ManifestError: when tables and variants do not fit, or an object is not the one that was measured.
        OSError: when the folder cannot be written.
    """
    check_library(spec)
    objects = _objects(spec, read)
    spec = _as_objects_tell(spec, objects)
    header, module, stub = render_header(spec), render_module(spec), render_stub(spec)
    exports = _version_script(public_functions(spec))
    module_exports = _version_script([f"PyInit_{spec.face}"])
    sources = {spec.header: header, "module.cpp": module, f"{spec.face}.pyi": stub}
    sources |= {"operator_tables.h": render_tables(spec)}
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
    settled = frozenset(
        symbol
        for symbol, member in objects.items()
        if any(name.startswith(_LAUNCHER) and _LOAD in name for name in member.uses)
    )
    tables = (dataclasses.replace(t, noting=noting, settled=settled) for t in spec.operators)
    return dataclasses.replace(spec, operators=tuple(tables))


def _note(symbol: str) -> str:
    return f"{symbol}_note"


def _objects(spec: LibrarySpec, read: Callable[[Variant], bytes]) -> dict[str, Member]:
    """The objects of a library by symbol."""
    objects: dict[str, Member] = {}
    for table in spec.operators:
        for variant in table.variants:
            if variant.symbol in objects:
                continue
            data = read(variant)
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
    """A variant's object. It must define the variant's functions, and its note if it has one, and nothing else."""
    try:
        symbols, unlinkable = symbols_of(data), why_unlinkable(data, variant.symbol, variant.candidate.target)
    except ELFError as error:
        raise ManifestError(f"{where}: its object is no ELF file: {error}") from error
    names = {"launch", "workspace"}
    names |= {"preload"} if family_facts(variant.candidate.target).preloads else set()
    names |= {"note"} if _note(variant.symbol) in symbols.defined else set()
    wanted = tuple(f"{variant.symbol}_{name}" for name in sorted(names))
    if missing := sorted(set(wanted) - symbols.defined):
        raise ManifestError(
            f"{where}: its object does not define the function {missing[0]!r}",
            why="the library calls it",
            fix="write kernel_signature('launch'), 'workspace' and for GPUs 'preload' in the template",
        )
    if unlinkable is not None:
        what, fix = unlinkable
        raise ManifestError(f"{where}: its object {what}", why="the library has others beside it", fix=fix)
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
