"""Checks whether a folder can take the records of some devices before they are measured, which may take hours."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.database import database_path, load_database
from aot_tune.support.errors import DatabaseError

__all__ = ["check_record_folder"]


def check_record_folder(folder: Path, devices: Sequence[Device], operators: Collection[str]) -> None:
    """Check that records of these operators on these devices can be written below a folder.

    Raises:
        DatabaseError: when it cannot be written to, is the folder of a single device, has records of these devices in a
            wrong place, or has records of other devices in their place.
    """
    if folder.exists() and not folder.is_dir():
        raise DatabaseError(f"{str(folder)!r} is not a folder", fix="name a folder for the records, such as tuning")
    direct = next(iter(sorted(folder.glob("*.jsonl"))), None)
    if direct is not None:
        device = load_database(direct).device
        raise DatabaseError(
            f"{str(folder)!r} is the folder of a single device, {device.name}",
            why=f"it holds {direct.name} itself; records are written into a folder for each device, here "
            f"{', '.join(d.slug for d in devices)}",
            fix=f"name the folder above it, {str(folder.resolve().parent)!r}",
        )
    ours = {d.digest: d for d in devices}
    for path in sorted(folder.rglob("*.jsonl")):
        database = load_database(path)
        place = database_path(folder, database)
        if path == place:
            continue
        if path.parent in {folder / d.slug for d in devices}:
            raise DatabaseError(
                f"{str(path)!r} is a record of another device, {database.device.name}",
                why=f"the folder is that of {path.parent.name}, the record of {database.device.slug}",
                fix=f"move it to {str(place)!r}, or name another folder",
            )
        if database.device.digest in ours and database.operator in operators:
            raise DatabaseError(
                f"{str(path)!r} is a record of this device in another place than {str(place)!r}",
                why="there would be two records of one operator and device, and neither would count",
                fix=f"move it to {str(place)!r}, or name another folder",
            )
    for one in (folder, *(folder / d.slug for d in devices)):
        there = next(f for f in (one, *one.resolve().parents) if f.exists())
        if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
            raise DatabaseError(
                f"records cannot be written to {str(folder)!r}",
                why=f"{str(there)!r} is not writable" if there.is_dir() else f"{str(there)!r} is not a folder",
                fix="name another folder with --out, and copy the records to the project afterwards",
            )
