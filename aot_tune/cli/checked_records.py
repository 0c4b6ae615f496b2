"""Compares records with the operators of a tree: what `records check` tells and `records prune` drops."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from aot_tune.compile import generic_targets, target_by_name
from aot_tune.database import OperatorDatabase, operator_digest, without
from aot_tune.database.checks import (
    Finding,
    Render,
    check_coverage,
    check_record,
    check_settled,
    gone,
    other_sources,
    without_problems,
)
from aot_tune.database.files import RecordTree, without_digests
from aot_tune.plan.compile_settings import CompileSettings
from aot_tune.plan.workload_files import read_workload
from aot_tune.render import Candidate, Renderer
from aot_tune.spec import Operator, Target
from aot_tune.spec.load_operators import bundled_templates, load_operators, operator_folders, roots_with_bundled
from aot_tune.support.errors import BuildError, Mistakes, ToolchainError
from aot_tune.triton.read_declarations import read_functions, with_declarations

__all__ = ["checked", "no_more_given"]

_SHAPES = 200
"""How many shapes of each kind of calls a survey has by default."""
_REASONS = {"kernel": "of kernels that are gone", "config": "are no configs of their kernels", "": "of other sources"}


def checked(
    tree: RecordTree, templates: Sequence[str], workload: Sequence[str], rendered_with: CompileSettings | None
) -> Iterator[tuple[str, Finding]]:
    """Everything that a check says of records, as pairs of a place and a finding.

    Args:
        tree: records that were read.
        templates: template roots; the bundled ones if empty.
        workload: files of problems, which replace the operators' own.
        rendered_with: how sources are compiled. With it all candidates are rendered; with None, none is.
    """
    roots = _roots(templates)
    operators = _operators(roots, tree)
    for path in without_digests(tree):
        yield str(path), Finding("it is of a schema without digests", "rewrite it with aot-tune records upgrade", False)
    for path, database in tree.items():
        yield from ((str(path), one) for one in check_record(database, operators))
    stated = _with_workload(operators, roots, workload, tree)
    for path, database in tree.items():
        if database.operator in stated and database.contract == operator_digest(stated[database.operator]):
            yield from ((str(path), one) for one in check_settled(database, stated[database.operator], _SHAPES))
    yield from (("coverage", one) for one in check_coverage(list(tree.values()), stated))
    if rendered_with is None:
        return
    known, render, left_out = _renderer(operators, roots, tree, rendered_with)
    if left_out:
        yield "render", Finding(left_out, wrong=False)
    for path, database in tree.items():
        if database.operator in known:
            yield from ((str(path), one) for one in _sources(database, known[database.operator], render))


def no_more_given(
    tree: RecordTree, templates: Sequence[str], rendered_with: CompileSettings
) -> tuple[dict[Path, tuple[OperatorDatabase, Mapping[str, int]]], list[str]]:
    """Each record without what the tree no longer gives, the number dropped for each reason, and notes.

    A note says what could not be decided.
    """
    roots = _roots(templates)
    operators, notes = _operators(roots, tree), []
    known, render, left_out = _renderer(operators, roots, tree, rendered_with)
    notes += [left_out] if left_out else []
    found: dict[Path, tuple[OperatorDatabase, Mapping[str, int]]] = {}
    for path, database in tree.items():
        operator = operators.get(database.operator)
        if operator is None:
            notes.append(f"{path} stays as it is: the tree has no operator {database.operator!r}")
            continue
        lost = gone(database, known.get(database.operator, operator))
        # the tree has a kernel that was left out only because Triton is missing
        lost = {i: why for i, why in lost.items() if why != "kernel" or gone(database, operator).get(i) == why}
        sources, unknown = other_sources(database, operator, render)
        lost |= dict.fromkeys(sources, "")
        if unknown:
            notes.append(f"{path}: {len(unknown)} candidates of Triton functions that were not read stay")
        less = without_problems(without(database, lost.keys())) if lost else database
        found[path] = less, Counter(_REASONS[why] for why in lost.values())
    return found, notes


def _roots(templates: Sequence[str]) -> list[Path]:
    return [bundled_templates() if t == "bundled" else Path(t) for t in roots_with_bundled(templates)]


def _operators(roots: Sequence[Path], tree: RecordTree) -> dict[str, Operator]:
    """The operators of the tree: all of the user's own roots, and those bundled ones that have records.

    If there are no roots of the user, all bundled operators.
    """
    own = {f.name for f in operator_folders([r for r in roots if r != bundled_templates()])}
    bundled = {f.name for f in operator_folders([r for r in roots if r == bundled_templates()])}
    wanted = own | (bundled & {d.operator for d in tree.values()} if own else bundled)
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


def _targets(tree: RecordTree) -> list[Target]:
    found = []
    for name in sorted({c.candidate.target for d in tree.values() for c in d.candidates if not c.candidate.generic}):
        try:
            found.append(target_by_name(name))
        except ToolchainError:  # this version no longer knows it
            continue
    return found


def _renderer(
    operators: Mapping[str, Operator], roots: Sequence[Path], tree: RecordTree, settings: CompileSettings
) -> tuple[dict[str, Operator], Render, str]:
    """The operators with the declarations of their Triton functions, a renderer, and why functions are missing."""
    from aot_tune.pipeline.records.recorded_candidates import as_declared  # slow to import

    targets = _targets(tree)
    baselines = generic_targets(targets)
    families = sorted({t.family for t in (*baselines, *targets)})
    try:
        found, left_out = read_functions(operators, targets, baselines, roots, os.environ)
    except BuildError as error:
        found, left_out = {}, f"Triton functions are left out: {error.what}"
    known = {name: with_declarations(one, found, families) for name, one in operators.items()}
    renderer = Renderer(roots, settings.by_backend())

    def render(operator: Operator, candidate: Candidate) -> str:
        kernels = {k.name for k in known[operator.name].kernels}
        whole = known[operator.name] if candidate.kernel in kernels else operator
        return renderer.render(whole, as_declared(whole, candidate), target_by_name(candidate.target)).digest

    return known, render, left_out


def _sources(database: OperatorDatabase, operator: Operator, render: Render) -> Iterator[Finding]:
    """Candidates whose rendered source is not the recorded one."""
    others, unknown = other_sources(database, operator, render)
    measured = {m.candidate for m in database.measurements if m.status == "ok"}
    for kernel in sorted({c.candidate.kernel for c in database.candidates if c.id in others}):
        own = [c for c in database.candidates if c.id in others and c.candidate.kernel == kernel]
        first, now = own[0], others[own[0].id][:12] or "none"
        yield Finding(
            f"{len(own)} candidates of kernel {kernel} have another source than the recorded one, such as "
            f"{first.candidate.label}: recorded {first.source[:12]}, the template gives {now}",
            "measure again and record, or restore the template",
            wrong=any(c.id in measured for c in own),
        )
    if unknown:
        yield Finding(
            f"{len(unknown)} candidates of Triton functions that were not read are not compared",
            "install Triton",
            wrong=False,
        )
