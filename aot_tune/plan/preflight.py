"""Where a build may measure, and what must hold before. Each fault has its own message, before anything is compiled."""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from aot_tune.bench.devices.family import family
from aot_tune.bench.host.odd_problems import large_checks
from aot_tune.bench.protocol.measurement_records import Device, Policy
from aot_tune.compile import families_of, native_targets, offers, toolchain_for
from aot_tune.compile.visible_gpus import check_ready, visible_devices
from aot_tune.database import OperatorDatabase, is_of
from aot_tune.plan.stated_workloads import is_served
from aot_tune.spec import Operator, Target
from aot_tune.spec.kernel import guard_sets, may_serve
from aot_tune.spec.load_operators import load_operators
from aot_tune.support.errors import BuildError, Mistakes, OptionError, ToolchainError, did_you_mean
from aot_tune.support.limits import size_text

_GPU_HOST = "x86_64"
"""The machine that benches run on, and that code for GPUs is launched from."""


def with_compiler(environment: Mapping[str, str], wanted: Iterable[Target]) -> Mapping[str, str]:
    """The environment, with a cross compiler as CXX where a CPU target needs one. Raises ToolchainError."""
    machine = next((t.machine for t in wanted if t.on_host), platform.machine())
    if environment.get("CXX") or machine == platform.machine():
        return environment
    name = f"{machine}-linux-gnu-g++"
    if shutil.which(name, path=environment.get("PATH")) is None:
        raise ToolchainError(
            f"no C++ compiler for {machine} found: {name} is not on PATH",
            why=f"this machine is {platform.machine()}, so another compiler makes the objects",
            fix=f"install it ({_package(machine)}), or set CXX to a compiler for {machine}",
        )
    return {**environment, "CXX": name}


def machine_of(wanted: Sequence[Target], compiler: str) -> str:
    """The machine that a library's own code is for, as in `Target.machine`.

    Args:
        compiler: what the C++ compiler is for. Empty if no kernel is compiled as C++.

    Raises:
        ToolchainError: for a compiler for a machine without targets, or for another machine than a target's. Otherwise
            a kernel's error would blame the kernel.
        OptionError: for GPUs beside a CPU that GPU code is not launched from.
    """
    machine = compiler.partition("-")[0].replace("amd64", _GPU_HOST) or _GPU_HOST
    by_machine = {t.machine: t.name for t in toolchain_for("cxx").baselines()}
    if machine not in by_machine:
        raise ToolchainError(
            f"the C++ compiler is for {compiler}",
            why=f"kernels for CPUs are compiled for {' and '.join(by_machine)}",
            fix="set CXX or CMAKE_CXX_COMPILER to a compiler for one of these",
        )
    other = next((t for t in wanted if t.on_host and t.machine != machine), None)
    if other is not None:
        raise ToolchainError(
            f"the C++ compiler is for {compiler}, and target {other.name} is for {other.machine}",
            why="one compiler makes all of a library: kernels for CPUs, and what calls them",
            fix=f"set CXX or CMAKE_CXX_COMPILER to a compiler for {other.machine}, such as "
            f"{other.machine}-linux-gnu-g++ ({_package(other.machine)}), or name a target of {machine}: "
            f"AOT_TUNE_TARGETS={by_machine[machine]}",
        )
    gpus = [t.name for t in wanted if not t.on_host]
    if gpus and machine != _GPU_HOST:
        raise OptionError(
            f"targets {', '.join(gpus)}: the C++ compiler is for {compiler}",
            why=f"code for GPUs is launched by code for {_GPU_HOST}",
            fix=f"leave them out, AOT_TUNE_TARGETS={by_machine[machine]}, or set CXX to a compiler for {_GPU_HOST}",
        )
    return machine


def caution_of(machine: str, mode: str) -> str:
    """What a build for an unmeasured machine must say; empty for others. Raises BuildError if the mode measures."""
    if machine == _GPU_HOST:
        return ""
    if mode == "tune":
        raise BuildError(
            f"AOT_TUNE_MODE=tune: nothing is measured on {machine}",
            why=f"benches run on {_GPU_HOST} alone",
            fix="use the mode auto or replay, where records decide and else the generic variants serve; or generic",
        )
    return f"{machine} targets: nothing is measured on such CPUs, and no variant is verified before it ships"


def caution_of_temporaries(environment: Mapping[str, str]) -> str:
    """What a build must say whose TMPDIR cannot be written to. Empty for others."""
    named, used = environment.get("TMPDIR", ""), tempfile.gettempdir()
    if not named or Path(named).absolute() == Path(used).absolute():
        return ""
    return f"TMPDIR={named!r} is no folder that can be written to; temporary files go to {used}"


def _package(machine: str) -> str:
    return f"Debian's package g++-{machine.replace('_', '-')}-linux-gnu"


def check_epoch(environment: Mapping[str, str]) -> None:
    """Check the date of reproducible builds, before the tuning. Raises OptionError unless it counts seconds."""
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
    """Check that named devices have records, if there are any. Raises OptionError naming devices with records."""
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
    most, lines, left_out = Policy().check_bytes, list[str](), list[str]()
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
            left_out.append(f"{operator.name} ({left} of {count}{worst})")
    if left_out:
        lines.append(f"derived checks of more than {most >> 20} MiB are left out: {', '.join(left_out)}")
    return lines


def check_kernels(operators: Mapping[str, Operator]) -> None:
    """Raise for kernels whose backend does not exist, or is not what it says."""
    mistakes = Mistakes()
    for backend, (name, kernel) in {k.backend: (o.name, k.name) for o in operators.values() for k in o.kernels}.items():
        try:
            families_of(toolchain_for(backend))
        except ToolchainError as error:
            what = f"operator {name!r}: kernel {kernel!r}: {error.what}"
            mistakes.add(BuildError(what, why=error.why, fix=error.fix))
    mistakes.tell()


def check_backends(exclude: Sequence[str], roots: Sequence[Path], operators: Sequence[str]) -> None:
    """Raise for names in AOT_TUNE_EXCLUDE_BACKENDS that are neither backends nor used by a kernel."""
    backends = {entry.name for entry in offers()}
    if not backends.issuperset(exclude):
        backends |= {k.backend for _, o in load_operators(roots, operators).values() for k in o.kernels}
    for name in exclude:
        if name not in backends:
            raise OptionError(
                f"AOT_TUNE_EXCLUDE_BACKENDS has {name!r}, which is not a backend", fix=did_you_mean(name, backends)
            )


def check_filter(pattern: str, operators: Mapping[str, Operator]) -> None:
    """Raise if AOT_TUNE_FILTER matches no kernel of a library that has kernels to tune."""
    names = [f"{op.name}/{k.name}" for op in operators.values() for k in op.kernels]
    choices = {*names, *(f"{name.partition('/')[0]}/*" for name in names)}
    tunable = any(not k.generic for op in operators.values() for k in op.kernels)
    if tunable and not any(fnmatchcase(name, pattern) for name in names):
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
        return native_targets()

    def devices(self, threads: int, families: Sequence[str]) -> list[Device]:
        return devices(threads, families)

    def check_measuring(self, targets: Sequence[Target], toolkit: str, environment: Mapping[str, str]) -> list[str]:
        native = {t.name for t in native_targets()}
        return check_measuring([t for t in targets if t.name in native], toolkit, environment)


def devices(threads: int, families: Sequence[str]) -> list[Device]:
    """This machine's devices of the requested families. `threads` is for the CPU."""
    here = device_families(native_targets())
    return [d for name in here if name in families for d in family(name).devices(threads)]


def device_families(targets: Iterable[Target]) -> list[str]:
    """The families of targets, by name."""
    return sorted({t.family for t in targets})
