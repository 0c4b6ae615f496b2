"""Builds with little memory: what does not fit is left out and named, and nobody else pays for it."""

import contextlib
import gc
import json
import os
import re
import shutil
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from environments import run
from project import Project

from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.reference_results import write_truth
from aot_tune.spec import Activate, AddTensor, Attribute, Epilogue, Kernel, Operator, Tensor, dims, problem
from aot_tune.support.kernel_log import KernelLog
from aot_tune.support.limits import allowed_memory, control_groups, free_memory, kept_memory, memory_text
from aot_tune.support.processes import NAME, resident_bytes

GIB = 1 << 30
N, M = dims("N M")


@contextlib.contextmanager
def control_group(most: int) -> Iterator[Path | None]:
    """A control group of this machine that allows so many bytes; None where nobody may make one."""
    for group in control_groups(Path("/")):
        made = group / f"aot_tune_test_{os.getpid()}"
        with contextlib.suppress(OSError):
            made.mkdir()
            limit = next((made / n for n in ("memory.max", "memory.limit_in_bytes") if (made / n).exists()), None)
            try:
                if limit is not None:
                    limit.write_text(str(most))
                    yield made
                    return
            finally:
                made.rmdir()
    yield None


@pytest.fixture(scope="module")
def limited() -> Iterator[Callable[..., str]]:
    """Runs a command in a control group of 1.5 GiB."""
    with control_group(3 * GIB // 2) as group:
        if group is None:
            pytest.skip("no right to make a control group with a limit of memory")
        enter = ["sh", "-c", f'echo $$ >"{group}/cgroup.procs" && exec "$@"', "sh"]
        yield lambda argv, **given: run([*enter, *argv], **given)


GREEDY, TOO_LARGE = 7_000_003, 200_000_000
"""Of these problems one has a reference that takes more memory than its tensors tell, and one large tensors."""


@pytest.mark.slow
def test_a_build_leaves_out_what_does_not_fit_and_measures_the_rest(
    limited: Callable[..., str], tmp_path: Path
) -> None:
    """All problems together would not fit. The kernel kills nobody but the worker for the greedy reference."""
    project = Project.make(tmp_path / "project")
    large = tuple(range(16_000_000, 16_000_003))
    problems = ", ".join(f"problem(N={n})" for n in (20_000, *large, GREEDY, TOO_LARGE))
    project.change("problem(N=20000), problem(N=60000)", problems)
    project.change("(1, 4, 16, 64, 256)", "(1, 2)")
    project.change(
        '{"y": 2 * call.x}', f'{{"y": 2 * call.x + (xp.ones(1 << 30).sum() * 0 if call.x.size == {GREEDY} else 0)}}'
    )
    project.configure(AOT_TUNE_EFFORT="thorough")  # less effort would leave out what takes so long
    said = limited(project.command("build", "--directory", project.folder / "build"), env=project.environment())
    noted = re.findall(r"NOTE (problem 'N=.*)", said)
    out = "problem 'N={}' of operator 'twice' is left out: "
    needs = re.escape(out.format(TOO_LARGE)) + r"it needs about 10\.\d GiB, but only 1\.5 GiB are allowed"
    assert any(re.match(needs, line) for line in noted)
    greedy = f"{out.format(GREEDY)}its reference takes more memory"
    assert any(line.startswith(greedy) and "memory ran out" in line for line in noted)  # so the kernel tells
    report = json.loads((project.folder / "build" / "report.json").read_bytes())
    assert len([note for note in report["notes"] if "is left out" in note]) == 2
    (twice,) = report["operators"]
    assert {row["problem"] for row in twice["problems"]} == {f"N={n}" for n in (20_000, *large)}
    assert twice["statuses"] == {"ok": twice["tried"]}
    held = {one["what"]: one["bytes"] for one in report["memory"]}
    assert 0 < held["a worker for candidates"] < GIB < held["the control group as a whole"] <= 3 * GIB // 2
    assert re.search(r"^memory    at most 1\.\d GiB in ", project.report(), re.MULTILINE)


MADE_UP = {
    "none": ({}, 64, 60),
    "own": ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.max": f"{4 * GIB}\n"}, 4, 4),
    "of a parent, throttled": (
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/memory.high": f"{8 * GIB}\n",
            "sys/fs/cgroup/a/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
        },
        8,
        5,
    ),
    "version 1": (
        {
            "proc/self/cgroup": "3:memory:/job\n0::/\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{16 * GIB}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{(1 << 63) - 4096}\n",
        },
        16,
        16,
    ),
}


def test_the_least_limit_counts(tmp_path: Path) -> None:
    meminfo = f"MemTotal: {64 << 20} kB\nMemAvailable: {60 << 20} kB\n"
    for case, (files, allowed, free) in MADE_UP.items():
        for name, text in {"proc/meminfo": meminfo, **files}.items():
            (tmp_path / case / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / case / name).write_text(text)
        assert (allowed_memory(tmp_path / case), free_memory(tmp_path / case)) == (allowed * GIB, free * GIB), case
        assert kept_memory(tmp_path / case) == min(GIB, allowed * GIB // 8)
    assert memory_text(tmp_path / "own") == "4.0 GiB allowed by a control group; the machine has 64.0 GiB, 4.0 GiB free"


OOM = "3,7,99,-;Memory cgroup out of memory: Killed process {} ({}) total-vm:5kB"
XID = "4,8,99,-;NVRM: Xid (PCI:0000:3b:00): {}, pid={}, name={}, Ch 00000008"


@pytest.mark.parametrize(
    ("line", "killed", "told"),
    [
        (OOM.format(12, "python"), 1, "the kernel killed it: memory ran out"),
        (OOM.format(99, NAME), 1, "the kernel killed it: memory ran out"),  # numbered otherwise
        (OOM.format(99, "other"), 1, "memory ran out: the kernel killed a process"),
        (XID.format(31, 12, "python"), 0, "Xid 31"),
        (XID.format(79, "'<unknown>'", "<unknown>"), 0, "Xid 79, a fault of the GPU"),
        (XID.format(31, 99, "other"), 0, ""),
        ("6,9,99,-;usb 1-1: new device 12", 0, ""),
        (None, 1, "memory ran out: the kernel killed a process"),
        (None, 0, ""),
    ],
)
def test_why_a_worker_died_is_told_as_far_as_the_kernel_tells(
    tmp_path: Path, line: str | None, killed: int, told: str
) -> None:
    file, kills = tmp_path / "kmsg", [5]
    if line is not None:
        file.write_text(OOM.format(12, NAME) + "\n")  # of before
    log = KernelLog(file, lambda: kills[0])
    kills[0] += killed
    if line is not None:
        with file.open("a") as end:
            end.write(line + "\n")
    assert [log.of(12), log.of(12)] == [told, ""]
    log.close()


def test_inputs_do_not_outlive_their_reference(tmp_path: Path) -> None:
    """Workers do without Python's collector: what a problem held is gone when its results are written."""
    seen: list[weakref.ref[Any]] = []

    def reference(_xp: Any, call: Any) -> dict[str, Any]:
        seen.extend(map(weakref.ref, (call.x, call.bias)))
        return {"y": call.epilogue(call.x)}

    operator = Operator(
        name="own",
        dims=("N", "M"),
        tensors=(Tensor("x", (N, M)), Tensor("bias", (M,)), Tensor("y", (N, M), output=True)),
        attributes=(Attribute("activation", ("relu", "none")),),
        epilogue=Epilogue("y", (AddTensor("bias", (1,)), Activate("activation"))),
        reference=reference,
        flops=N * M,
        workload=(problem(N=64, M=64),),
        kernels=(Kernel("generic", "own/generic.cpp.j2", generic=True),),
    )
    gc.disable()
    try:
        write_truth(operator, Check(problem=operator.workload[0]), tmp_path / "truth", 1)
        assert len(seen) >= 4
        assert not any(one() is not None for one in seen)
    finally:
        gc.enable()


def test_a_worker_collects_what_references_leave_in_cycles(bed: Any, operator_folder: Path) -> None:
    """As an author's reference may: it keeps its call in the call."""
    file = operator_folder / "operator.py"
    file.write_text(
        file.read_text().replace("    y = 2 * call.x + 1\n", "    call.own = call\n    y = 2 * call.x + 1\n")
    )
    held = []
    for rows in range(2048, 2052):
        bed.prepare(R=rows, D=1024)
        held.append(resident_bytes(bed.bench.pool.frameworks().pid))
    assert max(held[1:]) - held[0] < rows * 1024 * 4


def test_five_hundred_candidates_in_one_worker_take_no_more_memory_than_fifty(bed: Any, tmp_path: Path) -> None:
    """Each is loaded from a file of its own and unloaded, and some are run."""
    prepared, entry = bed.prepare(), bed.entry("good")
    bed.bench.screen(prepared, entry)
    worker, held = bed.bench.pool.candidates(), list[int]()
    for number in range(500):
        path = tmp_path / f"{number}.so"
        shutil.copyfile(entry.shared, path)
        verify = messages.Verify(handle="one", keys=(prepared.key,), quick=True)
        for request in (
            messages.Load(handle="one", path=str(path), symbol=entry.symbol),
            *([verify] if number % 25 == 0 else []),
            messages.Unload(handle="one"),
        ):
            reply = worker.request(request, 10)
            assert getattr(reply, "status", "ok") == "ok", reply
        path.unlink()
        held += [resident_bytes(worker.pid)] if number in (49, 499) else []
    assert held[1] - held[0] < 2 << 20, held
