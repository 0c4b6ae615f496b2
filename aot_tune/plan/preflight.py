"""Where a build may measure, and what must hold before. Each fault has its own message, before anything is compiled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Protocol

from aot_tune.bench.devices.family import family
from aot_tune.bench.host.odd_problems import large_checks
from aot_tune.bench.protocol.measurement_records import Device, Policy
from aot_tune.compile import families_of, native_targets, toolchain_for, toolchains
from aot_tune.compile.visible_gpus import check_ready, visible_devices
from aot_tune.database import OperatorDatabase, is_of
from aot_tune.plan.stated_workloads import is_served
from aot_tune.spec import Operator, Target
from aot_tune.spec.kernel import guard_sets, may_serve
from aot_tune.support.errors import BuildError, Mistakes, OptionError, ToolchainError, did_you_mean, tell_all
from aot_tune.support.limits import size_text

__all__ = [
    "Machines",
    "ThisMachine",
    "check_answers",
    "check_backends",
    "check_devices",
    "check_epoch",
    "check_filter",
    "check_kernels",
    "check_machine",
    "check_measuring",
    "check_memory",
    "device_families",
    "devices",
    "idle_kernels",
    "unchecked",
]


def check_machine(machine: str) -> None:
    """Check which machine the C++ compiler compiles for. Otherwise a kernel's error would blame the kernel.

    Raises:
        ToolchainError: for a cross compiler, or a compiler for a machine without targets.
    """
    if machine and not machine.startswith(("x86_64", "amd64")):
        raise ToolchainError(
            f"the C++ compiler is for {machine}",
            why="kernels for CPUs are compiled for x86-64, and run on the machine that compiles them",
            fix="set CXX or CMAKE_CXX_COMPILER to a compiler for x86-64, and build there, without a toolchain file for "
            "another machine",
        )


def check_epoch(environment: Mapping[str, str]) -> None:
    """Check the date that reproducible builds give their files. Others would read it only after the tuning.

    Raises:
        OptionError: when it is not a count of seconds.
    """
    epoch = environment.get("SOURCE_DATE_EPOCH", "")
    if epoch and not (epoch.isascii() and epoch.isdigit()):
        raise OptionError(
            f"SOURCE_DATE_EPOCH={epoch!r} is not a count of seconds",
            why="it is the date of the wheel's files, counted from 1970",
            fix="set it to a whole number, such as the output of `git log -1 --format=%ct`, or unset it",
        )


def check_measuring(targets: Sequence[Target], toolkit: str, environment: Mapping[str, str] | None) -> list[str]:
    """Check GPU, driver and torch, if a CUDA target has a device here. Returns warnings.

    Args:
        toolkit: version of nvcc.
        environment: says which GPUs are visible; None means this process's environment.

    Raises:
        ToolchainError: when candidates could not be measured. It says what to do.
    """
    if not any(t.family == "cuda" for t in targets):
        return []
    warning = check_ready(toolkit, visible_devices(environment))
    return [warning] if warning else []


def check_devices(patterns: Iterable[str], databases: Sequence[OperatorDatabase]) -> None:
    """Check that there are records for each device whose records shall decide, if there are any records.

    Raises:
        OptionError: naming the devices that have records.
    """
    names = sorted({d.device.name for d in databases})
    for pattern in patterns if databases else ():
        if not any(is_of(d.device, pattern) for d in databases):
            what = f"AOT_TUNE_DEVICE has {pattern!r}, and there is no record of it"
            raise OptionError(what, fix=did_you_mean(pattern, names))


def check_memory(
    operators: Iterable[Operator],
    pattern: str,
    targets: Sequence[Target],
    devices: Sequence[Device],
    places: Mapping[tuple[str, str], str],
) -> None:
    """Check that the tensors of each problem fit into the memory of the device that would measure it.

    Args:
        pattern: of the kernels that are tuned. An operator without such a kernel is not measured.
        places: by operator and problem id, the file and line that state a problem.

    Raises:
        BuildError: naming all problems that do not fit.
    """
    named = [op for op in operators if any(fnmatchcase(f"{op.name}/{k.name}", pattern) for k in op.kernels)]
    mistakes = Mistakes()
    first = {d.family: d for d in reversed(devices)}
    for device in (first[f] for f in sorted(first.keys() & {t.family for t in targets})):
        memory = family(device.family).memory_of(device)
        sizes = ((op, p, op.tensor_bytes(p)) for op in named for p in op.workload_for(device.family))
        for operator, problem, size in sizes:
            if memory is not None and size > memory and is_served(operator, problem, device.family):
                where = places.get((operator.name, problem.id), "")
                mistakes.add(
                    BuildError(
                        f"{where and f'{where}: '}operator {operator.name!r}: problem '{problem.id}' needs "
                        f"{size_text(size)} for its tensors",
                        why=f"{device.name} has {size_text(memory)}",
                        fix="leave the problem out of the workload, or the target out of AOT_TUNE_TARGETS, or take a "
                        "device with more memory",
                    )
                )
    mistakes.tell()


def idle_kernels(operators: Iterable[Operator], targets: Sequence[Target]) -> list[str]:
    """A line for each kernel whose conditions hold on no problem of the workload: it would never be tried."""
    lines: list[str] = []
    for operator in operators:
        for kernel in operator.kernels:
            for devices in sorted({t.family for t in targets} & families_of(toolchain_for(kernel.backend))):
                calls = [operator.facts(p) for p in operator.workload_for(devices)]
                if calls and not any(may_serve(kernel, facts) for facts in calls):
                    wanted = " and ".join(c.key() for c in kernel.requires)
                    lines.append(
                        f"kernel {operator.name}/{kernel.name} is tried on no problem: it requires {wanted}, and no "
                        f"problem of the workload for {devices} meets that"
                    )
    return lines


def unchecked(operators: Iterable[Operator], targets: Sequence[Target]) -> list[str]:
    """Lines about derived checks that are left out because of their size, and about kernels for targets without any."""
    most, lines = Policy().check_bytes, list[str]()
    families = {t.family for t in targets}
    for operator in operators:
        left, count = large_checks(operator, (), most)
        if not count:
            lines.append(
                f"operator {operator.name}: no derived problem is legal: its kernels are verified only on its workload "
                "and checks; declare `checks` of odd sizes"
            )
            continue
        tried = [k for k in operator.kernels if not k.generic and families & families_of(toolchain_for(k.backend))]
        guards = {k.name: {tuple(g.key() for g in group): group for group in guard_sets(k)} for k in tried}
        every = {key: group for sets in guards.values() for key, group in sets.items()}  # many kernels share some
        counts = {key: large_checks(operator, group, most) for key, group in every.items()}
        large = {name: max(map(counts.__getitem__, sets), key=lambda pair: pair[1]) for name, sets in guards.items()}
        never = [name for name, (_, all_of_it) in large.items() if not all_of_it]
        if never:
            lines.append(
                f"operator {operator.name}: no derived problem meets what {', '.join(never)} require"
                f"{'s' * (len(never) == 1)}: verified only on the workload; declare `checks` that do"
            )
        others = sorted((k for k, (n, _) in large.items() if n > left), key=lambda k: (-large[k][0], k))
        if left or others:
            worst = f", of those for {others[0]} {large[others[0]][0]} of {large[others[0]][1]}" if others else ""
            lines.append(
                f"operator {operator.name}: {left} of {count} derived checks are left out{worst}: they take more than "
                f"{most >> 20} MiB"
            )
    return lines


def check_kernels(operators: Mapping[str, Operator]) -> None:
    """Raise for kernels whose backend does not exist."""
    tell_all(
        BuildError(
            f"operator {operator.name!r}: kernel {kernel.name!r}: there is no backend {kernel.backend!r}",
            fix=did_you_mean(kernel.backend, toolchains()),
        )
        for operator in operators.values()
        for kernel in operator.kernels
        if kernel.backend not in toolchains()
    )


def check_backends(exclude: Sequence[str]) -> None:
    """Raise for names in AOT_TUNE_EXCLUDE_BACKENDS that are not backends."""
    backends = sorted(toolchains())
    for name in exclude:
        if name not in backends:
            raise OptionError(
                f"AOT_TUNE_EXCLUDE_BACKENDS has {name!r}, which is not a backend", fix=did_you_mean(name, backends)
            )


def check_filter(pattern: str, operators: Mapping[str, Operator]) -> None:
    """Raise if AOT_TUNE_FILTER matches no kernel of a library that has kernels to tune."""
    names = [f"{op.name}/{k.name}" for op in operators.values() for k in op.kernels if not k.generic]
    choices = {*names, *(f"{name.partition('/')[0]}/*" for name in names)}
    if names and not any(fnmatchcase(name, pattern) for name in names):
        raise OptionError(f"AOT_TUNE_FILTER={pattern!r} matches no kernel", fix=did_you_mean(pattern, choices))


def check_answers(operators: Mapping[str, Operator], families: Sequence[str]) -> None:
    """Raise for an operator that would have no variant at all in the library."""
    for operator in operators.values():
        served = {f for k in operator.generics for f in families_of(toolchain_for(k.backend))}
        if not served & set(families):
            raise BuildError(
                f"operator {operator.name!r} has kernels for {' and '.join(sorted(served))} only",
                why=f"this library is built for {', '.join(families)}",
                fix="name a target, such as AOT_TUNE_TARGETS=cuda-sm_90a, or build on a machine with such a device",
            )


class Machines(Protocol):
    """Where a build measures."""

    def best(self) -> list[Target] | None:
        """The best targets of the devices; None means this machine only."""

    def native(self) -> list[Target]:
        """Targets that run on the devices, by family and level."""

    def devices(self, threads: int, families: Sequence[str]) -> list[Device]:
        """The devices of some families. `threads` is for the CPU."""

    def check_measuring(self, targets: Sequence[Target], toolkit: str, environment: Mapping[str, str]) -> list[str]:
        """See `preflight.check_measuring`."""


class ThisMachine:
    """The machine of this process."""

    def best(self) -> None:
        """See `Machines`."""

    def native(self) -> list[Target]:
        """See `Machines`."""
        return native_targets()

    def devices(self, threads: int, families: Sequence[str]) -> list[Device]:
        """See `Machines`."""
        return devices(threads, families)

    def check_measuring(self, targets: Sequence[Target], toolkit: str, environment: Mapping[str, str]) -> list[str]:
        """See `Machines`."""
        native = {t.name for t in native_targets()}
        return check_measuring([t for t in targets if t.name in native], toolkit, environment)


def devices(threads: int, families: Sequence[str]) -> list[Device]:
    """This machine's devices of the requested families. `threads` is for the CPU."""
    here = device_families(native_targets())
    return [d for name in here if name in families for d in family(name).devices(threads)]


def device_families(targets: Iterable[Target]) -> list[str]:
    """The families of targets, by name."""
    return sorted({t.family for t in targets})
