"""After selection: compile what is kept, compare it with the records, and keep the measurements for `record`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from aot_tune.compile import Object
from aot_tune.database import OperatorDatabase, make_database, merge, operator_digest, save_database
from aot_tune.errors import BuildError, DatabaseError
from aot_tune.pipeline.evidence import Chosen, Entry, Evidence
from aot_tune.pipeline.session import LoadedOperator, Session, baseline_versions
from aot_tune.render import Rendered

__all__ = ["compile_kept", "records_folder", "save_records"]


def compile_kept(session: Session, chosen: Mapping[str, Sequence[Chosen]], generics: Mapping[str, Entry]) -> None:
    """Compile the kept variants that have no object yet, and every generic one.

    Raises:
        BuildError: when a kept or generic variant does not compile.
        DatabaseError: when strict replay finds another object than the recorded one.
    """
    kept = [one.evidence.entries[c] for found in chosen.values() for one in found for c in one.selection.kept]
    session.compile([*generics.values(), *kept], "kept variants")
    for name, generic in generics.items():
        session.require_generic(session.operators[name].operator, generic)
    recorded = _recorded_digests(session)
    for entry in kept:
        if not entry.compiled:
            error = entry.object.error if entry.object else ""
            raise BuildError(f"kept variant {entry.candidate.label} does not compile here", why=error)
        expected = entry.recorded or (recorded.get(entry.candidate.id, "") if session.options.mode == "replay" else "")
        entry.rebuilt = bool(expected) and entry.digest != expected
        if entry.rebuilt and session.options.strict:
            raise DatabaseError(
                f"{entry.candidate.operator}: {entry.candidate.label} compiles to another object than the recorded one",
                why=f"recorded {expected[:12]}, here {entry.digest[:12]} by {session.toolchain_text(entry)}",
                fix=f"use the recorded toolchain ({_recorded_toolchain(session, entry)}), or leave out AOT_TUNE_STRICT",
            )
    rebuilt = sum(e.rebuilt for e in kept)
    if rebuilt:
        session.progress.line(
            f"{rebuilt} of {len(kept)} variants are rebuilt: this compiler makes other objects than the recorded one"
        )


def _recorded_digests(session: Session) -> dict[str, str]:
    return {c.id: c.object for d in session.databases for c in d.candidates if c.object}


def _recorded_toolchain(session: Session, entry: Entry) -> str:
    versions = {
        d.toolchains.get(entry.candidate.backend, {}).get("version", "unknown")
        for d in session.databases
        if d.candidate(entry.candidate.id) is not None
    }
    return " or ".join(sorted(versions))


def records_folder(session: Session) -> Path | None:
    """Where the records of the library's last build are kept; None without a cache."""
    root = session.store.root
    return None if root is None else root / "recorded" / session.plan.name


def save_records(session: Session, evidence: Mapping[str, Sequence[Evidence]]) -> None:
    """Keep what this build measured, or took from committed records, for `aot-tune record`."""
    folder = records_folder(session)
    if folder is None or session.options.cache == "ro":
        return
    for name, found in evidence.items():
        for one in found:
            database = _database(session, session.operators[name], one)
            if database is not None:
                same = [
                    d for d in session.databases if d.operator == name and d.device.digest == database.device.digest
                ]
                save_database(folder, merge(same[0], database) if same else database)


def _database(session: Session, loaded: LoadedOperator, evidence: Evidence) -> OperatorDatabase | None:
    device = session.device_for(evidence.target)
    compiled: list[tuple[Rendered, Object]] = [
        (e.rendered, e.object) for e in evidence.entries.values() if e.object is not None
    ]
    known = {r.candidate.id: o.digest for r, o in compiled}
    measurements = [
        m
        for row in evidence.measurements.values()
        for m in row.values()
        if device is not None
        and m.device == device.digest
        and (m.candidate.startswith("baseline:") or known.get(m.candidate) == m.object)
    ]
    if device is None or not measurements:
        return None
    return make_database(
        operator=loaded.operator.name,
        contract=operator_digest(loaded.operator),
        device=device,
        policy=session.policy,
        toolchains=session.plan.toolchains,
        baselines=baseline_versions(loaded),
        compiled=compiled,
        measurements=measurements,
    )
