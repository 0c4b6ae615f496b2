"""Several builds at once over one cache: each key is made once, and all get the same library."""

from __future__ import annotations

import hashlib
import os
import select
from collections import Counter
from pathlib import Path

import pytest
from filelock import FileLock
from project import Project, read_until

from aot_tune.bench.devices.cpu import usable_cores
from aot_tune.bench.devices.family import devices

pytestmark = pytest.mark.alone


def compiled_sources(project: Project) -> Counter[str]:
    """How often each candidate was compiled, by target and source: the compiler's log has its folder only."""
    digests = (project.compiler.log.parent / "sources.log").read_text().split()
    return Counter(digests)


def log_sources(project: Project) -> None:
    """Let the compiler also log a digest of each candidate and its target."""
    path = project.compiler.path
    text = path.read_text()
    log = project.compiler.log.parent / "sources.log"
    log.touch()
    count = (
        f'case " $* " in *" -c candidate.cpp "*) '
        f'{{ cat candidate.cpp; echo "$*" | grep -o "march=[^ ]*"; }} | sha256sum | cut -c1-32 >> "{log}";; esac\n'
    )
    assert text.count("exec ") == 1
    path.write_text(text.replace("exec ", count + "exec "))


def test_builds_that_share_a_cache(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "project")
    log_sources(project)
    names = [f"build{i}" for i in range(4)]
    for name in names:
        project.configure(build=name)
    started = [project.start(name) for name in names]
    outputs = [p.communicate(timeout=240)[0] for p in started]
    for process, output in zip(started, outputs, strict=True):
        assert process.returncode == 0, output
        assert "damaged" not in output
    counts = compiled_sources(project)
    assert len(counts) == 6  # five configs and the generic variant
    assert set(counts.values()) == {1}, counts
    libraries = {hashlib.sha256((project.folder / n / "variants.a").read_bytes()).hexdigest() for n in names}
    assert len(libraries) == 1
    assert len({tuple(project.winners(n)) for n in names}) == 1
    *others, most = sorted(int(o.split(" measurements made")[0].rsplit(" ", 1)[-1]) for o in outputs)
    assert most >= 12  # six candidates on two problems
    assert max(others) <= 2, others  # the races, at most: each screen is made once
    again = project.build(names[0])
    assert " 0 measurements made" in again


def test_row_73_two_builds_do_not_measure_at_once(tmp_path: Path) -> None:
    """Who has the lock of the device, here this test, is waited for."""
    project = Project.make(tmp_path / "project")
    project.configure()
    (device,) = devices("cpu", usable_cores())
    folder = Path(f"/tmp/aot_tune-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    with FileLock(folder / f"cpu-{device.digest[:16]}.lock", timeout=240):
        process = project.start()
        begun = read_until(process, f"waiting: another build measures on {device.name}")
        assert "tried" not in begun
        assert select.select([process.stdout], [], [], 3)[0] == []  # nor does it go on, or end
    rest = process.communicate(timeout=240)[0]
    assert process.returncode == 0, rest
    assert "14 measurements made, 0 known from before" in rest
