"""The measurement store: results of this user's builds, one file each, beside the object cache."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from aot_tune.bench.protocol.measurement_records import BASELINE, Measurement
from aot_tune.database.begun import Begun
from aot_tune.database.identity import problem_key
from aot_tune.spec import Problem
from aot_tune.support.cache_tiers import CacheTier
from aot_tune.support.digests import canonical_digest
from aot_tune.support.errors import CacheError
from aot_tune.support.storage import (
    DISK_ERRORS,
    TEMPORARIES,
    CacheLocation,
    CacheMode,
    CorruptError,
    OtherSchemaError,
    check_folder,
    private_folder,
    read_own,
    replace_file,
    seal,
    sweep_temporaries,
    unseal,
)

__all__ = ["SCHEMA", "MeasurementStore", "OperatorStore"]

SCHEMA = 2
_log = logging.getLogger("aot_tune.database")


class _Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file: the key in plain text, and the measurements (one, or all of a race)."""

    key: dict[str, object]
    measurements: tuple[Measurement, ...]


class MeasurementStore:
    """Measurements by everything that they depend on. Each file is written in one step, and checked when it is read.

    Args:
        root: folder of the cache. With None, measurements live only as long as this object.
        mode, trusted, required: as for the object cache.
        begun: older measurements than its time are not read.
        tiers: caches that are asked, in this order, for what is missing here. Not if everything is to be measured
            again.

    Raises:
        CacheError: when `required` and the root cannot be used.
    """

    def __init__(
        self,
        root: Path | None,
        *,
        mode: CacheMode = "rw",
        trusted: bool = False,
        required: bool = True,
        begun: Begun | None = None,
        tiers: Sequence[CacheTier] = (),
    ) -> None:
        self._tiers = () if mode == "fresh" or begun is not None else tuple(tiers)
        if begun is not None and not begun.resumed:
            mode = "fresh"  # nothing was measured since, whatever the times of files say
        self._mode, self._trusted = mode, trusted
        self._since = 0 if begun is None else begun.since
        self._root = None if mode == "off" else root
        self._memory: dict[str, tuple[Measurement, ...]] = {}
        self.written = self.damaged = 0
        self.used: dict[str, str] = {}
        """Digests of the files that were read or written, by name."""
        self.absent: set[str] = set()
        """Names that were asked for, but neither found nor written since."""
        if self._root is not None:
            try:
                check_folder(self._root, trusted=trusted, writable=mode in ("rw", "fresh"))
                if mode in ("rw", "fresh"):
                    sweep_temporaries(self._root / TEMPORARIES)
            except CacheError as error:
                if required:
                    raise
                _log.warning("measurements are not kept: %s", error)
                self._root = None
        for tier in self._tiers:
            tier.check_schema("measurements", 1, ".json", SCHEMA)
        self.knew_any = self._root is not None and mode != "fresh" and (self._root / "measurements").is_dir()
        self.knew_any = self.knew_any or any(t.usable and (t.path / "measurements").is_dir() for t in self._tiers)
        """Whether there is any measurement. If not, everything that is asked for will be measured."""

    @classmethod
    def at(
        cls, location: CacheLocation, begun: Begun | None = None, tiers: Sequence[CacheTier] = ()
    ) -> MeasurementStore:
        """The store at a place that `cache_location` found."""
        mode, trusted, required = location.mode, location.trusted, location.required
        return cls(location.root, mode=mode, trusted=trusted, required=required, begun=begun, tiers=tiers)

    @property
    def root(self) -> Path | None:
        """The folder in use, or None when nothing is kept (any more)."""
        return self._root

    def operator(
        self, name: str, contract: str, device: str, policy: str, baselines: Mapping[str, str] | None = None
    ) -> OperatorStore:
        """The measurements of one operator on one device under one policy.

        Args:
            contract: `operator_digest` of the operator.
            device, policy: digests.
            baselines: version of each baseline that takes part, by name without `baseline:`.
        """
        shared = {"operator": name, "contract": contract, "device": device, "policy": policy}
        return OperatorStore(self, shared, baselines or {})

    def load(self, key: dict[str, object], *, peek: bool = False) -> tuple[Measurement, ...] | None:
        """What is stored under a key. None if there is nothing usable.

        A caller that only wants to know whether something is there passes `peek`. Then a miss is not counted.
        """
        name = canonical_digest(key)
        found = self._memory.get(name)
        if found is None and self._root is not None and self._mode != "fresh":
            found = self._read(self._path(self._root, name), name)
        if found is None:
            found = self._in_tiers(name)
        if found is not None:
            self._memory[name] = found  # callers ask whether it is known before they take it
        if peek:
            return found
        if found is None:
            self.absent.add(name)
        return found

    def save(self, key: dict[str, object], measurements: tuple[Measurement, ...]) -> None:
        """Store measurements under a key.

        If the disk cannot be written to, there is one warning, and memory keeps them.
        """
        name = canonical_digest(key)
        self._memory[name] = measurements
        self.used.pop(name, None)
        root = self._root  # another thread may find the disk full
        if root is None or self._mode == "ro":
            return
        path = self._path(root, name)
        try:
            private_folder(path.parent)
            data = seal(_Stored(key=key, measurements=measurements), SCHEMA)
            replace_file(path, data, root / TEMPORARIES)
            self.written += 1
            self.used[name] = hashlib.sha256(data).hexdigest()
            self.absent.discard(name)
        except OSError as error:
            if error.errno not in DISK_ERRORS:
                raise
            _log.warning("measurements are not kept: %s: %s", root, error.strerror)
            self._root = None

    def file_digest(self, name: str) -> str:
        """Digest of a file's present contents. Empty if there is no usable file, or if none is to be read."""
        try:
            if self._root is not None and self._mode != "fresh":
                return hashlib.sha256(self._bytes(self._path(self._root, name))).hexdigest()
        except (OSError, CacheError, CorruptError):
            pass
        for tier in self._tiers:
            with contextlib.suppress(OSError, CacheError, CorruptError):
                return hashlib.sha256(self._tier_bytes(tier, name)).hexdigest()
        return ""

    def _path(self, root: Path, name: str) -> Path:
        return root / "measurements" / name[:2] / f"{name}.json"

    def _in_tiers(self, name: str) -> tuple[Measurement, ...] | None:
        for tier in self._tiers:
            try:
                found = self._unsealed(self._tier_bytes(tier, name), name)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OtherSchemaError, CorruptError, CacheError, OSError) as error:
                tier.pass_over(self._path(tier.path, name), error)
                continue
            tier.served_measurements()
            return found
        return None

    def _tier_bytes(self, tier: CacheTier, name: str) -> bytes:
        if not tier.usable:
            raise FileNotFoundError
        return read_own(self._path(tier.path, name), trusted=tier.trusted, tier_of=tier.owner)

    def _unsealed(self, data: bytes, name: str) -> tuple[Measurement, ...]:
        """What a file holds. The file then counts as used."""
        stored = unseal(data, _Stored, SCHEMA)
        if canonical_digest(stored.key) != name:
            raise CorruptError("its key is not its name")
        self.used[name] = hashlib.sha256(data).hexdigest()
        return stored.measurements

    def _read(self, path: Path, name: str) -> tuple[Measurement, ...] | None:
        try:
            return self._unsealed(self._bytes(path), name)
        except FileNotFoundError:
            return None
        except OtherSchemaError as error:
            _log.warning("measurement %s is ignored: %s", path, error)
        except (CorruptError, CacheError, OSError) as error:
            self.damaged += 1
            _log.warning("measurement %s is not used: %s", path, error)
        return None

    def _bytes(self, path: Path) -> bytes:
        return read_own(path, trusted=self._trusted, since=self._since)


class OperatorStore:
    """One operator's part of a store. `MeasurementStore.operator` makes it."""

    def __init__(self, store: MeasurementStore, shared: Mapping[str, str], baselines: Mapping[str, str]) -> None:
        self._store, self._shared, self._baselines = store, shared, baselines
        self._plain: dict[str, object] = {}

    def find(self, candidate: str, code: str, problem: Problem, *, peek: bool = False) -> Measurement | None:
        """The measurement of a code on a problem, under this candidate's id.

        Args:
            candidate: a candidate's id, or `baseline:<name>`.
            code: empty for a baseline.
            problem: the problem that it was measured on.
            peek: see `MeasurementStore.load`.
        """
        key = self._key("one", [self._subject(candidate, code)], problem)
        found = self._store.load(key, peek=peek)
        return None if found is None else msgspec.structs.replace(found[0], candidate=candidate, problem=problem)

    def put(self, measurement: Measurement) -> None:
        """Store one measurement, whatever its status.

        Raises:
            ValueError: when its device or policy is not that of this part of the store.
        """
        self._check([measurement])
        subject = self._subject(measurement.candidate, measurement.code)
        self._store.save(self._key("one", [subject], measurement.problem), (measurement,))

    def find_race(
        self, entrants: Sequence[tuple[str, str]], problem: Problem, *, peek: bool = False
    ) -> list[Measurement] | None:
        """The race of exactly these entrants (candidate id, code) on a problem, in the given order.

        Times of different races cannot be compared, so a race is found as a whole or not at all. For `peek`, see
        `MeasurementStore.load`.
        """
        subjects = [self._subject(candidate, code) for candidate, code in entrants]
        found = self._store.load(self._key("race", subjects, problem), peek=peek)
        if found is None:
            return None
        by_subject = {self._subject(m.candidate, m.code): m for m in found}
        if any(s not in by_subject for s in subjects):
            return None
        return [
            msgspec.structs.replace(by_subject[s], candidate=candidate, problem=problem)
            for s, (candidate, _) in zip(subjects, entrants, strict=True)
        ]

    def put_race(self, measurements: Iterable[Measurement]) -> None:
        """Store all entrants of one race on one problem.

        Raises:
            ValueError: when they are of several problems, or of another device or policy.
        """
        race = tuple(measurements)
        self._check(race)
        if len({problem_key(m.problem) for m in race}) != 1:
            raise ValueError("the measurements of one race must be on one problem")
        subjects = [self._subject(m.candidate, m.code) for m in race]
        self._store.save(self._key("race", subjects, race[0].problem), race)

    def _subject(self, candidate: str, code: str) -> str:
        if code:
            return code
        return f"{candidate}@{self._baselines.get(candidate.removeprefix(BASELINE), '')}"

    def _key(self, kind: str, subjects: Sequence[str], problem: Problem) -> dict[str, object]:
        plain = self._plain.get(problem.id)
        if plain is None:
            plain = self._plain[problem.id] = msgspec.json.decode(problem_key(problem))
        return {"schema": SCHEMA, "kind": kind, **self._shared, "subjects": sorted(set(subjects)), "problem": plain}

    def _check(self, measurements: Iterable[Measurement]) -> None:
        for m in measurements:
            if (m.device, m.policy) != (self._shared["device"], self._shared["policy"]):
                raise ValueError(f"measurement of {m.candidate} is of another device or policy than this store")
