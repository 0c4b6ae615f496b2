"""What the build prints: lines of several threads stay whole."""

from __future__ import annotations

import io

from aot_tune.support.progress import Progress


class Stream(io.StringIO):
    """Keeps what each call of `write` was given: between two of them another thread may write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes.append(text)
        return len(text)


def test_a_line_is_written_at_once() -> None:
    stream = Stream()
    progress = Progress(stream)
    progress.line("one")
    progress.count("tried", 2, 2)
    assert [w for w in stream.writes if w] == ["aot_tune: one\n", "aot_tune: tried 2 of 2, took 0 s\n"]
