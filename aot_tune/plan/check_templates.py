"""What a build reads and renders before it compiles anything: Triton functions, and one config of every kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from aot_tune.compile import families_of, toolchain_for
from aot_tune.plan.eight_bit_targets import check_instructions, generic_dtypes
from aot_tune.render import Candidate, Renderer, candidate_for, candidates_for, generic_candidates, resolved
from aot_tune.spec import ConfigValue, Kernel, Operator, Target
from aot_tune.support.errors import Mistakes, SpecError
from aot_tune.triton.read_declarations import Inspections, read_functions, with_declarations

__all__ = ["Sources", "read_and_render"]


class Sources(NamedTuple):
    """Where sources are read: template roots and the environment. `imported` collects imported modules."""

    roots: tuple[Path, ...]
    environment: Mapping[str, str]
    imported: set[str]


def read_and_render(
    operators: Mapping[str, Operator],
    mode: str,
    wanted: Sequence[Target],
    baselines: Sequence[Target],
    sources: Sources,
    mistakes: Mistakes,
) -> tuple[dict[str, Operator], Inspections, str]:
    """The operators with the declarations of their Triton functions, these declarations, and why any are missing.

    One config of every kernel is rendered, also in the mode `generic`, which does not use most of them. Otherwise
    somebody else would meet an error in their templates. The mode `compile` renders all of them later.
    """
    families = sorted({t.family for t in (*baselines, *wanted)})
    found: Inspections = {}
    left_out, whole = "", dict(operators)  # if functions cannot be read, operators are checked as they are
    with mistakes.gather():
        found, left_out = read_functions(
            operators, wanted, baselines, sources.roots, sources.environment, sources.imported
        )
        whole = {name: with_declarations(op, found, families) for name, op in operators.items()}
    with mistakes.gather():
        if mode != "compile":
            _check_spaces(whole, wanted, baselines, sources.roots)
    with mistakes.gather():
        check_instructions(whole, wanted if mode != "generic" else (), wanted)
    if mode != "generic":
        return whole, found, left_out
    shipped = {t.name for t in baselines}
    kept = {name: {t: d for t, d in known.items() if t in shipped} for name, known in found.items()}
    kept = {name: known for name, known in kept.items() if known}
    return {name: with_declarations(op, kept, families) for name, op in operators.items()}, kept, ""


def _check_spaces(
    operators: Mapping[str, Operator], targets: Sequence[Target], baselines: Sequence[Target], roots: Sequence[Path]
) -> None:
    """Render one config of every kernel and target, so that mistakes in templates show before anything is compiled."""
    renderer, mistakes = Renderer(roots), Mistakes()
    for operator in operators.values():
        for kernel in operator.kernels:
            served = families_of(toolchain_for(kernel.backend))
            for target in (t for t in (baselines if kernel.generic else targets) if t.family in served):
                if kernel.triton is not None and target.name not in kernel.triton.inspections:
                    continue  # its constraints exclude the target
                if kernel.generic and not generic_dtypes(operator, kernel, target):
                    continue  # it belongs to another baseline
                with mistakes.gather():
                    _render_one(renderer, operator, resolved(kernel, target.name), target)
    mistakes.tell()


def _render_one(renderer: Renderer, operator: Operator, kernel: Kernel, target: Target) -> None:
    try:
        config = next(kernel.configs(target.facts), None)
    except SpecError as error:  # of a constraint
        what = f"operator {operator.name!r}: kernel {kernel.name!r}: {error.what}"
        raise SpecError(what, why=error.why, fix=error.fix) from error
    candidate = _any_candidate(operator, kernel, config, target) if config is not None else None
    if candidate is not None:
        renderer.render(operator, candidate, target)


def _any_candidate(
    operator: Operator, kernel: Kernel, config: dict[str, ConfigValue], target: Target
) -> Candidate | None:
    """A candidate of a config; None if a Triton function serves no problem of the target's devices."""
    if kernel.triton is None:
        problem = next(iter(operator.workload_for(target.family)), None)
        return candidate_for(operator, kernel, config, target, problem)
    if kernel.generic:
        dtypes = generic_dtypes(operator, kernel, target)[0]
        return generic_candidates(operator, kernel, config, target, dtypes)[0]
    return next(candidates_for(operator, kernel, config, target), None)
