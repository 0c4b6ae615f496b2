"""A static archive of objects. Its bytes only depend on the names and contents of the members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aot_tune.support.errors import ManifestError

__all__ = ["Member", "read_archive", "write_archive"]

_MAGIC = b"!<arch>\n"
_HEADER = 60


@dataclass(frozen=True)
class Member:
    """One object of an archive. The linker finds it by its `symbols`."""

    name: str
    data: bytes
    symbols: tuple[str, ...] = ()


def write_archive(members: Sequence[Member]) -> bytes:
    """The archive in GNU format with a symbol index. Times, owners and modes are constants."""
    long_names = b"".join(m.name.encode() + b"/\n" for m in members)
    name_offsets, offset = [], 0
    for member in members:
        name_offsets.append(offset)
        offset += len(member.name.encode()) + 2
    symbols = [(s, i) for i, m in enumerate(members) for s in m.symbols]
    index_size = 4 + 4 * len(symbols) + sum(len(s) + 1 for s, _ in symbols)
    position = len(_MAGIC) + _HEADER + _even(index_size) + _HEADER + _even(len(long_names))
    positions = []
    for member in members:
        positions.append(position)
        position += _HEADER + _even(len(member.data))
    index = len(symbols).to_bytes(4, "big") + b"".join(positions[i].to_bytes(4, "big") for _, i in symbols)
    index += b"".join(s.encode() + b"\0" for s, _ in symbols)
    parts = [_MAGIC, _entry("/", index), _entry("//", long_names)]
    parts += [_entry(f"/{o}", m.data) for o, m in zip(name_offsets, members, strict=True)]
    return b"".join(parts)


def read_archive(data: bytes) -> list[Member]:
    """The members of an archive that `write_archive` wrote.

    Raises:
        ManifestError: when the bytes are no such archive.
    """
    if not data.startswith(_MAGIC):
        raise ManifestError("the archive of variants does not begin like an archive")
    names, members, position = b"", [], len(_MAGIC)
    while position < len(data):
        header = data[position : position + _HEADER]
        size = header[48:58].decode("ascii", "replace").strip()
        if len(header) < _HEADER or header[58:] != b"`\n" or not size.isdigit():
            raise ManifestError(f"the archive of variants is damaged at byte {position}")
        body = data[position + _HEADER : position + _HEADER + int(size)]
        label = header[:16].decode("ascii", "replace").strip()
        if label == "//":
            names = body
        elif label != "/":
            start = int(label[1:])
            members.append(Member(names[start : names.index(b"/\n", start)].decode(), body))
        position += _HEADER + _even(int(size))
    return members


def _even(size: int) -> int:
    return size + size % 2


def _entry(label: str, data: bytes) -> bytes:
    header = f"{label:<16}{0:<12}{0:<6}{0:<6}{644:<8}{len(data):<10}`\n".encode()
    return header + data + b"\n" * (len(data) % 2)
