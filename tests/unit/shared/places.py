"""Where things are that unit tests read."""

from pathlib import Path

SHARED = Path(__file__).resolve().parent
GOLDEN = SHARED.parent / "golden"
ROOT = SHARED.parents[2]
