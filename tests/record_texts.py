"""Records that a test changes as text, with the digests of what they hold then."""

from collections.abc import Callable
from pathlib import Path

from aot_tune.database import decode, encode


def rewrite(path: Path, change: Callable[[str], str]) -> None:
    """Change the text of a record, and make its digests anew."""
    text = change(path.read_text())
    path.write_bytes(encode(decode(text.encode(), str(path), digests=False)))
