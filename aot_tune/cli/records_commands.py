"""`aot-tune records`: export, merge, compare, check, prune, upgrade and show files of records."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from aot_tune.cli.compile_commands import add_repeated, add_source_options, add_template_roots, source_options
from aot_tune.cli.explain_command import json_text
from aot_tune.cli.tune_command import print_records
from aot_tune.compile import generic_targets, target_by_name, template_folders
from aot_tune.database import OperatorDatabase, operator_digest, without
from aot_tune.database.checks import (
    Finding,
    Render,
    check_coverage,
    check_record,
    check_sanitized,
    check_settled,
    gone,
    other_sources,
    tuned_kernels,
    without_problems,
)
from aot_tune.database.compare import RecordChange, changes
from aot_tune.database.files import (
    RecordTree,
    database_path,
    load_database,
    load_tree,
    save_text,
    save_tree,
    without_digests,
)
from aot_tune.database.format import encode
from aot_tune.database.merge import join, join_from, other_toolchains
from aot_tune.database.record_lines import OLDEST_KNOWN
from aot_tune.plan.compile_settings import CompileSettings
from aot_tune.plan.stated_workloads import read_workload
from aot_tune.render import Candidate, Renderer
from aot_tune.report.format_records import format_change, format_record, format_tree
from aot_tune.report.report_text import counted
from aot_tune.spec import Operator, Target
from aot_tune.spec.load_operators import (
    bundled_templates,
    load_operators,
    operator_folders,
    roots_with_bundled,
    template_paths,
)
from aot_tune.spec.survey_shapes import survey_shapes
from aot_tune.support.errors import (
    AotTuneError,
    BuildError,
    DatabaseError,
    Mistakes,
    OptionError,
    SpecError,
    ToolchainError,
)
from aot_tune.triton.ask_declarations import read_functions, with_declarations

_DRIVER = """\
set git up once for each clone, in the folder of the repository:
  git config merge.aot-tune.driver "aot-tune records merge-driver %O %A %B --path %P"
and commit a line in .gitattributes:
  tuning/**/*.jsonl merge=aot-tune
"""


class RecordFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What `check` found: in which record, and whether a replay fails over it."""

    record: str
    what: str
    fix: str
    wrong: bool


class CheckedRecords(msgspec.Struct, frozen=True, kw_only=True):
    """How many records were checked, and what was found. `mistakes` are those that decide the exit status."""

    records: int
    mistakes: int
    findings: tuple[RecordFinding, ...]
    schema: int = 1


class ChangedRecords(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between two folders of records, by the records' paths in them: all that both have, and others."""

    changed: dict[str, RecordChange]
    came: tuple[str, ...]
    went: tuple[str, ...]
    schema: int = 1


_SHAPES = 200
"""How many shapes of each kind of calls a survey has by default."""
_REASONS = {"kernel": "of kernels that are gone", "config": "are no configs of their kernels", "": "of other sources"}


def add_records(commands: Any) -> None:
    """Add the command and its subcommands to the parser."""
    records = commands.add_parser(
        "records",
        help="export, merge, compare, check, prune, rewrite and show records",
        description="Work on the files of measurements that a project commits.",
    )
    subcommands = records.add_subparsers(dest="subcommand", metavar="SUBCOMMAND", required=True)
    _add_export(subcommands)
    _add_merge(subcommands)
    _add_driver(subcommands)
    _add_diff(subcommands)
    _add_check(subcommands)
    _add_prune(subcommands)
    _add_upgrade(subcommands)
    _add_show(subcommands)


def _add_export(subcommands: Any) -> None:
    export = subcommands.add_parser(
        "export",
        help="write what the last build measured",
        description="Write the measurements of the last build on this machine as text files to commit.",
    )
    export.add_argument("directory", type=Path, metavar="DIR", help="folder of records, such as tuning")
    export.add_argument(
        "--library", default="ops", help="the target of aot_tune_add_library; default: ops, the bundled operators"
    )
    export.set_defaults(run=_export)


def _add_merge(subcommands: Any) -> None:
    merge = subcommands.add_parser(
        "merge",
        help="merge the records of several machines into one folder",
        description="Merge folders of records, or files of one operator and device. Their order "
        "does not matter. If two measured the same, the one with more rounds is kept. What failed in one cannot win.",
    )
    merge.add_argument("sources", nargs="+", type=Path, metavar="RECORDS", help="folders such as tuning, or files")
    merge.add_argument(
        "-o", "--output", type=Path, required=True, metavar="OUT", help="the folder or file to write; may be a source"
    )
    merge.add_argument(
        "--base",
        type=Path,
        metavar="RECORDS",
        help="the common version of two sources; where only one of them changed it, that change is kept",
    )
    merge.set_defaults(run=_merge)


def _add_driver(subcommands: Any) -> None:
    driver = subcommands.add_parser(
        "merge-driver",
        help="merge two branches' versions of a file; git runs it",
        description="Merge two versions of a record and write the result over OURS. Where that is not possible, it "
        "says why, leaves OURS as it was, and git leaves the file as a conflict.",
        epilog=_DRIVER,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    driver.add_argument("base", type=Path, metavar="BASE", help="%%O of git")
    driver.add_argument("ours", type=Path, metavar="OURS", help="%%A of git")
    driver.add_argument("theirs", type=Path, metavar="THEIRS", help="%%B of git")
    driver.add_argument("--path", default="", help="%%P of git: name of the file in messages")
    driver.set_defaults(run=_drive)


def _add_diff(subcommands: Any) -> None:
    diff = subcommands.add_parser(
        "diff",
        help="show how a change affects the choices",
        description="Say on which problems another candidate is the fastest, what became faster or slower, and what "
        "was added or removed. A build keeps few variants for all problems, so it may not keep the fastest of each.",
    )
    diff.add_argument("before", type=Path, metavar="BEFORE", help="a folder of records or a file")
    diff.add_argument("after", type=Path, metavar="AFTER")
    form = diff.add_mutually_exclusive_group()
    form.add_argument("--all", action="store_true", help="list everything, not the first few of each")
    form.add_argument("--json", action="store_true", help="print everything as JSON, see docs/report.md")
    diff.set_defaults(run=_diff)


def _add_check(subcommands: Any) -> None:
    check = subcommands.add_parser(
        "check",
        help="check whether builds can use records; needs no compiler",
        description="Check that each record is complete and fits the operators of this tree as they are now, and that "
        "the records cover the problems of the workload. The exit status is 1 if a replay would fail.",
    )
    check.add_argument("records", nargs="+", type=Path, metavar="DIR", help="folders of records, such as tuning")
    check.add_argument("--render", action="store_true", help="render all candidates, and compare their sources")
    check.add_argument("--strict", action="store_true", help="exit status 1 also for NOTEs, which do not stop a replay")
    form = check.add_mutually_exclusive_group()
    form.add_argument("--quiet", action="store_true", help="leave out the NOTEs")
    form.add_argument("--json", action="store_true", help="print the findings as JSON, see docs/report.md")
    add_repeated(check, "--workload", "FILE", "as AOT_TUNE_WORKLOAD; may be repeated")
    _add_tree_options(check)
    check.set_defaults(run=_check)


def _add_prune(subcommands: Any) -> None:
    prune = subcommands.add_parser(
        "prune",
        help="drop what the kernels of the tree no longer give",
        description="Drop candidates whose kernel or config is gone, or whose source the templates no longer give. "
        "Their measurements go with them, and so do problems that have no measurement left.",
    )
    prune.add_argument("records", type=Path, metavar="DIR", help="a folder of records, such as tuning")
    prune.add_argument("-n", "--dry-run", action="store_true", help="write nothing")
    _add_tree_options(prune)
    prune.set_defaults(run=_prune)


def _add_upgrade(subcommands: Any) -> None:
    upgrade = subcommands.add_parser(
        "upgrade",
        help="rewrite records of older schemas",
        description="Rewrite records as this version writes them. Nothing is measured, and the content is the same.",
    )
    upgrade.add_argument("records", nargs="+", type=Path, metavar="RECORDS", help="folders of records, or files")
    upgrade.set_defaults(run=_upgrade)


def _add_show(subcommands: Any) -> None:
    show = subcommands.add_parser(
        "show", help="print records for people", description="Show a record, or a folder of them."
    )
    show.add_argument("records", type=Path, metavar="RECORDS", help="a folder of records, or a file")
    show.add_argument("--problems", action="store_true", help="also the fastest candidate on each problem")
    show.set_defaults(run=_show)


def _add_tree_options(parser: Any) -> None:
    add_template_roots(parser)
    add_source_options(parser)


def _export(given: argparse.Namespace) -> int:
    from aot_tune.pipeline.records.record_writer import export_records

    exported = export_records(given.library, given.directory)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(exported.time))
    print(f"of the build of library {given.library!r} that recorded last, at {when}:", file=sys.stderr)
    print_records(exported.files, exported.notes)
    return 0


def _merge(given: argparse.Namespace) -> int:
    replaced = given.output.resolve()  # it becomes a record, which a build does not append to
    trees = [load_tree(source, older=True, stores=source.resolve() != replaced) for source in given.sources]
    of_files = [source for source in given.sources if not source.is_dir()]
    if of_files and (len(of_files) < len(trees) or given.output.is_dir()):
        raise OptionError("folders and files are mixed", fix="name folders alone, or files alone")
    if given.base is not None and len(trees) != 2:
        raise OptionError(f"--base is of two records, and {len(trees)} are named", fix="name two")
    _check_output(given.output, given.sources)
    base = {} if given.base is None else _by_place(load_tree(given.base, older=True))
    merged: dict[Path, OperatorDatabase] = {}
    for tree in trees:
        for relative, database in _by_place(tree).items():
            if relative in merged:
                _tell_of_toolchains(relative, merged[relative], database)
            merged[relative] = _with(base.get(relative), merged.get(relative), database)
    if given.base is not None:
        sides = [_by_place(tree) for tree in trees]
        merged = {p: d for p, d in merged.items() if not _removed(p, base, sides)}
    if of_files and len(merged) != 1:
        raise DatabaseError(
            f"these are records of {len(merged)} operators or devices: {', '.join(map(str, merged))}",
            fix="merge folders, or files of one operator and device",
        )
    target = {given.output if of_files else given.output / relative: d for relative, d in merged.items()}
    for path in save_tree(target):
        print(path)
    return 0


def _with(base: OperatorDatabase | None, one: OperatorDatabase | None, two: OperatorDatabase) -> OperatorDatabase:
    if one is None:
        return two
    return join(one, two) if base is None else join_from(base, one, two)


def _removed(path: Path, base: Mapping[Path, OperatorDatabase], sides: Sequence[dict[Path, OperatorDatabase]]) -> bool:
    """Whether one side removed a file and the other left it unchanged."""
    copies = [side[path] for side in sides if path in side]
    return path in base and len(copies) == 1 and copies[0] == base[path]


def _trees(paths: Sequence[Path], *, older: bool) -> RecordTree:
    """All records at these paths. All mistakes are reported together."""
    mistakes, tree = Mistakes(), RecordTree()
    for path in paths:
        with mistakes.gather():
            tree |= load_tree(path, older=older)
    mistakes.tell()
    return tree


def _by_place(tree: RecordTree) -> dict[Path, OperatorDatabase]:
    return {database_path(Path(), database): database for database in tree.values()}


def _check_output(output: Path, sources: Sequence[Path]) -> None:
    """Raise if a merge would write over records that do not take part in it."""
    if output.resolve() in [source.resolve() for source in sources]:
        return
    if output.is_file() or any(output.rglob("*.jsonl")):
        raise OptionError(f"{output} has records already", fix="merge them too by naming it, or name another output")


def _tell_of_toolchains(path: Path, one: OperatorDatabase, two: OperatorDatabase) -> None:
    for backend in other_toolchains(one, two):
        print(f"NOTE {path}: two versions of the compiler for {backend}; the later is named", file=sys.stderr)


def _drive(given: argparse.Namespace) -> int:
    name = given.path or str(given.ours)
    try:
        base = _version(given.base, f"{name} (the common version)") if given.base.stat().st_size else None
        ours, theirs = _version(given.ours, f"{name} (ours)"), _version(given.theirs, f"{name} (theirs)")
        save_text(given.ours, encode(join_from(base, ours, theirs)))
    except AotTuneError as error:
        fix = f"{error.fix}; `git checkout --ours {name}` or `--theirs` takes one"
        raise DatabaseError(f"{name} is not merged: {error.what}", why=error.why, fix=fix) from error
    return 0


def _version(path: Path, name: str) -> OperatorDatabase:
    """One version of a file. Git puts it into a temporary file, whose name means nothing to users."""
    try:
        return load_database(path, oldest=OLDEST_KNOWN)
    except DatabaseError as error:
        raise DatabaseError(error.what.replace(str(path), name), why=error.why, fix=error.fix) from error


def _diff(given: argparse.Namespace) -> int:
    before, after = (_by_place(load_tree(path, older=True, stores=True)) for path in (given.before, given.after))
    if not given.before.is_dir() and not given.after.is_dir() and before.keys() != after.keys():
        raise DatabaseError(
            f"{given.before} is of {next(iter(before))}, {given.after} of {next(iter(after))}",
            why="their times cannot be compared",
            fix="name two versions of the record of one operator and device",
        )
    difference = ChangedRecords(
        changed={str(path): changes(before[path], after[path]) for path in sorted(before.keys() & after.keys())},
        came=tuple(map(str, sorted(after.keys() - before.keys()))),
        went=tuple(map(str, sorted(before.keys() - after.keys()))),
    )
    if given.json:
        print(json_text(difference))
        return 0
    said = "".join(format_change(path, change, whole=given.all) for path, change in difference.changed.items())
    said += "".join(f"{path}\n  went\n" for path in difference.went)
    said += "".join(f"{path}\n  came\n" for path in difference.came)
    print(said or "the records say the same\n", end="")
    return 0


def _check(given: argparse.Namespace) -> int:
    databases = _trees(given.records, older=False)
    rendered_with = source_options(given) if given.render else None
    findings = list(_checked(databases, given.templates, given.workload, rendered_with))
    mistakes = sum(finding.wrong or given.strict for _, finding in findings)
    if given.json:
        told = [RecordFinding(record=where, what=f.what, fix=f.fix, wrong=f.wrong) for where, f in findings]
        print(json_text(CheckedRecords(records=len(databases), mistakes=mistakes, findings=tuple(told))))
        return 1 if mistakes else 0
    for where, finding in findings:
        if finding.wrong or not given.quiet:
            stream = sys.stderr if finding.wrong else sys.stdout
            print(f"{'' if finding.wrong else 'NOTE '}{where}: {finding.what}", file=stream)
            if finding.fix:
                print(f"  fix: {finding.fix}", file=stream)
    print(f"{counted(len(databases), 'record')}: {counted(mistakes, 'mistake') if mistakes else 'all is well'}")
    return 1 if mistakes else 0


def _prune(given: argparse.Namespace) -> int:
    tree = load_tree(given.records)
    pruned, notes = _no_more_given(tree, given.templates, source_options(given))
    changed = RecordTree()
    for path, (database, reasons) in pruned.items():
        if reasons or database != tree[path]:
            changed[path] = database
            print(f"{path}: {counted(len(tree[path].candidates) - len(database.candidates), 'candidate')} dropped")
            for reason, count in sorted(reasons.items()):
                print(f"  {count} {reason}")
    for note in notes:
        print(f"NOTE {note}", file=sys.stderr)
    if not changed:
        print("nothing to drop")
    if not given.dry_run:
        save_tree(changed)
    return 0


def _upgrade(given: argparse.Namespace) -> int:
    changed = save_tree(_trees(given.records, older=True))
    for path in changed:
        print(path)
    if not changed:
        print("all records are in the format of this version already", file=sys.stderr)
    return 0


def _show(given: argparse.Namespace) -> int:
    tree = list(load_tree(given.records, older=True, stores=True).values())
    if given.records.is_dir() and not (given.problems and len(tree) == 1):
        print(format_tree(tree), end="")
        return 0
    print(format_record(tree[0], problems=given.problems), end="")
    return 0


def _checked(
    tree: RecordTree, templates: Sequence[str], workload: Sequence[str], rendered_with: CompileSettings | None
) -> Iterator[tuple[str, Finding]]:
    """Everything that a check says of records, as pairs of a place and a finding.

    Args:
        tree: records that were read.
        templates: template roots; the bundled ones if empty.
        workload: files of problems, which replace the operators' own.
        rendered_with: how sources are compiled. With it all candidates are rendered; with None, none is.
    """
    roots = template_paths(roots_with_bundled(templates))
    operators = _operators(roots, tree)
    for path in without_digests(tree):
        yield str(path), Finding("it is of a schema without digests", "rewrite it with aot-tune records upgrade", False)
    for path, database in tree.items():
        yield from ((str(path), f) for f in (*check_record(database, operators), *check_sanitized(database)))
    stated = _with_workload(operators, roots, workload, tree)
    for path, database in tree.items():
        if database.operator in stated and database.contract == operator_digest(stated[database.operator]):
            yield from ((str(path), finding) for finding in check_settled(database, stated[database.operator], _SHAPES))
    yield from (("coverage", finding) for finding in check_coverage(list(tree.values()), stated))
    if rendered_with is None:
        return
    declared, render, left_out = _renderer(operators, roots, tree, rendered_with)
    if left_out:
        yield "render", Finding(left_out, wrong=False)
    for path, database in tree.items():
        if database.operator in declared:
            yield from ((str(path), finding) for finding in _sources(database, declared[database.operator], render))
            yield from ((str(path), finding) for finding in _of_other_calls(database, declared[database.operator]))


def _of_other_calls(database: OperatorDatabase, operator: Operator) -> Iterator[Finding]:
    """Regimes in which a library of this record would lose too much, and calls that its workload does not have."""
    from aot_tune.pipeline.records.lookup import evidence_as_recorded  # slow to import
    from aot_tune.pipeline.shipping.finish import MORE_SHAPES, selected, told_losses
    from aot_tune.pipeline.shipping.surveyed_shapes import ADD_PROBLEMS, told_gaps

    for target in _recorded_targets([database]) if database.survey else ():
        try:
            evidence = evidence_as_recorded(operator, target, database)
        except SpecError:  # a Triton function was not read, which another finding tells
            continue
        for line in told_losses(evidence, selected(evidence)[1]):
            yield Finding(f"calls on {target.name} that nobody measured, {line}", MORE_SHAPES)
        drawn = survey_shapes(operator, target.family, _SHAPES, tuned_kernels(operator, target))
        for line in told_gaps(evidence, drawn):
            yield Finding(f"calls on {target.name}, {line}", ADD_PROBLEMS, wrong=False)


def _no_more_given(
    tree: RecordTree, templates: Sequence[str], rendered_with: CompileSettings
) -> tuple[dict[Path, tuple[OperatorDatabase, Mapping[str, int]]], list[str]]:
    """Each record without what the tree no longer gives, the number dropped by reason, and notes on the undecided."""
    roots = template_paths(roots_with_bundled(templates))
    operators, notes = _operators(roots, tree), []
    declared, render, left_out = _renderer(operators, roots, tree, rendered_with)
    notes += [left_out] if left_out else []
    pruned: dict[Path, tuple[OperatorDatabase, Mapping[str, int]]] = {}
    for path, database in tree.items():
        operator = operators.get(database.operator)
        if operator is None:
            notes.append(f"{path} stays as it is: the tree has no operator {database.operator!r}")
            continue
        lost = gone(database, declared.get(database.operator, operator))
        # the tree has a kernel that was left out only because Triton is missing
        lost = {i: why for i, why in lost.items() if why != "kernel" or gone(database, operator).get(i) == why}
        sources, unknown = other_sources(database, operator, render)
        lost |= dict.fromkeys(sources, "")
        if unknown:
            notes.append(f"{path}: {len(unknown)} candidates of Triton functions that were not read stay")
        less = without_problems(without(database, lost.keys())) if lost else database
        pruned[path] = less, Counter(_REASONS[why] for why in lost.values())
    return pruned, notes


def _operators(roots: Sequence[Path], tree: RecordTree) -> dict[str, Operator]:
    """All operators of the user's own roots, and bundled ones that have records."""
    names = {f.name for f in operator_folders([r for r in roots if r != bundled_templates()])}
    bundled = {f.name for f in operator_folders([r for r in roots if r == bundled_templates()])}
    wanted = names | (bundled & {d.operator for d in tree.values()})
    return {name: operator for name, (_, operator) in load_operators(roots, sorted(wanted), ()).items()}


def _with_workload(
    operators: Mapping[str, Operator], roots: Sequence[Path], files: Sequence[str], tree: RecordTree
) -> dict[str, Operator]:
    """The operators, with the problems that files state and that a build would tune."""
    if not files:
        return dict(operators)
    mistakes = Mistakes()
    recorded = {name: [p for d in tree.values() if d.operator == name for p in d.problems] for name in operators}
    others = {f.name for f in operator_folders(roots)}
    stated = read_workload(files, ("", ""), operators, others, recorded, mistakes)
    mistakes.tell()
    families = sorted({d.device.family for d in tree.values()})
    return {name: stated.plan.stated_for(operator, families) for name, operator in operators.items()}


def _recorded_targets(databases: Iterable[OperatorDatabase]) -> list[Target]:
    targets = []
    for name in sorted({c.candidate.target for d in databases for c in d.candidates if not c.candidate.generic}):
        try:
            targets.append(target_by_name(name))
        except ToolchainError:  # this version no longer knows it
            continue
    return targets


def _renderer(
    operators: Mapping[str, Operator], roots: Sequence[Path], tree: RecordTree, settings: CompileSettings
) -> tuple[dict[str, Operator], Render, str]:
    """The operators with the declarations of their Triton functions, a renderer, and why functions are missing."""
    from aot_tune.pipeline.records.lookup import as_declared  # slow to import

    targets = _recorded_targets(tree.values())
    baselines = generic_targets(targets)
    families = sorted({t.family for t in (*baselines, *targets)})
    try:
        inspections, left_out = read_functions(operators, targets, baselines, roots, os.environ)
    except BuildError as error:
        inspections, left_out = {}, f"Triton functions are left out: {error.what}"
    declared = {name: with_declarations(op, inspections, families) for name, op in operators.items()}
    used = template_folders(k.backend for op in operators.values() for k in op.kernels)
    renderer = Renderer([*roots, *used], settings.by_backend())

    def render(operator: Operator, candidate: Candidate) -> str:
        kernels = {k.name for k in declared[operator.name].kernels}
        whole = declared[operator.name] if candidate.kernel in kernels else operator
        return renderer.render(whole, as_declared(whole, candidate), target_by_name(candidate.target)).digest

    return declared, render, left_out


def _sources(database: OperatorDatabase, operator: Operator, render: Render) -> Iterator[Finding]:
    """Candidates whose rendered source is not the recorded one."""
    others, unknown = other_sources(database, operator, render)
    measured = {m.candidate for m in database.measurements if m.status == "ok"}
    for kernel in sorted({c.candidate.kernel for c in database.candidates if c.id in others}):
        candidates = [c for c in database.candidates if c.id in others and c.candidate.kernel == kernel]
        first, now = candidates[0], others[candidates[0].id][:12] or "none"
        yield Finding(
            f"{len(candidates)} candidates of kernel {kernel} have another source than the recorded one, such as "
            f"{first.candidate.label}: recorded {first.source[:12]}, the template gives {now}",
            "measure again and record, or restore the template",
            wrong=any(c.id in measured for c in candidates),
        )
    if unknown:
        yield Finding(
            f"{len(unknown)} candidates of Triton functions that were not read are not compared",
            "install Triton",
            wrong=False,
        )
