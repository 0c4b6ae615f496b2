"""The targets of a build: by name, by family, or those that this machine and the records have; and what 8 bits need."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.compile import native_targets, target_by_name, toolchains
from aot_tune.compile.device_targets import BASELINE, EIGHT_BIT_BASELINE
from aot_tune.database import OperatorDatabase
from aot_tune.plan.options import Options
from aot_tune.render.triton.binding import resolved
from aot_tune.spec import Buffer, Kernel, Operator, Target
from aot_tune.support.errors import BuildError, Mistakes, OptionError

_WHY = (
    f"GPUs convert f8e4m3 in instructions from sm_{EIGHT_BIT_BASELINE.level} on, and Triton has no code for older GPUs"
)

_OLDER, _BESIDE = "cpu-x86-64-v3", 4
"""The target for older CPUs. It is tuned too if the CPU's own target has at least this level."""


def generic_dtypes(operator: Operator, kernel: Kernel, baseline: Target) -> list[dict[str, str]]:
    """The dtypes for which a generic kernel is compiled for a baseline."""
    every = operator.dtype_choices(kernel)
    if baseline.family != "cuda":
        return every
    return [d for d in every if (EIGHT_BIT_BASELINE if _needs(operator, kernel, d) else BASELINE) == baseline]


def eight_bit_baselines(operators: Iterable[Operator], wanted: Sequence[Target]) -> tuple[Target, ...]:
    """The baseline of generic kernels that need instructions for f8e4m3, if the target's devices can run it."""
    needed = any(_needs(op, k, d) for op in operators for k in op.generics for d in op.dtype_choices(k))
    return (EIGHT_BIT_BASELINE,) if needed and any(map(EIGHT_BIT_BASELINE.meets, wanted)) else ()


def check_instructions(operators: Mapping[str, Operator], targets: Sequence[Target], wanted: Sequence[Target]) -> None:
    """Check that Triton kernels with f8e4m3 tensors are only for targets whose GPUs have instructions for it.

    Args:
        targets: the targets that kernels are tuned for.
        wanted: the targets of the library. Its generic kernels run on their devices.

    Raises:
        BuildError: naming the kernels, the targets and what to do.
    """
    mistakes = Mistakes()
    gpus = [t for t in wanted if t.family == "cuda"]
    able = any(map(EIGHT_BIT_BASELINE.meets, gpus))
    lacking = [t for t in targets if t.family == "cuda" and t.level < EIGHT_BIT_BASELINE.level]
    for operator in operators.values():
        for kernel in operator.kernels:
            if not any(_needs(operator, kernel, d) for d in operator.dtype_choices(kernel)):
                continue
            generic = [] if able else gpus
            old = generic if kernel.generic else [t for t in lacking if _is_for(kernel, t)]
            if old:
                mistakes.add(_too_old(operator, kernel, old))
    mistakes.tell()


def _too_old(operator: Operator, kernel: Kernel, old: Sequence[Target]) -> BuildError:
    names = " and ".join(t.name for t in old)
    leave = f"leave {names} out of AOT_TUNE_TARGETS"
    constraint = f'give it the constraint target("capability") >= {EIGHT_BIT_BASELINE.level}'
    template = "write the generic kernel as a CUDA template, which has code for such GPUs"
    return BuildError(
        f"operator {operator.name!r}: kernel {kernel.name!r}: {names} cannot have Triton kernels with f8e4m3 tensors",
        why=_WHY,
        fix=f"{leave}, or {template if kernel.generic else constraint}",
    )


def _needs(operator: Operator, kernel: Kernel, dtypes: Mapping[str, str]) -> bool:
    """Whether a kernel uses f8e4m3 in a way that needs instructions for it."""
    if kernel.triton is None:
        return False
    passed = (a for f in kernel.triton_functions for a in f.arguments.values())
    buffers = [a.dtype_name for a in passed if isinstance(a, Buffer)]
    return "f8e4m3" in (*(t.dtype_name for t in operator.concrete(dtypes).tensors), *buffers)


def _is_for(kernel: Kernel, target: Target) -> bool:
    """Whether the kernel has a config for the target. Its constraints may restrict it to newer ones."""
    if not kernel.was_read(target.name):
        return False
    return next(resolved(kernel, target.name).configs(target.facts), None) is not None


class Wanted(NamedTuple):
    """The targets of a build. `older` is the target for older CPUs, which gets only a short turn; None without one."""

    targets: list[Target]
    older: Target | None


def _targets_for(
    options: Options, recorded: Sequence[OperatorDatabase], best: Sequence[Target] | None = None
) -> list[Target]:
    """The targets that the options ask for. `best` are those of the devices; the default is this machine's."""
    if options.mode == "replay" and not recorded:
        raise BuildError(
            "AOT_TUNE_MODE=replay, but the database is empty",
            why="replay measures nothing: it needs the records of a build on the device",
            fix="run `aot-tune records export --library NAME tuning` after a build on the device, commit it and "
            "name it as DATABASE of aot_tune_add_library; or use another mode",
        )
    if options.targets == ("native",) and options.replays:
        names = sorted({c.candidate.target for d in recorded for c in d.candidates if not c.candidate.generic})
        return [target_by_name(n) for n in names]
    wanted: list[Target] = []
    for name in options.targets:
        for target in targets_named(name, best):
            if target not in wanted:
                wanted.append(target)
    return in_order(wanted)


def in_order(targets: Iterable[Target]) -> list[Target]:
    """Targets by family and level."""
    return sorted(targets, key=lambda t: (t.family, t.level, t.name))


def apart(
    options: Options, recorded: Sequence[OperatorDatabase], *, may_measure: bool, best: Sequence[Target] | None = None
) -> Wanted:
    """The targets that the options ask for. The one for older CPUs is separate, or is added if it is tuned too.

    It comes only with `native`. If the user names targets, exactly these are tuned, each in full. A build that measures
    nothing has it if records have it.
    """
    targets = _targets_for(options, recorded, best)
    newest = max((t.level for t in targets if t.on_host), default=0)
    if options.targets != ("native",) or options.mode in ("generic", "compile") or newest < _BESIDE:
        return Wanted(targets, None)
    older = target_by_name(_OLDER)
    there = (may_measure and not options.replays) or any(older.name in d.targets for d in recorded)
    return Wanted([t for t in targets if t != older], older if options.older_cpus and there else None)


def best_here() -> list[Target]:
    """The best target of each family that this machine has devices of."""
    return list({t.family: t for t in native_targets()}.values())  # the last of a family is its best


def targets_named(name: str, best: Sequence[Target] | None = None) -> list[Target]:
    """The targets that a name stands for: `native` is the `best` of all devices, a family is the best of its devices.

    Without `best`, the best targets of this machine count, one for each family.
    """
    targets = best_here() if best is None else best
    if name == "native":
        return list(targets)
    if best_of_family := [t for t in targets if t.family == name]:
        return best_of_family
    of_family = [t.name for chain in toolchains().values() for t in chain.targets() if t.family == name]
    if of_family:
        where = "this machine" if best is None else "neither this machine nor the cluster"
        raise OptionError(
            f"AOT_TUNE_TARGETS={name!r}: {where} has {'no' if best is None else 'a'} device of that family",
            fix=f"name a target such as {of_family[-1]}; `aot-tune doctor` shows what is here",
        )
    return [target_by_name(name)]


def is_run_by(device: Device, target: Target, native: Collection[str], baselines: Collection[Target]) -> bool:
    """Whether a device of this machine runs a target. `native` are the machine's own targets.

    A CPU runs all native targets. A GPU's own targets are those of its generation. It also runs baselines of generic
    variants.
    """
    if device.family != target.family:
        return False
    capability = device.identity.get("capability")
    if capability is None:
        return target.name in native
    return (target.name in native or target in baselines) and target.runs_on(int(capability))
