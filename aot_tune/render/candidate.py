"""A candidate: one config of a kernel, for a target, with the dims that it is specialised on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

import msgspec

from aot_tune.render.triton.specialize import (
    generic_pins,
    grid_limits,
    guards,
    is_pruned,
    pinned_form,
    plain_pins,
    specialized_pins,
)
from aot_tune.spec import ConfigValue, Expr, Kernel, Operator, Problem, Target, all_of, dim, dtype_index
from aot_tune.spec.calls import is_of_combination
from aot_tune.spec.kernel import requires_of, worthwhile_of
from aot_tune.support.digests import canonical_digest


class Candidate(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Identity of what is rendered and compiled; `pins` are dims that are constants in it, `dtypes` its choices."""

    operator: str
    kernel: str
    backend: str
    target: str
    config: dict[str, ConfigValue] = {}
    pins: dict[str, int] = {}
    generic: bool = False
    dtypes: dict[str, str] = {}

    @cached_property
    def id(self) -> str:
        """16 hex digits, stable across processes and machines."""
        return canonical_digest(self)[:16]

    @property
    def name(self) -> str:
        """For people, unique in an operator: its kernel and the beginning of its id."""
        return f"{self.kernel}_{self.id[:8]}"

    @property
    def label(self) -> str:
        """Kernel and config for people: `packed MR=6 NR=16`."""
        values = [f"{k}={int(v) if isinstance(v, bool) else v}" for k, v in self.config.items()]
        pins = [_shown(d, n) for d, n in self.pins.items()]
        pins = [p for p in pins if p]
        divisible = sum(d.endswith("%16") for d in self.pins)
        pins += [f"divisible={divisible}"] if divisible else []
        return " ".join([self.kernel, *self.dtypes.values(), *values, *pins])


def candidate_for(
    operator: Operator,
    kernel: Kernel,
    config: dict[str, ConfigValue],
    target: Target,
    problem: Problem | None = None,
    dtypes: Mapping[str, str] | None = None,
) -> Candidate:
    """The candidate of a config for a target; where the config pins dims, they are those of `problem`.

    A Triton function's is the one without assumptions. `dtypes` are values of the operator's dtype variables; the first
    that the kernel serves where they are not given.
    """
    chosen = dict(dtypes) if dtypes is not None else operator.dtype_choices(kernel)[0]
    pins: dict[str, int] = {}
    for parameter, pinned in kernel.pins.items():
        if config.get(parameter) and problem is not None:
            pins |= {name: problem.dims[name] for name in pinned}
    if kernel.triton is not None:
        concrete = operator.concrete(chosen)
        pins = (
            generic_pins(concrete, kernel, config, target.name, chosen)[0]
            if problem is None
            else plain_pins(concrete, kernel, config, problem, target.name)
        )
    return _candidate(operator, kernel, config, target, pins, chosen)


def generic_candidates(
    operator: Operator, kernel: Kernel, config: dict[str, ConfigValue], target: Target, dtypes: Mapping[str, str]
) -> list[Candidate]:
    """The candidates of a generic kernel with some dtypes, which answer every legal call together.

    That is one, but of a Triton function one for each combination of optional tensors and attributes that it has as
    constants.
    """
    if kernel.triton is None:
        return [candidate_for(operator, kernel, config, target, dtypes=dtypes)]
    sets = generic_pins(operator.concrete(dtypes), kernel, config, target.name, dtypes)
    return [_candidate(operator, kernel, config, target, pins, dict(dtypes)) for pins in sets]


def candidates_for(
    operator: Operator, kernel: Kernel, config: dict[str, ConfigValue], target: Target
) -> Iterator[Candidate]:
    """All candidates of a config: one per dtypes, and per set of problems that it is specialised on.

    Those of a Triton function come in twos: as its JIT would compile it for a problem, and without those assumptions.
    """
    workload = operator.workload_for(target.family)
    pinned = any(config.get(p) for p in kernel.pins) or kernel.triton is not None
    for dtypes in operator.dtype_choices(kernel):
        for problem in workload if pinned else workload[:1]:
            if kernel.triton is None:
                yield candidate_for(operator, kernel, config, target, problem, dtypes)
            elif _is_for(operator, kernel, config, target, problem, dtypes):
                concrete = operator.concrete(dtypes)
                pins = specialized_pins(concrete, kernel, config, problem, target.name)
                yield _candidate(operator, kernel, config, target, pins, dtypes)
                yield candidate_for(operator, kernel, config, target, problem, dtypes)


def _is_for(
    operator: Operator,
    kernel: Kernel,
    config: dict[str, ConfigValue],
    target: Target,
    problem: Problem,
    dtypes: dict[str, str],
) -> bool:
    if any(problem.dtypes.get(v, operator.dtypes[v][0]) != d for v, d in dtypes.items()):
        return False
    stated = (*requires_of(kernel, config), *worthwhile_of(kernel, config))
    wanted = all_of(stated, operator.facts(problem))
    return wanted and not is_pruned(kernel, target.name, config, problem)


def _candidate(
    operator: Operator,
    kernel: Kernel,
    config: dict[str, ConfigValue],
    target: Target,
    pins: dict[str, int],
    dtypes: dict[str, str],
) -> Candidate:
    return Candidate(
        operator=operator.name,
        kernel=kernel.name,
        backend=kernel.backend,
        target=target.name,
        config=config,
        pins=dict(sorted(pins.items())),
        generic=kernel.generic,
        dtypes=dict(dtypes),
    )


def requirements(operator: Operator, candidate: Candidate) -> tuple[Expr, ...]:
    """The guards of a candidate: its dtypes, its kernel's, and that pinned dims have their values."""
    dtypes = tuple(dtype_index(v) == operator.dtypes[v].index(d) for v, d in candidate.dtypes.items())
    kernel = operator.kernel(candidate.kernel)
    required = requires_of(kernel, candidate.config)
    if kernel.triton is not None:
        concrete = operator.concrete(candidate.dtypes)
        assumed = guards(concrete, kernel, candidate.config, candidate.pins, candidate.target)
        if candidate.generic:
            assumed = tuple(pinned_form(operator, guard) for guard in assumed)
        limits = grid_limits(concrete, kernel, candidate.config, candidate.pins, candidate.target)
        return (*dtypes, *required, *assumed, *limits)
    pins = tuple(dim(name) == extent for name, extent in candidate.pins.items())
    return (*dtypes, *required, *pins)


def combination(requires: Iterable[Expr]) -> tuple[Expr, ...]:
    """Of what a generic candidate requires that which tells it from its kernel's others: all else, legal calls meet."""
    about = {r.key(): r for r in requires if is_of_combination(r)}
    return tuple(r for r in about.values() if not all(f.startswith("dtype.") for f in r.facts()))


def assumes_less(plain: Candidate, special: Candidate) -> bool:
    """Whether two candidates of a Triton function are of one config, and the first is right wherever the second is."""
    if plain.config != special.config or plain.dtypes != special.dtypes:
        return False  # as most are that are asked about
    one, other = (msgspec.structs.replace(c, pins={}) for c in (plain, special))
    fewer, more = ({(n, v) for n, v in c.pins.items() if not n.endswith(".bits")} for c in (plain, special))
    return one == other and fewer < more


def _shown(name: str, value: int) -> str:
    """A pin for people; see `render.triton.specialize`."""
    if name.endswith(("%16", ".bits", ".range")):
        return ""
    name = name.removeprefix("option.")
    if name.endswith(".none"):
        return f"no {name.removesuffix('.none')}" if value else ""
    return f"{name}:={value}"
