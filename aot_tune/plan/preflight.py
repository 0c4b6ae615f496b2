"""What must be so before a build measures; each fault has its own message, before anything is compiled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aot_tune.bench.host.odd_problems import large_checks
from aot_tune.bench.protocol.measurement_records import Policy
from aot_tune.compile import families_of, native_targets, toolchain_for, toolchains
from aot_tune.compile.cuda.visible_gpus import check_ready, visible_devices
from aot_tune.database import OperatorDatabase, is_of
from aot_tune.spec import Operator, Target, all_of
from aot_tune.support.errors import BuildError, Mistakes, OptionError, ToolchainError, did_you_mean

__all__ = ["check_devices", "check_kernels", "check_machine", "check_measuring", "idle_kernels", "unchecked"]


def check_machine(machine: str) -> None:
    """Check what the C++ compiler compiles for, as it tells; a kernel's error would blame the kernel.

    Raises:
        ToolchainError: for a cross compiler, or one of a machine that there are no targets for.
    """
    if machine and not machine.startswith(("x86_64", "amd64")):
        raise ToolchainError(
            f"the C++ compiler is for {machine}",
            why="kernels for CPUs are compiled for x86-64, and run where they are compiled",
            fix="set CXX or CMAKE_CXX_COMPILER to a compiler for x86-64, and build there, without a toolchain file for "
            "another machine",
        )


def check_measuring(targets: Sequence[Target], toolkit: str, environment: Mapping[str, str]) -> list[str]:
    """Check GPU, driver and torch for the CUDA targets that have a device here; returns warnings.

    Args:
        toolkit: version of nvcc.

    Raises:
        ToolchainError: when candidates could not be measured, with the remedy.
    """
    native = {t.name for t in native_targets()}
    if not any(t.family == "cuda" and t.name in native for t in targets):
        return []
    warning = check_ready(toolkit, visible_devices(environment))
    return [warning] if warning else []


def check_devices(patterns: Iterable[str], databases: Sequence[OperatorDatabase]) -> None:
    """Check that each device whose records shall decide has some, where there are any.

    Raises:
        OptionError: naming the devices that there are records of.
    """
    names = sorted({d.device.name for d in databases})
    for pattern in patterns if databases else ():
        if not any(is_of(d.device, pattern) for d in databases):
            what = f"AOT_TUNE_DEVICE has {pattern!r}, of which there is no record"
            raise OptionError(what, fix=did_you_mean(pattern, names))


def idle_kernels(operators: Iterable[Operator], targets: Sequence[Target]) -> list[str]:
    """A line for each kernel that no problem of the workload meets the conditions of: it would never be tried."""
    found: list[str] = []
    for operator in operators:
        for kernel in operator.kernels:
            for family in sorted({t.family for t in targets} & families_of(toolchain_for(kernel.backend))):
                calls = [operator.facts(p) for p in operator.workload_for(family)]
                if calls and not any(all_of(kernel.requires, facts) for facts in calls):
                    wanted = " and ".join(c.key() for c in kernel.requires)
                    found.append(
                        f"kernel {operator.name}/{kernel.name} is tried on no problem: it requires {wanted}, and no "
                        f"problem of the workload for {family} is so"
                    )
    return found


def unchecked(operators: Iterable[Operator]) -> list[str]:
    """Lines about derived checks that are left out for their size, and about what there is none of."""
    most, lines = Policy().check_bytes, list[str]()
    for operator in operators:
        left, count = large_checks(operator, (), most)
        if not count:
            lines.append(
                f"operator {operator.name}: no derived problem is legal: its kernels are verified on its workload and "
                "checks alone; declare `checks` of odd sizes"
            )
            continue
        own = {k.name: large_checks(operator, k.requires, most) for k in operator.kernels if not k.generic}
        never = [name for name, (_, all_of_it) in own.items() if not all_of_it]
        if never:
            lines.append(
                f"operator {operator.name}: no derived problem meets what {', '.join(never)} require"
                f"{'s' * (len(never) == 1)}: verified on the workload alone; declare `checks` that do"
            )
        others = sorted((k for k, (n, _) in own.items() if n > left), key=lambda k: (-own[k][0], k))
        if left or others:
            worst = f", of those for {others[0]} {own[others[0]][0]} of {own[others[0]][1]}" if others else ""
            lines.append(
                f"operator {operator.name}: {left} of {count} derived checks are left out{worst}: they take more than "
                f"{most >> 20} MiB"
            )
    return lines


def check_kernels(operators: Mapping[str, Operator]) -> None:
    """Raise for kernels of a backend that there is not."""
    mistakes = Mistakes()
    for operator in operators.values():
        for kernel in operator.kernels:
            with mistakes.gather():
                if kernel.backend not in toolchains():
                    raise BuildError(
                        f"operator {operator.name!r}: kernel {kernel.name!r}: there is no backend {kernel.backend!r}",
                        fix=did_you_mean(kernel.backend, toolchains()),
                    )
    mistakes.tell()
