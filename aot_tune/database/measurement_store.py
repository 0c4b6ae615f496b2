"""The measurement store: what this user's builds measured, in lines like those of a record, beside the object cache.

There is one text for each operator, device and policy. A line is one screen, or one race with all of its entrants. It
has its own digest, so damage costs the lines that it touches. Any number of builds append to a text. If a build that
measures all again does not end, the next one continues with what it has measured.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import stat
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
from filelock import FileLock, Timeout

from aot_tune.bench.protocol.measurement_records import BASELINE, Measurement, is_baseline
from aot_tune.database.identity import problem_key
from aot_tune.database.record_lines import MeasurementLine
from aot_tune.spec import Problem
from aot_tune.support.cache_tiers import CacheTier
from aot_tune.support.digests import canonical_digest, shared_fields
from aot_tune.support.errors import CacheError
from aot_tune.support.storage import (
    DISK_ERRORS,
    TEMPORARIES,
    CacheLocation,
    CacheMode,
    CorruptError,
    check_folder,
    check_trust,
    opened_own,
    private_folder,
    replace_file,
    sweep_temporaries,
    write_file,
)

__all__ = ["SCHEMA", "Begun", "MeasurementStore", "OperatorStore", "begin", "compact_store", "forget"]

SCHEMA = 4
"""Raised with every change of what a line may hold, because a line that cannot be read counts as damaged."""
_FORMAT = "aot_tune store"
_ROOM, _ENDING = "measurements", ".jsonl"
_SHORT, _LONG = 16, 24
"""Hex digits of a line's digest, and of the digest in a text's name."""
_LOCK_SECONDS = 60.0
_APPENDING = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_BLOCK = 1 << 20
_REFUSED = ".refused"
"""A text that others may write to is not read. It is kept under this name, and a new one takes its place."""
_SPARE_LINES = 256
"""A text is written anew when more than half of its lines are superseded, and these are more than this."""
_BEGUN = "begun"
_LONGEST_SECONDS = 24 * 3600.0
"""Measurements older than this do not count as new when everything is to be measured again."""
_COPIED_SECONDS = 60.0
"""A file holds its own time. If that differs by more, it is a copy, so the times of measurements are not to be
trusted."""
_log = logging.getLogger("aot_tune.database")


class _StoredMeasurement(MeasurementLine, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A measurement as a record has it, and what only the store keeps. `code` is a baseline's version."""

    problem: str = ""
    code: str = ""
    phases: dict[str, float] = msgspec.field(default_factory=dict)

    @property
    def subject(self) -> str:
        """What was measured: a code, or a version of a baseline."""
        return self.code if self.code and not is_baseline(self.candidate) else f"{self.candidate}@{self.code}"


class _Result(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A line without its digest: one screen, or a race with all of its entrants. `at` is when it was written, in ns."""

    at: int
    problem: Problem
    screen: _StoredMeasurement | None = None
    race: tuple[_StoredMeasurement, ...] | None = None

    @property
    def measurements(self) -> tuple[_StoredMeasurement, ...]:
        """All of them."""
        return self.race or (() if self.screen is None else (self.screen,))

    @property
    def name(self) -> str:
        """Names what was measured on what."""
        return _name([m.subject for m in self.measurements], self.problem, raced=self.race is not None)


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a text. It is for people, and names the schema: each line's digest covers the text's name."""

    format: str = _FORMAT
    schema: int = SCHEMA
    operator: str
    contract: str
    device: str
    policy: str

    @property
    def stem(self) -> str:
        """Name of the text, without its ending."""
        return f"{self.operator}-{canonical_digest(self)[:_LONG]}"


class _Line(NamedTuple):
    """A line of a text: its row without the end, and the result in it."""

    row: bytes
    result: _Result


_START, _GOES_ON, _HEAD = b'{"digest":"', b'",', b'{"header":'
_DECODER, _ENCODER = msgspec.json.Decoder(_Result), msgspec.json.Encoder()


def _name(subjects: Iterable[str], problem: Problem, *, raced: bool) -> str:
    return canonical_digest([raced, sorted(set(subjects)), problem_key(problem)])


def _line(stem: str, rest: bytes, result: _Result) -> _Line:
    """A line of the text with that name. `rest` is the result as JSON, without its first brace."""
    digest = hashlib.sha256(stem.encode() + b"\n" + rest).hexdigest()[:_SHORT]
    return _Line(b"".join((_START, digest.encode(), _GOES_ON, rest)), result)


def _read_line(stem: str, row: bytes) -> _Line | None:
    """A row as a line. None if it is damaged, or of another text."""
    rest = row[len(_START) + _SHORT + len(_GOES_ON) :]
    try:
        line = _line(stem, rest, _DECODER.decode(b"{" + rest))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return line if line.row == row else None


class _Text:
    """What one file holds, as far as it was read, and what this process added.

    Args:
        tier: the owner of a tier's file, or -1 for one of this user's.
        since: older lines do not count.
    """

    def __init__(self, path: Path, *, trusted: bool, tier: int = -1, since: int = 0) -> None:
        self.path, self.stem = path, path.name.removesuffix(_ENDING)
        self._trusted, self._tier, self._since = trusted, tier, since
        self.header, self.lines = b"", dict[str, _Line]()
        self._at = (0, 0)
        self._end = self._rows = self._damaged = 0

    def refresh(self) -> int:
        """Read what was appended since the last time. Returns how many lines are damaged.

        The last line may be torn: whoever wrote it was killed, or is still at it. It is left out.

        Raises:
            OSError, CorruptError, CacheError: as `opened_own`.
        """
        with opened_own(self.path, trusted=self._trusted, tier_of=self._tier) as (file, status):
            at = status.st_dev, status.st_ino
            if at != self._at or status.st_size < self._end:
                self._at, self._end, self._rows, self._damaged = at, 0, 0, 0
            file.seek(self._end)
            text = file.read()
        rows = text[: text.rfind(b"\n") + 1].split(b"\n")[:-1]
        damaged, read = 0, dict[str, _Line]()
        for row in rows:
            line = _read_line(self.stem, row)
            if line is None and self._end == 0 and row is rows[0] and row.startswith(_HEAD):
                self.header = row + b"\n"
            elif line is None:
                damaged += 1
            elif line.result.at >= self._since:
                read[line.result.name] = line
        self.lines = read | self.lines  # what a build has once used stays the same for it
        self._end += sum(map(len, rows)) + len(rows)
        self._rows += len(rows)
        self._damaged += damaged
        return damaged

    def append(self, line: _Line, header: bytes, temporaries: Path) -> None:
        """Add a line to the file. A torn line at its end is cut off, and a file that cannot be used is replaced.

        Raises:
            OSError: when it cannot be written. The file is then as before.
        """
        private_folder(self.path.parent)
        with self._locked():
            if self._is_wasteful():
                with contextlib.suppress(OSError, CorruptError, CacheError, msgspec.DecodeError):
                    _Text(self.path, trusted=self._trusted)._compact(temporaries)
                self._at, self._end, self._rows, self._damaged = (0, 0), 0, 0, 0
            if not self._added(line.row + b"\n", header):
                self._write_anew(header, temporaries)

    def compact(self, temporaries: Path) -> None:
        """Write the file anew if it is of this schema and has lines that are damaged or superseded."""
        with self._locked():
            self._compact(temporaries)

    def _compact(self, temporaries: Path) -> None:
        """Nothing was read before, so all that others have added is kept, and the latest of each holds."""
        self.refresh()
        header = self.header and msgspec.json.decode(self.header, type=dict[str, _Header])["header"]
        if header and header.schema == SCHEMA and self._rows - 1 > len(self.lines):
            self._write_anew(self.header, temporaries)

    def _locked(self) -> FileLock:
        return FileLock(self.path.parent / "lock", timeout=_LOCK_SECONDS, mode=0o600)

    def _is_wasteful(self) -> bool:
        """Whether a file that was read as a whole has a damaged line, or most of its lines are superseded."""
        dead = self._rows - len(self.lines)
        return self._since == 0 and self._end > 0 and (self._damaged > 0 or dead > max(len(self.lines), _SPARE_LINES))

    def _added(self, data: bytes, header: bytes) -> bool:
        """Whether data was added to the file. Not if this is no file, or others may write to it."""
        try:
            descriptor = os.open(self.path, _APPENDING, 0o600)
        except OSError as error:
            if error.errno in (errno.EISDIR, errno.ELOOP):
                return False
            raise
        try:
            status = os.fstat(descriptor)
            if not self._trusted:
                check_trust(status, self.path)
            if not stat.S_ISREG(status.st_mode):
                return False
            self._add(descriptor, status, data, header)
        except CacheError:  # its lines are right again once nobody else may write to it
            self.path.replace(f"{self.path}{_REFUSED}")
            return False
        finally:
            os.close(descriptor)
        return True

    def _add(self, descriptor: int, status: os.stat_result, data: bytes, header: bytes) -> None:
        size = status.st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            size = _whole(descriptor, size)
            os.ftruncate(descriptor, size)
        data = data if size else header + data
        try:
            if os.write(descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(descriptor, size)
            raise
        if (status.st_dev, status.st_ino) == self._at and size == self._end:
            self._end += len(data)
            self._rows += 1

    def _write_anew(self, header: bytes, temporaries: Path) -> None:
        text = header + b"".join(line.row + b"\n" for line in self.lines.values())
        replace_file(self.path, text, temporaries, durable=True)  # it holds all that this machine has measured
        status = self.path.stat()
        self._at, self._end, self._rows, self._damaged = (status.st_dev, status.st_ino), len(text), len(self.lines), 0


def _whole(descriptor: int, size: int) -> int:
    """Where the last whole line of a file of this size ends."""
    while size:
        begin = max(size - _BLOCK, 0)
        at = os.pread(descriptor, size - begin, begin).rfind(b"\n")
        if at >= 0:
            return begin + at + 1
        size = begin
    return 0


class MeasurementStore:
    """Measurements by everything that they depend on. Each is in its text at once. Any thread may use it.

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
            mode = "fresh"  # nothing was measured since, whatever the times of lines say
        self._mode, self._trusted = mode, trusted
        self._since = 0 if begun is None else begun.since
        self._root = None if mode == "off" else root
        self._texts: dict[str, _Text] = {}
        self._of_tiers: dict[tuple[CacheTier, str], _Text] = {}
        self._served: set[tuple[str, str]] = set()
        self._unusable: set[Path] = set()
        self._lock = threading.RLock()
        self.written = self.damaged = 0
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
            tier.check_schema(_ROOM, 0, _ENDING, SCHEMA) or tier.check_schema(_ROOM, 1, ".json", SCHEMA)  # up to 2
        asked = [t.path for t in self._tiers if t.usable]
        asked += [self._root] if self._root is not None and mode != "fresh" else []
        self.knew_any = any(next((path / _ROOM).glob(f"*{_ENDING}"), None) for path in asked)
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
        header = _Header(operator=name, contract=contract, device=device, policy=policy)
        return OperatorStore(self, header, baselines or {})

    def load(self, stem: str, name: str) -> _Result | None:
        """What is stored under a name in a text. None if there is nothing usable."""
        with self._lock:
            text = self._text(stem)
            if name not in text.lines and self._root is not None and self._mode != "fresh":
                self._refresh(text)
            line = text.lines.get(name) or self._in_tiers(stem, name)
        return None if line is None else line.result

    def save(self, header: _Header, result: _Result) -> None:
        """Add a line to a text.

        If the disk cannot be written to, there is one warning, and memory keeps the line.
        """
        stem, name = header.stem, result.name
        line = _line(stem, _ENCODER.encode(result)[1:], result)
        with self._lock:
            text = self._text(stem)
            text.lines[name] = line
            if self._root is None or self._mode == "ro":
                return
            try:
                text.append(line, _ENCODER.encode({"header": header}) + b"\n", self._root / TEMPORARIES)
                self.written += 1
                return
            except Timeout:
                why = "another process holds its lock"
            except NotImplementedError:  # some versions of filelock raise this where the disk has no locks
                why = os.strerror(errno.ENOLCK)
            except OSError as error:
                if error.errno not in DISK_ERRORS:
                    raise
                why = error.strerror or str(error)
            _log.warning("measurements are not kept: %s: %s", self._root, why)
            self._root = None

    def _text(self, stem: str) -> _Text:
        if stem not in self._texts:
            path = (self._root or Path()) / _ROOM / f"{stem}{_ENDING}"
            self._texts[stem] = _Text(path, trusted=self._trusted, since=self._since)
        return self._texts[stem]

    def _refresh(self, text: _Text) -> None:
        """Read what others have added to a text. What is wrong with it is told once."""
        if text.path in self._unusable:
            return
        try:
            damaged = text.refresh()
        except FileNotFoundError:
            return
        except (CorruptError, CacheError, OSError) as error:
            self._unusable.add(text.path)
            self.damaged += 1
            _log.warning("measurements %s are not used: %s", text.path, error)
            return
        if damaged:
            self.damaged += damaged
            _log.warning("%d lines of %s are damaged and not used", damaged, text.path)

    def _in_tiers(self, stem: str, name: str) -> _Line | None:
        for tier in self._tiers:
            text = self._of_tier(tier, stem)
            if name in text.lines:
                if (stem, name) not in self._served:
                    self._served.add((stem, name))
                    tier.served_measurements()
                return text.lines[name]
        return None

    def _of_tier(self, tier: CacheTier, stem: str) -> _Text:
        """A text of a tier, which is read once."""
        text = self._of_tiers.get((tier, stem))
        if text is None:
            path = tier.path / _ROOM / f"{stem}{_ENDING}"
            text = self._of_tiers[tier, stem] = _Text(path, trusted=tier.trusted, tier=tier.owner)
            try:
                for _ in range(text.refresh() if tier.usable else 0):
                    tier.pass_over(path, CorruptError("one of its lines is damaged"))
            except (FileNotFoundError, NotADirectoryError):
                pass
            except (CorruptError, CacheError, OSError) as error:
                tier.pass_over(path, error)
        return text


def compact_store(location: CacheLocation) -> None:
    """Drop lines that are damaged or superseded from all texts of a store that may be written."""
    if location.root is None or location.mode not in ("rw", "fresh"):
        return
    for path in sorted((location.root / _ROOM).glob(f"*{_ENDING}")):
        try:
            _Text(path, trusted=location.trusted).compact(location.root / TEMPORARIES)
        except (OSError, NotImplementedError, CorruptError, CacheError, msgspec.DecodeError) as error:
            _log.warning("%s stays as it is: %s", path, error)


class OperatorStore:
    """One operator's part of a store. `MeasurementStore.operator` makes it."""

    def __init__(self, store: MeasurementStore, header: _Header, baselines: Mapping[str, str]) -> None:
        self._store, self._header, self._baselines = store, header, baselines
        self._stem = header.stem

    def find(self, candidate: str, code: str, problem: Problem) -> Measurement | None:
        """The measurement of a code on a problem, under this candidate's id.

        Args:
            candidate: a candidate's id, or `baseline:<name>`.
            code: empty for a baseline.
            problem: the problem that it was measured on.
        """
        name = _name([self._subject(candidate, code)], problem, raced=False)
        result = self._store.load(self._stem, name)
        return None if result is None else self._measurement(result.measurements[0], candidate, problem)

    def put(self, measurement: Measurement) -> None:
        """Store one measurement, whatever its status.

        Raises:
            ValueError: when its device or policy is not that of this part of the store.
        """
        at, screen = time.time_ns(), self._stored(measurement)
        self._store.save(self._header, _Result(at=at, problem=measurement.problem, screen=screen))

    def find_race(self, entrants: Sequence[tuple[str, str]], problem: Problem) -> list[Measurement] | None:
        """The race of exactly these entrants (candidate id, code) on a problem, in the given order.

        Times of different races cannot be compared, so a race is found as a whole or not at all.
        """
        subjects = [self._subject(candidate, code) for candidate, code in entrants]
        result = self._store.load(self._stem, _name(subjects, problem, raced=True))
        if result is None:
            return None
        by_subject = {m.subject: m for m in result.measurements}
        return [
            self._measurement(by_subject[s], candidate, problem)
            for s, (candidate, _) in zip(subjects, entrants, strict=True)
        ]

    def put_race(self, measurements: Iterable[Measurement]) -> None:
        """Store all entrants of one race on one problem.

        Raises:
            ValueError: when they are of several problems, or of another device or policy.
        """
        entrants = tuple(measurements)
        race = tuple(map(self._stored, entrants))
        if len({problem_key(m.problem) for m in entrants}) != 1:
            raise ValueError("the measurements of one race must be on one problem")
        self._store.save(self._header, _Result(at=time.time_ns(), problem=entrants[0].problem, race=race))

    def _version(self, baseline: str) -> str:
        return self._baselines.get(baseline.removeprefix(BASELINE), "")

    def _subject(self, candidate: str, code: str) -> str:
        return code or f"{candidate}@{self._version(candidate)}"

    def _stored(self, m: Measurement) -> _StoredMeasurement:
        if (m.device, m.policy) != (self._header.device, self._header.policy):
            raise ValueError(f"measurement of {m.candidate} is of another device or policy than this store")
        fields = shared_fields(m, _StoredMeasurement) | {
            "problem": "",
            "ns": None,
            "code": m.code or self._version(m.candidate),
        }
        return _StoredMeasurement(**fields)

    def _measurement(self, stored: _StoredMeasurement, candidate: str, problem: Problem) -> Measurement:
        header, code = self._header, "" if is_baseline(candidate) else stored.code
        fields = {
            "candidate": candidate,
            "code": code,
            "problem": problem,
            "device": header.device,
            "policy": header.policy,
        }
        return Measurement(**shared_fields(stored, Measurement) | fields)


@dataclass(frozen=True)
class Begun:
    """A build whose measurements count from `since` on, in ns since the epoch.

    `resumed`: an earlier build began it and did not end. Until `leave`, there is no other build of this kind.
    """

    path: Path
    since: int
    resumed: bool
    lock: FileLock

    def end(self) -> None:
        """Everything is measured. The next build begins again."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s stays, so the next build that measures again takes this one's times: %s", self.path, error)

    def leave(self) -> None:
        """This build is over, whether it finished or not."""
        self.lock.release()


def begin(location: CacheLocation, key: str) -> Begun | None:
    """Begin a build that measures again, or continue the unfinished one of that key from the last 24 hours.

    None if the cache is not read and written, or while another such build is at work.
    """
    if location.root is None or location.mode != "rw":
        return None
    path = location.root / _BEGUN / key
    lock = FileLock(path.with_suffix(".lock"), mode=0o600)
    try:
        private_folder(path.parent)
        if not location.trusted:
            check_trust(path.parent.lstat(), path.parent)
        lock.acquire(timeout=0)
        resumed = _resumable(path)
        if not resumed:
            path.unlink(missing_ok=True)
            write_file(path, str(time.time_ns()).encode())
        return Begun(path, int(path.read_bytes()), resumed, lock)
    except Timeout:
        return None
    except (OSError, CacheError) as error:
        lock.release()
        if isinstance(error, OSError) and error.errno not in DISK_ERRORS:
            raise
        _log.warning("if this build is interrupted, the next one measures everything again: %s", error)
        return None


def forget(location: CacheLocation, key: str) -> None:
    """Drop what was begun: a build of another kind has ended since, or everything is to be measured again."""
    if location.root is None or location.mode not in ("rw", "fresh"):
        return
    try:
        (location.root / _BEGUN / key).unlink(missing_ok=True)
    except OSError as error:
        _log.warning("the next build that measures again takes what an interrupted build has measured: %s", error)


def _resumable(path: Path) -> bool:
    try:
        began, changed = int(path.read_bytes()) / 1e9, path.stat().st_mtime
    except (FileNotFoundError, ValueError):
        return False
    return abs(began - changed) < _COPIED_SECONDS and 0 <= time.time() - changed < _LONGEST_SECONDS
