"""The measurement store: what this user's builds measured, in the lines of a record, beside the object cache.

There is one text for each operator, device and policy. Any number of builds append to it. If a build that
measures all again does not end, the next one continues with what it has measured.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import stat
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from aot_tune.bench.protocol.measurement_records import BASELINE, Device, Measurement, Policy
from aot_tune.compile.toolchain import measured_code
from aot_tune.compile.variant import Variant
from aot_tune.database.format import (
    END,
    Group,
    Head,
    candidate_line,
    encode_group,
    group_name,
    is_store,
    measurement_line,
    measurement_of,
    read_groups,
    subject_of,
)
from aot_tune.database.record_lines import STORE_SCHEMA, CandidateLine, MeasurementLine
from aot_tune.database.records import CandidateRecord
from aot_tune.spec import Problem
from aot_tune.support.cache_tiers import CacheTier
from aot_tune.support.errors import CacheError, DatabaseError
from aot_tune.support.file_locks import Timeout, TrueLock
from aot_tune.support.storage import (
    TEMPORARIES,
    CacheLocation,
    CacheMode,
    CorruptError,
    check_trust,
    checked_folder,
    opened_own,
    private_folder,
    read_own,
    replace_file,
    sweep_temporaries,
    write_file,
)

_ROOM, _ENDING = "measurements", ".jsonl"
_LOCK_SECONDS = 60.0
_APPENDING = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_BLOCK = 1 << 20
_TAIL = 4096
"""Bytes before the end of what was read. A file of the same number that does not have them there is another one."""
_REFUSED = ".refused"
"""A text that others may write to is not read. It is kept under this name, and a new one takes its place."""
_SPARE = 256
"""A text is written anew when more than half of its groups are superseded, and these are more than this."""
_OUTDATED_SECONDS = 30 * 24 * 3600.0
"""Groups that are older go when a text is written anew, if a candidate of theirs had other code since. Texts of other
versions go if nothing was added for so long."""
_BEGUN = "begun"
_LONGEST_SECONDS = 24 * 3600.0
"""Measurements older than this do not count as new when everything is to be measured again."""
_COPIED_SECONDS = 60.0
"""A file holds its own time. If that differs by more, it is a copy, so the times of measurements are not to be
trusted."""
_log = logging.getLogger("aot_tune.database")


class _Text:
    """What one file holds, as far as it was read, and what this process added.

    Args:
        tier: the owner of a tier's file, or -1 for one of this user's.
        since: older groups do not count.
    """

    def __init__(self, path: Path, head: Head, *, trusted: bool, tier: int = -1, since: int = 0) -> None:
        self.path, self._head = path, head
        self._trusted, self._tier, self._since = trusted, tier, since
        self.groups: dict[str, Group] = {}
        self._candidates: dict[tuple[str, str], CandidateLine] = {}
        self._at, self._tail = (0, 0), b""
        self._end = self._count = self._damaged = 0

    def refresh(self) -> int:
        """Read what was appended since the last time. Returns how many parts are damaged.

        The last group may be torn: whoever wrote it was killed, or is still at it. It is left out.

        Raises:
            OSError, CorruptError, CacheError: as `opened_own`.
        """
        with opened_own(self.path, trusted=self._trusted, tier_of=self._tier) as (file, status):
            at = status.st_dev, status.st_ino
            if self._is_another(at, file.fileno()):
                self._begin_anew(at)
            file.seek(self._end)
            text = file.read()
        whole = text.rfind(END)
        if whole < 0:
            return 0
        text = text[: whole + len(END)]
        self._has_read(text)
        damaged, read = 0, dict[str, Group]()
        for group in read_groups(text, self._head.digests):
            self._count += 1
            if group is None:
                damaged += 1
                continue
            self._candidates |= _by_code(group.candidates)
            if group.at >= self._since:
                read[group.name] = structs.replace(group, candidates=()) if group.candidates else group
        self.groups = read | self.groups  # what a build has once used stays the same for it
        self._damaged += damaged
        return damaged

    def _begin_anew(self, at: tuple[int, int] = (0, 0)) -> None:
        self._at, self._tail, self._end, self._count, self._damaged = at, b"", 0, 0, 0
        self._candidates = {}

    def _is_another(self, at: tuple[int, int], descriptor: int) -> bool:
        """Whether a file is not the one that was read: a file that is written anew may get an earlier one's inode."""
        return at != self._at or os.pread(descriptor, len(self._tail), self._end - len(self._tail)) != self._tail

    def _has_read(self, text: bytes) -> None:
        self._end += len(text)
        self._tail = (self._tail + text[-_TAIL:])[-_TAIL:]

    def append(self, group: Group, candidates: Iterable[CandidateLine], temporaries: Path) -> None:
        """Add a group to the file, with the lines of those of its candidates that the file does not have.

        A torn group at its end is cut off, and a file that cannot be used is replaced.

        Raises:
            OSError: when it cannot be written. The file is then as before.
        """
        private_folder(self.path.parent)
        with self._locked():
            if self._is_wasteful():
                with contextlib.suppress(OSError, CorruptError, CacheError):
                    _Text(self.path, self._head, trusted=self._trusted)._compact(temporaries)
                self._begin_anew()
            lines = _by_code(candidates)
            added = self._added(group, lines)
            self._candidates |= lines
            if not added:
                self._write_anew(self.groups, temporaries)

    def compact(self, temporaries: Path) -> None:
        """Write the file anew if it has parts that are damaged, superseded or outdated."""
        with self._locked():
            self._compact(temporaries)

    def _compact(self, temporaries: Path) -> None:
        """Nothing was read before, so all that others have added is kept, and the latest of each holds."""
        self.refresh()
        kept = _current(self.groups)
        if self._count > len(kept):
            self._write_anew(kept, temporaries)

    def _locked(self) -> TrueLock:
        return TrueLock(self.path.parent / "lock", timeout=_LOCK_SECONDS, mode=0o600)

    def _is_wasteful(self) -> bool:
        """Whether a file that was read as a whole has a damaged part, or most of its groups are superseded."""
        dead = self._count - len(self.groups)
        return self._since == 0 and self._end > 0 and (self._damaged > 0 or dead > max(len(self.groups), _SPARE))

    def _added(self, group: Group, candidates: Mapping[tuple[str, str], CandidateLine]) -> bool:
        """Whether a group was added to the file. Not if this is no file, or others may write to it."""
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
            self._add(descriptor, status, group, candidates)
        except CacheError:  # its groups are right again once nobody else may write to it
            self.path.replace(f"{self.path}{_REFUSED}")
            return False
        finally:
            os.close(descriptor)
        return True

    def _add(
        self, descriptor: int, status: os.stat_result, group: Group, candidates: Mapping[tuple[str, str], CandidateLine]
    ) -> None:
        at, size = (status.st_dev, status.st_ino), _whole(descriptor, status.st_size)
        if size < status.st_size:
            os.ftruncate(descriptor, size)
        if self._is_another(at, descriptor):  # others have written it anew, perhaps without lines that were there
            self._begin_anew(at)
        new = tuple(line for subject, line in candidates.items() if subject not in self._candidates)
        data = encode_group(structs.replace(group, candidates=new), self._head.digests)
        data = data if size else self._head.text + data
        try:
            if os.write(descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(descriptor, size)
            raise
        if size == self._end:
            self._has_read(data)
            self._count += 1

    def _write_anew(self, groups: Mapping[str, Group], temporaries: Path) -> None:
        lines, new = [self._head.text], dict(self._candidates)
        for group in groups.values():
            of_group = [new.pop((m.candidate, m.code), None) for m in group.measurements]
            candidates = tuple(line for line in of_group if line is not None)
            lines.append(encode_group(structs.replace(group, candidates=candidates), self._head.digests))
        text = b"".join(lines)
        replace_file(self.path, text, temporaries, durable=True)  # it holds all that this machine has measured
        status = self.path.stat()
        written = {subject: line for subject, line in self._candidates.items() if subject not in new}
        self._begin_anew((status.st_dev, status.st_ino))
        self._has_read(text)
        self._candidates, self._count = written, len(groups)


def _by_code(lines: Iterable[CandidateLine]) -> dict[tuple[str, str], CandidateLine]:
    return {(line.id, measured_code(line.source, line.object, line.device)): line for line in lines}


def _current(groups: Mapping[str, Group]) -> dict[str, Group]:
    """The groups without those that are old, and of which a candidate had other code since."""
    latest = {m.candidate: m.code for g in sorted(groups.values(), key=lambda g: g.at) for m in g.measurements}
    old = time.time_ns() - _OUTDATED_SECONDS * 1e9
    return {
        name: group
        for name, group in groups.items()
        if group.at > old or all(latest[m.candidate] == m.code for m in group.measurements)
    }


def _whole(descriptor: int, size: int) -> int:
    """Where the last whole group of a file of this size ends."""
    end, block = size, len(END)
    while end:
        begin = max(end - block, 0)
        at = os.pread(descriptor, end - begin, begin).rfind(END)
        if at >= 0:
            return begin + at + len(END)
        end, block = (begin + len(END) - 1 if begin else 0), _BLOCK
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
        self._root, self._writes = None if mode == "off" else root, mode in ("rw", "fresh")
        self._texts: dict[str, _Text] = {}
        self._of_tiers: dict[tuple[CacheTier, str], _Text] = {}
        self._served: set[tuple[str, str]] = set()
        self._unusable: set[Path] = set()
        self._lock = threading.RLock()
        self.damaged = 0
        if self._root is not None:
            tell = functools.partial(_log.warning, "measurements are not kept: %s")
            self._root, self._writes = checked_folder(
                self._root, trusted=trusted, writable=self._writes, required=required, tell=tell
            )
            if self._root is not None and self._writes:
                sweep_temporaries(self._root / TEMPORARIES)
        for tier in self._tiers:
            tier.check_schema(_ROOM, 0, _ENDING, STORE_SCHEMA) or tier.check_schema(
                _ROOM, 1, ".json", STORE_SCHEMA
            )  # up to 2
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
        return self._root if self._writes or self._mode == "ro" else None

    def operator(
        self,
        name: str,
        contract: str,
        device: Device,
        policy: Policy,
        baselines: Mapping[str, str] | None = None,
        *,
        kind: str = "",
    ) -> OperatorStore:
        """The measurements of one operator on one device under one policy.

        Args:
            contract: `operator_digest` of the operator.
            baselines: version of each baseline that takes part, by name without `baseline:`.
            kind: names what is not measured as candidates are, such as a survey. It counts nowhere else.
        """
        head = Head.of(name, contract, device, policy, kind)
        return OperatorStore(self, head, policy.digest, baselines or {})

    def load(self, head: Head, name: str) -> Group | None:
        """What is stored under a name in a text. None if there is nothing usable."""
        with self._lock:
            text = self._text(head)
            if name not in text.groups and self._root is not None and self._mode != "fresh":
                self._refresh(text)
            return text.groups.get(name) or self._in_tiers(head, name)

    def save(self, head: Head, group: Group, candidates: Iterable[CandidateLine]) -> None:
        """Add a group to a text, with lines of candidates that it lacks. Memory keeps it if the disk cannot."""
        with self._lock:
            text = self._text(head)
            text.groups[group.name] = group
            if self._root is None or not self._writes:
                return
            try:
                text.append(group, candidates, self._root / TEMPORARIES)
                return
            except Timeout:
                why = "another process holds its lock"
            except OSError as error:
                why = error.strerror or str(error)
            _log.warning("measurements are not kept: %s: %s", self._root, why)
            self._writes = False

    def _text(self, head: Head) -> _Text:
        if head.stem not in self._texts:
            path = (self._root or Path()) / _ROOM / f"{head.stem}{_ENDING}"
            self._texts[head.stem] = _Text(path, head, trusted=self._trusted, since=self._since)
        return self._texts[head.stem]

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
            _log.warning("%d parts of %s are damaged and not used", damaged, text.path)

    def _in_tiers(self, head: Head, name: str) -> Group | None:
        for tier in self._tiers:
            text = self._of_tier(tier, head)
            if name in text.groups:
                if (head.stem, name) not in self._served:
                    self._served.add((head.stem, name))
                    tier.served_measurements()
                return text.groups[name]
        return None

    def _of_tier(self, tier: CacheTier, head: Head) -> _Text:
        """A text of a tier, which is read once."""
        text = self._of_tiers.get((tier, head.stem))
        if text is None:
            path = tier.path / _ROOM / f"{head.stem}{_ENDING}"
            text = self._of_tiers[tier, head.stem] = _Text(path, head, trusted=tier.trusted, tier=tier.owner)
            try:
                for _ in range(text.refresh() if tier.usable else 0):
                    tier.pass_over(path, CorruptError("a part of it is damaged"))
            except (FileNotFoundError, NotADirectoryError):
                pass
            except (CorruptError, CacheError, OSError) as error:
                tier.pass_over(path, error)
        return text


def compact_store(location: CacheLocation) -> None:
    """Drop what is damaged, superseded or outdated from all texts of a store that may be written.

    Texts that this version does not read go if nothing was added for a month.
    """
    if location.root is None or location.mode not in ("rw", "fresh"):
        return
    for path in sorted((location.root / _ROOM).glob(f"*{_ENDING}")):
        try:
            text = read_own(path, trusted=location.trusted)
            if is_store(text, other=True) and time.time() - path.stat().st_mtime > _OUTDATED_SECONDS:
                path.unlink(missing_ok=True)
                continue
            head = Head.read(text, str(path))
            if f"{head.stem}{_ENDING}" == path.name:
                _Text(path, head, trusted=location.trusted).compact(location.root / TEMPORARIES)
        except DatabaseError:  # of another version; or its head is damaged, and goes once something is added
            continue
        except (OSError, CorruptError, CacheError) as error:
            _log.warning("%s stays as it is: %s", path, error)


class OperatorStore:
    """One operator's part of a store. `MeasurementStore.operator` makes it."""

    def __init__(self, store: MeasurementStore, head: Head, policy: str, baselines: Mapping[str, str]) -> None:
        self._store, self._head, self._baselines = store, head, baselines
        self._device, self._policy = head.device.digest, policy

    def find(self, candidate: str, code: str, problem: Problem) -> Measurement | None:
        """The measurement of a code on a problem, under this candidate's id.

        Args:
            candidate: a candidate's id, or `baseline:<name>`.
            code: empty for a baseline.
            problem: the problem that it was measured on.
        """
        screens = self._find([(candidate, code)], problem, raced=False)
        return None if screens is None else screens[0]

    def put(self, measurement: Measurement, variants: Iterable[Variant] = ()) -> None:
        """Store a measurement of any status. `variants` make its candidate again. Raises ValueError as `put_race`."""
        self._save([measurement], variants, raced=False)

    def find_race(self, entrants: Sequence[tuple[str, str]], problem: Problem) -> list[Measurement] | None:
        """The race of exactly these entrants (candidate id, code) on a problem, in order: whole, or not at all."""
        return self._find(entrants, problem, raced=True)

    def put_race(self, measurements: Iterable[Measurement], variants: Iterable[Variant] = ()) -> None:
        """Store all entrants of a race. Raises ValueError for several problems, or another device or policy."""
        self._save(list(measurements), variants, raced=True)

    def _find(self, entrants: Sequence[tuple[str, str]], problem: Problem, *, raced: bool) -> list[Measurement] | None:
        subjects = [code or subject_of(name, self._version(name)) for name, code in entrants]
        group = self._store.load(self._head, group_name(subjects, problem, raced=raced))
        if group is None:
            return None
        lines = {subject_of(line.candidate, line.code): line for line in group.measurements}
        return [
            measurement_of(lines[s], problem, name, code, self._device, self._policy)
            for s, (name, code) in zip(subjects, entrants, strict=True)
        ]

    def _save(self, measurements: Sequence[Measurement], variants: Iterable[Variant], *, raced: bool) -> None:
        if len({m.problem.key for m in measurements}) != 1:
            raise ValueError("what is stored at once must be on one problem")
        lines = tuple(map(self._line, measurements))
        codes = {(m.candidate, m.code) for m in measurements}
        made = [CandidateRecord.of(v) for v in variants if v.compiled and (v.id, v.code) in codes]
        group = Group(time.time_ns(), raced, measurements[0].problem, lines)
        self._store.save(self._head, group, map(candidate_line, made))

    def _version(self, baseline: str) -> str:
        return self._baselines.get(baseline.removeprefix(BASELINE), "")

    def _line(self, m: Measurement) -> MeasurementLine:
        if (m.device, m.policy) != (self._device, self._policy):
            raise ValueError(f"measurement of {m.candidate} is of another device or policy than this store")
        return measurement_line(m, m.code or self._version(m.candidate))


@dataclass(frozen=True)
class Begun:
    """A build whose measurements count from `since` on, in ns since the epoch.

    `resumed`: an earlier build began it and did not end. Until `leave`, there is no other build of this kind.
    """

    path: Path
    since: int
    resumed: bool
    lock: TrueLock

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
    lock = TrueLock(path.with_suffix(".lock"), mode=0o600)
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
        with contextlib.suppress(OSError):
            lock.release()
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
