"""Which tests share fixtures, and so a process where several test side by side, and which scopes begin first."""

FIRST = ("integration/test_replay.py", "integration/test_cuda.py")
"""What begins before all else: a process makes the wheel, which is for all of them, and another what takes as long."""
LONG = ("integration/", "faults/", "gpu/", "unit/pipeline/", "unit/bench/")
"""Parts of paths: what takes long begins first, so that the processes end together."""


def shared_scope(nodeid: str) -> str:
    """The name of what a test shares fixtures with: its file, but for the library of all operators on a GPU."""
    file = nodeid.partition("::")[0]
    folder, _, name = file.rpartition("/")
    return folder if folder.endswith("gpu") and name in ("test_calls.py", "test_variants.py") else file


def rank(nodeid: str) -> int:
    """The place of a test among those of a run: what is long, then the rest."""
    places = (*FIRST, *LONG)
    return next((place for place, part in enumerate(places) if part in nodeid), len(places))
