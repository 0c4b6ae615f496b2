"""`aot-tune cache explain A B`: what two objects of the cache do not have in common."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from aot_tune.compile.cache_entry import KEY, RECORD, SCHEMA, check_entry, read_checked
from aot_tune.compile.toolchain import Object
from aot_tune.support.errors import OptionError
from aot_tune.support.storage import CorruptError, OtherSchemaError, cache_location, unseal

_MOST = 10


class _Entry(NamedTuple):
    key: str
    parts: dict[str, str]
    made: float

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.made))
        return f"{self.key[:16]} {self.parts.get('symbol')} {self.parts.get('target')} {when}"


def add_cache(commands: Any) -> None:
    """Add the command to the parser."""
    inner = commands.add_parser("cache", help="say why objects of the cache differ").add_subparsers(
        dest="inner", required=True, metavar="COMMAND"
    )
    explain = inner.add_parser(
        "explain",
        help="list what decides two objects and differs between them",
        description="List every field that decides what an object holds and that differs: source, flags, environment, "
        "parts of the compiler, included files. Objects are named by their candidate, as in reports, by the beginning "
        "of their key, or by their folder.",
    )
    explain.add_argument("a", metavar="A", help="such as packed_3fa2b1c9")
    explain.add_argument("b", metavar="B", nargs="?", help="default: the two newest that A names")
    explain.set_defaults(run=_explain)


def _explain(given: argparse.Namespace) -> int:
    entries = _named(given.a)
    if given.b:
        entries = [_only(given.a, entries), _only(given.b, _named(given.b))]
    if len(entries) < 2:
        raise OptionError(f"{given.a!r} names one object, {entries[0]}", fix="name a second one")
    one, two = entries[-2:]
    print(f"A  {one}\nB  {two}")
    differing = [name for name in sorted({**one.parts, **two.parts}) if one.parts.get(name) != two.parts.get(name)]
    for name in differing:
        print(f"{name}\n  A  {one.parts.get(name, 'none')}\n  B  {two.parts.get(name, 'none')}")
    if not differing:
        print("nothing that decides them differs")
    return 0


def _only(name: str, entries: list[_Entry]) -> _Entry:
    if len(entries) > 1:
        listed = "\n       ".join(map(str, entries[-_MOST:]))
        raise OptionError(f"{name!r} names {len(entries)} objects", why=listed, fix="name one by its key")
    return entries[0]


def _named(name: str) -> list[_Entry]:
    """The entries that a name stands for, the oldest first."""
    location = cache_location(os.environ)
    root, trusted = location.root, location.trusted
    folders = [Path(name)] if "/" in name else sorted(root.glob("objects/*/*")) if root is not None else []
    entries = [entry for folder in folders if (entry := _read(folder, name, trusted)) is not None]
    if not entries:
        raise OptionError(
            f"no object of the cache is named {name!r}",
            why=f"the cache is {root or 'off'}",
            fix="give at least 4 characters of a key, or a candidate's name; AOT_TUNE_CACHE_DIR names another cache",
        )
    return sorted(entries, key=lambda entry: entry.made)


def _read(folder: Path, name: str, trusted: bool) -> _Entry | None:
    """An entry, if the name stands for it: the beginning of its key or of its candidate's id, or its folder."""
    try:
        text = check_entry(folder, folder.name, trusted)
        parts = dict(_flat("", msgspec.json.decode(text)))
        ids, start = (folder.name, parts["symbol"].rpartition("_")[2]), name.rpartition("_")[2]
        if "/" not in name and (len(start) < 4 or not any(i.startswith(start) for i in ids)):
            return None
        made = unseal(read_checked(folder / RECORD, trusted), Object, SCHEMA)
        parts |= {f"includes {file}": digest or "missing" for file, digest in made.includes.items()}
        return _Entry(folder.name, parts, (folder / KEY).stat().st_mtime)
    except (OSError, CorruptError, OtherSchemaError) as error:
        if "/" not in name:
            return None
        raise OptionError(f"{name} is no object of the cache", why=str(error), fix="name another one") from error


def _flat(place: str, value: object) -> Iterator[tuple[str, str]]:
    """The leaves of nested data by their place. Of a list, each item is a leaf."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(f"{place}.{name}" if place else name, inner)
    elif isinstance(value, list):
        for item in value:
            yield f"{place} {item}", "given"
    else:
        yield place, str(value)
