"""What a bench does so that its workers, and what they leave behind, do no harm: environments and orphans."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from aot_tune.support.kernel_features import set_subreaper
from aot_tune.support.run_program import python_environment

__all__ = ["environment", "hold_subreaper", "release_subreaper"]

_KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "TZ")


def environment(given: Mapping[str, str], import_path: Iterable[str], scratch: Path) -> dict[str, str]:
    """The environment of a worker: an allow-list from the bench's environment, and what is set here.

    `import_path` is the bench's own `sys.path`, because build front ends put build requirements there. The user's
    PYTHONPATH, LD_PRELOAD and the like are not passed on.
    """
    env = {name: given[name] for name in _KEPT if name in given}
    env |= python_environment(import_path) | {"HOME": str(scratch), "TMPDIR": str(scratch), "LC_ALL": "C.UTF-8"}
    return env


_holders: list[bool] = []  # what was set before each of the holders came
_holding = threading.Lock()


def hold_subreaper() -> None:
    """Make orphaned descendants children of this process, until every holder has released it.

    Benches may run in parallel.
    """
    with _holding:
        _holders.append(set_subreaper(True))


def release_subreaper() -> None:
    """Undo one `hold_subreaper`. The last one restores what was set before the first."""
    with _holding:
        before = _holders.pop(0)
        if _holders:
            _holders[0] = before
        else:
            set_subreaper(before)
