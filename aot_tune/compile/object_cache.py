"""The object cache: content-addressed, shared by processes, bounded, and never an obstacle."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from elftools.common.exceptions import ELFError

from aot_tune.compile.cache_entry import (
    OBJECT,
    RECORD,
    SCHEMA,
    Contents,
    copy_entry,
    file_digest,
    key_text,
    read_entry,
    write_entry,
)
from aot_tune.compile.diagnostics import first_error
from aot_tune.compile.object_files import why_unlinkable
from aot_tune.compile.programs import option_key
from aot_tune.compile.toolchain import CompilersElsewhere, Object, Toolchain, target_by_name
from aot_tune.render import Rendered
from aot_tune.spec import Target
from aot_tune.support.cache_tiers import CacheTier
from aot_tune.support.errors import CacheError
from aot_tune.support.file_locks import Timeout, TrueLock
from aot_tune.support.storage import (
    TEMPORARIES,
    CacheLocation,
    CacheMode,
    CorruptError,
    OtherSchemaError,
    checked_folder,
    discard,
    new_temporary,
    private_folder,
    remove_tree,
    scratch_folder,
    sweep_temporaries,
)

LIMIT_BYTES = 1 << 30
_log = logging.getLogger("aot_tune.compile")
_EVERY_SECONDS = 60.0
_IN_USE_SECONDS = 24 * 3600.0
_TOUCH_SECONDS = 600.0
_FULL = ("no space left", "disk quota exceeded")


class CacheCounters(msgspec.Struct):
    """What a cache did: compiler runs (`compiled`), objects `copied` from a tier, and `damaged` entries, replaced."""

    compiled: int = 0
    copied: int = 0
    damaged: int = 0


class ObjectCache:
    """Compiles candidates once per machine. `get` takes an object from the cache, or makes it.

    Args:
        root: folder of the cache, or None to keep nothing. Objects are below `objects/`.
        toolchain: the backend's compiler.
        mode: rw; ro (read only); fresh (old entries are not read, but replaced); off.
        trusted: also accept folders and entries that belong to others, or that others may write to.
        required: a root that cannot be used is an error. Otherwise it is one warning, and nothing is kept.
        timeout: seconds that one compiler run may take.
        scratch: folder for objects that are not kept. By default, a temporary one that lives as long as the cache.
        elsewhere: compilers of other machines, which run instead of the toolchain's own.
        tiers: caches that are asked, in this order, for what is not in this one. What they have is copied.

    Raises:
        CacheError: when `required` and the root cannot be used.
    """

    def __init__(
        self,
        root: Path | None,
        toolchain: Toolchain,
        *,
        mode: CacheMode = "rw",
        trusted: bool = False,
        required: bool = True,
        timeout: float = 240.0,
        scratch: Path | None = None,
        elsewhere: CompilersElsewhere | None = None,
        tiers: Sequence[CacheTier] = (),
    ) -> None:
        self.toolchain, self.timeout, self.counters = toolchain, timeout, CacheCounters()
        self.elsewhere = elsewhere
        self._trusted, self._mode = trusted, mode
        self._root, self._writes = None if mode == "off" else root, mode in ("rw", "fresh")
        self._tiers = () if mode == "fresh" else tuple(tiers)
        self._count = threading.Lock()
        self.includes: dict[str, str] = {}
        """Digests of all files that the objects so far were made from, beside their sources."""
        self._kept: dict[str, Object] = {}
        self._made: set[str] = set()
        self._locate = functools.cache(toolchain.locate)  # it is asked for hundreds of files of every object
        self._warned: set[str] = set()
        self._temporary = None if scratch is not None else scratch_folder()
        self.scratch = scratch if scratch is not None else Path(self._temporary.name if self._temporary else "")
        if self._root is not None:
            self._open_root(self._root, required)
        for tier in self._tiers:
            tier.check_schema("objects", 2, RECORD, SCHEMA)

    @classmethod
    def at(
        cls,
        location: CacheLocation,
        toolchain: Toolchain,
        tiers: Sequence[CacheTier] = (),
        elsewhere: CompilersElsewhere | None = None,
    ) -> ObjectCache:
        """The cache at a place that `cache_location` found. If nothing is kept, it says so once."""
        if location.message:
            _log.warning("%s", location.message)
        root, mode, trusted, required = location.root, location.mode, location.trusted, location.required
        return cls(root, toolchain, mode=mode, trusted=trusted, required=required, tiers=tiers, elsewhere=elsewhere)

    @property
    def root(self) -> Path | None:
        """The folder in use, or None when nothing is kept (any more)."""
        return self._root if self._writes or self._mode == "ro" else None

    def maker(self, target: Target) -> dict[str, object]:
        """What keys say of the toolchain. Asking takes a millisecond, because files are looked for."""
        return {"recipe": self.toolchain.recipe(target), "toolchain": self.toolchain.identity()}

    def key(self, rendered: Rendered, target: Target, maker: Mapping[str, object] | None = None) -> tuple[str, bytes]:
        """The key of an object, and its plain text: everything that decides what the object holds.

        Args:
            maker: what `maker` has just returned.
        """
        return key_text(
            {
                "source": hashlib.sha256(rendered.source.encode()).hexdigest(),
                "symbol": rendered.symbol,
                "target": target.name,
                "backend": self.toolchain.name,
                **({"options": option_key(rendered.compile)} if rendered.compile else {}),
                **(self.maker(target) if maker is None else maker),
            }
        )

    def find(self, rendered: Rendered, target: Target, maker: Mapping[str, object] | None = None) -> Object | None:
        """The object of a rendered candidate, if it is in this cache. Tiers do not count. `maker` is as for `key`."""
        made = self._lookup(self.key(rendered, target, maker)[0])
        return None if made is None else _of_source(made, rendered)

    def get(self, rendered: Rendered, target: Target) -> Object:
        """The object of a rendered candidate. A source that does not compile gives an object with that status.

        Safe to call from several threads and processes: each key is compiled once, and others wait for it.

        Raises:
            ToolchainError: when the compiler cannot be started.
            CacheError: when there is nowhere to put an object.
        """
        return _of_source(self._get(rendered, target), rendered)

    def _get(self, rendered: Rendered, target: Target) -> Object:
        key, text = self.key(rendered, target)
        cached = self._lookup(key)
        if cached is not None:
            return cached
        elsewhere = self._in_tiers(key)
        if self._root is not None and self._writes:
            try:
                return self._get_locked(self._root, key, text, rendered, target, elsewhere)
            except Timeout:
                _log.warning("waited too long for another build to compile %s, so it is compiled here too", key[:16])
            except OSError as error:
                self._disable(error)
        return self._get_unkept(key, rendered, target, elsewhere)

    def read(self, rendered: Rendered, made: Object) -> bytes:
        """What the file of an object holds that this cache gave. If somebody removed or damaged it, it is made again.

        Raises:
            ToolchainError, CacheError: as `get`, and when the compiler makes another object than before.
        """
        data = _bytes(made.path)
        if hashlib.sha256(data).hexdigest() != made.digest:
            self._kept.pop(made.key, None)
            data = _bytes(self.get(rendered, target_by_name(made.target)).path)
            if hashlib.sha256(data).hexdigest() != made.digest:
                raise CacheError(
                    f"the object of {rendered.candidate.label} is gone, and its source gives another one now",
                    fix="build again, and change or remove no file meanwhile",
                )
        return data

    def close(self) -> None:
        """Bound the size of the cache, and remove what was not kept."""
        grown = self.counters.compiled or self.counters.copied
        if self._root is not None and self._writes and grown:
            prune(self._root)
        if self._temporary is not None:
            self._temporary.cleanup()

    def _open_root(self, root: Path, required: bool) -> None:
        self._root, self._writes = checked_folder(
            root,
            trusted=self._trusted,
            writable=self._writes,
            required=required,
            tell=functools.partial(_log.warning, "cache disabled: %s"),
        )
        if self._writes:
            sweep_temporaries(root / TEMPORARIES)

    def _disable(self, error: OSError) -> None:
        """Write nothing more. What the cache has is still read."""
        with self._count:
            first, self._writes = self._writes, False
        if first:
            _log.warning("cache disabled: %s: %s", self._root, error.strerror or error)

    def _entry(self, root: Path, key: str) -> Path:
        return root / "objects" / key[:2] / key

    def _lookup(self, key: str) -> Object | None:
        root = self._root
        if key in self._kept or root is None or (self._mode == "fresh" and key not in self._made):
            return self._kept.get(key)
        folder = self._entry(root, key)
        compiled = self._load(folder, key)
        if compiled is None or (compiled.status == "timeout" and compiled.timeout < self.timeout):
            return None
        if self._writes:
            _touch(folder / RECORD)
        return _handed_out(compiled, key, folder / OBJECT, cached=True)

    def _load(self, folder: Path, key: str) -> Object | None:
        try:
            compiled = read_entry(folder, key, trusted=self._trusted, locate=self._locate).made
            self.includes.update(compiled.includes)
            return compiled
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OtherSchemaError as error:
            _log.warning("cache entry %s is ignored: %s", folder, error)
        except (CorruptError, CacheError, OSError) as error:
            if key not in self._warned:
                with self._count:
                    self.counters.damaged += 1
                _log.warning("cache entry %s is not used: %s", folder, error)
        self._warned.add(key)
        return None

    def _in_tiers(self, key: str) -> Contents | None:
        """The whole entry of a key, from the first tier that has a usable one."""
        for tier in self._tiers:
            folder = self._entry(tier.path, key)
            try:
                if not tier.usable:
                    continue
                contents = read_entry(folder, key, trusted=tier.trusted, locate=self._locate, tier_of=tier.owner)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OtherSchemaError, CorruptError, CacheError, OSError) as error:
                tier.pass_over(folder, error)
                continue
            if contents.made.status != "timeout" or contents.made.timeout >= self.timeout:
                tier.served_object()
                self.includes.update(contents.made.includes)
                return contents
        return None

    def _get_locked(
        self, root: Path, key: str, text: bytes, rendered: Rendered, target: Target, elsewhere: Contents | None
    ) -> Object:
        folder = self._entry(root, key)
        lock = root / "locks" / key[:2] / f"{key}.lock"
        private_folder(lock.parent)
        private_folder(folder.parent)
        with TrueLock(lock, timeout=2 * self.timeout + 60, poll_interval=0.02, mode=0o600):
            cached = self._lookup(key)  # another process may have made it while we waited
            if cached is not None:
                return cached
            temporary = new_temporary(root / TEMPORARIES)
            try:
                temporary.mkdir(mode=0o700)
                if elsewhere is not None:
                    copy_entry(temporary, elsewhere)
                    _publish(temporary, folder, root / TEMPORARIES)
                    with self._count:
                        self.counters.copied += 1
                    return _handed_out(elsewhere.made, key, folder / OBJECT, cached=True)
                compiled = self._compile(temporary, rendered, target)
                if not temporary.is_dir():  # somebody removed the cache
                    raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
                if not compiled.lasting:
                    if compiled.status == "ok":
                        return self._keep_beside(key, compiled, temporary / OBJECT)
                    if any(words in compiled.log.lower() for words in _FULL):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    return _handed_out(compiled, key, folder / OBJECT, cached=False)
                write_entry(temporary, compiled, text)
                _publish(temporary, folder, root / TEMPORARIES)
            finally:
                remove_tree(temporary)
            self._made.add(key)
        return _handed_out(compiled, key, folder / OBJECT, cached=False)

    def _get_unkept(self, key: str, rendered: Rendered, target: Target, elsewhere: Contents | None) -> Object:
        folder = self.scratch / key
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if elsewhere is not None:
                copy_entry(folder, elsewhere)
                cached = self._kept[key] = _handed_out(elsewhere.made, key, folder / OBJECT, cached=True)
                return cached
            compiled = self._compile(folder, rendered, target)
        except OSError as error:
            raise CacheError(
                f"cannot write an object to {str(folder)!r}: {error.strerror}",
                fix="free disk space, or set TMPDIR to a folder with at least 100 MiB",
            ) from error
        compiled = _handed_out(compiled, key, folder / OBJECT, cached=False)
        if compiled.lasting or compiled.status == "ok":
            self._kept[key] = msgspec.structs.replace(compiled, cached=True)
        return compiled

    def _keep_beside(self, key: str, compiled: Object, path: Path) -> Object:
        """Keep an object for this build. Nobody knows all files that it was made from, so a later one makes its own."""
        folder = self.scratch / key
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / OBJECT)
        made = _handed_out(compiled, key, folder / OBJECT, cached=False)
        self._kept[key] = msgspec.structs.replace(made, cached=True)
        return made

    def _run_compiler(self, out: Path, rendered: Rendered, target: Target) -> Object:
        chain, other = self.toolchain, self.elsewhere
        run = chain.compile if other is None else functools.partial(other.compile, chain)
        return run(rendered.source, target, out, self.timeout, rendered.compile)

    def _compile(self, folder: Path, rendered: Rendered, target: Target) -> Object:
        path, began = folder / OBJECT, time.time_ns()
        outcome = self._run_compiler(path, rendered, target)
        if _changed_since(began, map(self.toolchain.locate, outcome.includes)):  # nobody knows which one was read
            outcome = self._run_compiler(path, rendered, target)
        if outcome.status == "ok" and (unlinkable := _unlinkable(path, rendered, target)):
            outcome = msgspec.structs.replace(outcome, status="compile-failed", log=unlinkable, lasting=True)
        good = outcome.status == "ok"
        with self._count:
            self.counters.compiled += 1
        includes = {name: file_digest(self.toolchain.locate(name)) for name in outcome.includes}
        self.includes.update(includes)
        return msgspec.structs.replace(
            outcome,
            digest=hashlib.sha256(path.read_bytes()).hexdigest() if good else "",
            device=outcome.device if good else "",
            symbol=rendered.symbol,
            source=rendered.digest,
            target=target.name,
            error="" if good else first_error(outcome.log, rendered.lines),
            log="" if good else outcome.log,
            seconds=round(outcome.seconds, 3),
            timeout=self.timeout,
            includes=includes,
        )


def _handed_out(compiled: Object, key: str, path: Path, *, cached: bool) -> Object:
    """An object with its place. Nobody asks for its included files, and they may be many."""
    where = str(path) if compiled.status == "ok" else ""
    return msgspec.structs.replace(compiled, key=key, path=where, cached=cached, includes={})


def _of_source(made: Object, rendered: Rendered) -> Object:
    """The object, with the digest of this source.

    The key leaves out guards and checks, the digest does not. So an entry may come from a source with other ones.
    """
    return made if made.source == rendered.digest else msgspec.structs.replace(made, source=rendered.digest)


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _publish(temporary: Path, folder: Path, temporaries: Path) -> None:
    """Put a complete entry in its place in one step. What is there is damaged or old, and is removed."""
    if os.path.lexists(folder):
        discard(folder, temporaries)
    temporary.rename(folder)
    descriptor = os.open(folder.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _changed_since(moment: int, paths: Iterable[str]) -> bool:
    """Whether a file was changed since a moment in ns, but not in the future. Its clock may be some ms behind."""
    now = time.time_ns()
    for path in paths:
        try:
            if moment < Path(path).stat().st_ctime_ns <= now:
                return True
        except OSError:  # the file does not exist
            continue
    return False


def _touch(path: Path) -> None:
    """Mark an entry as used, at most once in ten minutes."""
    try:
        if abs(path.stat().st_mtime - time.time()) > _TOUCH_SECONDS:
            os.utime(path)
    except OSError:
        return


def prune(root: Path, limit: int = LIMIT_BYTES, *, every: float = _EVERY_SECONDS) -> int:
    """Remove the entries that were not used for longest, until all take less than nine tenths of `limit` bytes.

    Does nothing when it ran less than `every` seconds ago, or while another process does it. An entry that was used
    within a day stays, whatever the size, because a running build may need it. Returns the number of removed entries.
    """
    stamp = root / "pruned"
    try:
        if stamp.exists() and 0 <= time.time() - stamp.stat().st_mtime < every:
            return 0
        with TrueLock(root / "prune.lock", timeout=0, mode=0o600):
            stamp.touch()
            sweep_temporaries(root / TEMPORARIES)
            _remove_old_locks(root / "locks")
            return _remove_entries(root, limit)
    except (Timeout, OSError):
        return 0  # the cache works without pruning, and the next build tries again


def _unlinkable(path: Path, rendered: Rendered, target: Target) -> str:
    """What a compiler would say of an object that cannot be in a library, or empty."""
    with contextlib.suppress(ELFError):
        if (why := why_unlinkable(path.read_bytes(), rendered.symbol, target.name)) is not None:
            return f"error: its object {why[0]}: {why[1]}"
    return ""


def _remove_entries(root: Path, limit: int) -> int:
    entries = []
    for folder in (root / "objects").glob("*/*"):
        size = sum(f.stat().st_size for f in folder.iterdir()) if folder.is_dir() else 0
        record = folder / RECORD
        used = record.stat().st_mtime if record.is_file() else 0.0
        entries.append((used, size, folder))
    total, removed = sum(size for _, size, _ in entries), 0
    if total <= limit:
        return 0
    for used, size, folder in sorted(entries):
        if total <= limit * 0.9 or time.time() - used < _IN_USE_SECONDS:
            break
        discard(folder, root / TEMPORARIES)
        total, removed = total - size, removed + 1
    return removed


def _remove_old_locks(folder: Path) -> None:
    for path in folder.glob("*/*.lock"):
        if time.time() - path.stat().st_mtime < _IN_USE_SECONDS:
            continue
        try:
            with TrueLock(path, timeout=0, mode=0o600):
                path.unlink(missing_ok=True)  # whoever waits for it notices the unlinked file and starts over
        except Timeout:
            continue
