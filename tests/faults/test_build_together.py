"""Several builds at once over one cache: each key is made once, and all get the same library."""

import hashlib
import os
import re
import select
import signal
from collections import Counter
from pathlib import Path

import pytest
from environments import own_processors
from filelock import FileLock
from project import Project, read_until

from aot_tune.bench.devices.family import family

pytestmark = pytest.mark.alone


def log_sources(project: Project) -> Path:
    """Let the compiler also log a digest of each candidate and its target: its own log has the folder only."""
    path, log = project.compiler.path, project.compiler.log.parent / "sources.log"
    text = path.read_text()
    count = (
        f'case " $* " in *" -c candidate.cpp "*) '
        f'{{ cat candidate.cpp; echo "$*" | grep -o "march=[^ ]*"; }} | sha256sum | cut -c1-32 >> "{log}";; esac\n'
    )
    assert text.count("exec ") == 1
    path.write_text(text.replace("exec ", count + "exec "))
    return log


def test_builds_that_share_a_cache(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "project")
    log = log_sources(project)
    names = [f"build{i}" for i in range(3)]
    for name in names:
        project.configure(build=name)
    started = [project.start(name) for name in names]
    outputs = [p.communicate(timeout=240)[0] for p in started]
    for process, output in zip(started, outputs, strict=True):
        assert process.returncode == 0, output
        assert "damaged" not in output
    counts = Counter(log.read_text().split())
    assert len(counts) == 6  # five configs and the generic variant
    assert set(counts.values()) == {1}, counts
    libraries = {hashlib.sha256((project.folder / n / "variants.a").read_bytes()).hexdigest() for n in names}
    assert len(libraries) == 1
    assert len({tuple(project.winners(n)) for n in names}) == 1
    *others, most = sorted(int(o.split(" measurements made")[0].rsplit(" ", 1)[-1]) for o in outputs)
    assert most >= 12  # six candidates on two problems
    assert max(others) <= 2, others  # the races, at most: each screen is made once
    assert " 0 measurements made" in project.build(names[0])


def test_row_24_a_build_folder_that_another_build_uses(tuned: Project) -> None:
    """Each of its commands says so at once, and the build that has it goes on as if it were alone."""
    tuned.change("problem(N=20000), problem(N=60000)", "problem(N=20001),")
    tuned.configure()
    process = tuned.start()
    begun = read_until(process, "aot_tune: cache ")
    os.kill(process.pid, signal.SIGSTOP)  # it cannot end meanwhile
    library = tuned.folder / "build" / "libtiny.so"
    check = "check-library", "--directory", library.parent, "--library", library
    for said in (tuned.configure(status=1), tuned.build(status=1), tuned.ask(*check, status=1)):
        assert f"aot-tune: another build is using {library.parent}" in said
        assert f"process {process.pid} has not ended" in said
        assert "fix: wait" in said
    os.kill(process.pid, signal.SIGCONT)
    rest = process.communicate(timeout=240)[0]
    assert process.returncode == 0, begun + rest
    tuned.configure()
    assert " 0 measurements made" in tuned.build()


def add_stuck(project: Project) -> None:
    """An operator whose calls take long, but for the last; if threads wait passively, one is short and one longer."""
    project.add("stuck", ("(1, 4, 16, 64, 256)", "(1,)", "operator.py"))
    operator = project.templates / "stuck" / "operator.py"
    operator.write_text(
        operator.read_text().replace("problem(N=20001)", "problem(N=20001), problem(N=30001), problem(N=90001)")
    )
    spin = (
        '  const double passive = {{ dim("N") }} < 25000 ? 0.0 : 40e6, active = {{ dim("N") }} < 50000 ? 8e6 : 0.0;\n'
        '  const double spun = std::getenv("OMP_WAIT_POLICY") ? active && passive ? passive : 0.0 : active;\n'
        "  timespec now;\n"
        "  auto ns = [&] { clock_gettime(CLOCK_MONOTONIC, &now); return 1e9 * now.tv_sec + now.tv_nsec; };\n"
        "  for (const double end = ns() + spun; ns() < end;) {}\n"
    )
    for path in (project.templates / "stuck").glob("*.j2"):
        text = path.read_text().replace('("launch") }} {\n', f'("launch") }}}} {{\n{spin}')
        path.write_text(text.replace("{{ prelude() }}", "{{ prelude() }}\n#include <cstdlib>\n#include <ctime>"))


def test_rows_72_and_73_two_builds_do_not_measure_at_once_and_waiting_costs_no_budget(tuned: Project) -> None:
    """Who has the lock of the device, here this test, is waited for; what is left of the budget is used then.

    Times that other programs have spoiled are measured again, and what stays doubtful is in no record.
    """
    tuned.change("problem(N=20000), problem(N=60000)", "problem(N=20001),")
    add_stuck(tuned)
    with own_processors():
        (device,) = family("cpu").devices(2)  # as the build sees it
    folder = Path(f"/tmp/aot_tune-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    tuned.configure("--option", "AOT_TUNE_BUDGET=300", "--option", "AOT_TUNE_THREADS=2")
    with FileLock(folder / f"cpu-{device.digest[:16]}.lock", timeout=240):
        process = tuned.start()
        begun = read_until(process, f"waiting: another build measures on {device.name} (process {os.getpid()})")
        assert "tried" not in begun
        assert select.select([process.stdout], [], [], 1)[0] == []  # nor does it go on, or end
    rest = process.communicate(timeout=240)[0]
    assert process.returncode == 0, rest
    assert int(re.findall(r"waited (\d+) s for", rest)[0]) >= 1
    assert int(re.findall(r"(\d+) measurements made", rest)[0]) >= 6
    assert "the budget ended before" not in rest
    assert re.findall(r"NOTE stuck (N=\d+): spoiled by other programs: .*", rest) == ["N=30001"]
    assert re.search("NOTE the machine was busy: .*times on 1 problem are spoiled and not recorded", rest)
    report = tuned.report()
    assert "NOTE N=20001: threads waited passively, because other programs had the cores" in report
    assert "NOTE N=30001: spoiled by other programs: " in report
    record = next(path for path in tuned.record().rglob("stuck.jsonl")).read_text()
    assert "N=20001" in record
    assert "N=30001" not in record
