"""After selection: compile what is kept, compare it with the records, and keep the measurements for `record`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from aot_tune.bench import Device, Measurement
from aot_tune.compile import Object
from aot_tune.database import OperatorDatabase, make_database, operator_digest, save_database, update
from aot_tune.errors import BuildError, DatabaseError
from aot_tune.pipeline.evidence import Chosen, Entry, Evidence, is_baseline
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
        for device in session.devices:
            database = _database(session, session.operators[name], found, device)
            if database is not None:
                same = [d for d in session.databases if d.operator == name and d.device.digest == device.digest]
                save_database(folder, update(same[0], database) if same else database)


def _database(
    session: Session, loaded: LoadedOperator, found: Sequence[Evidence], device: Device
) -> OperatorDatabase | None:
    """One operator on one device, all its targets together.

    What takes part in the races of several targets, the generic variant and the baselines, is kept once.
    """
    own = [e for e in found if session.device_for(e.target) == device]
    compiled: dict[str, tuple[Rendered, Object]] = {
        e.candidate.id: (e.rendered, e.object) for one in own for e in one.entries.values() if e.object is not None
    }
    known = {name: made.digest for name, (_, made) in compiled.items()}
    measurements: dict[tuple[str, str], Measurement] = {}
    for m in (m for one in own for row in one.measurements.values() for m in row.values()):
        current = is_baseline(m.candidate) or known.get(m.candidate) == m.object
        if current and m.device == device.digest:
            measurements.setdefault((m.candidate, m.problem.id), m)
    if not measurements:
        return None
    return make_database(
        operator=loaded.operator.name,
        contract=operator_digest(loaded.operator),
        device=device,
        policy=session.policy,
        toolchains=session.plan.toolchains,
        baselines=baseline_versions(loaded),
        compiled=compiled.values(),
        measurements=measurements.values(),
    )
