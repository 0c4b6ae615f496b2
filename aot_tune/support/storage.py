"""Durable files for stages that keep data: atomic writes, sealed records, ownership, folders, and the cache's place."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

import msgspec

from aot_tune.support.errors import BuildError, CacheError, OptionError, WorkerError, did_you_mean
from aot_tune.support.processes import stat_of

CacheMode = Literal["rw", "ro", "fresh", "off"]
_MODES: tuple[CacheMode, ...] = ("rw", "ro", "fresh", "off")
TEMPORARIES = "tmp"
"""The folder of temporaries below a cache's root, and below each of its rooms."""

_STALE_SECONDS = 24 * 3600.0
T = TypeVar("T")


class CorruptError(Exception):
    """A stored file is not as it was written. The error says why in a few words."""


class OtherSchemaError(Exception):
    """A stored file was written under another schema version."""


class CacheLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Where objects and measurements are kept. `root` is None if nothing is kept, and `message` says why.

    If `required`, the user named the folder, and it is an error if it cannot be used. `tiers` are other caches that are
    read if this one lacks something.
    """

    root: Path | None
    mode: CacheMode
    trusted: bool = False
    required: bool = False
    message: str = ""
    tiers: tuple[Path, ...] = ()


def cache_location(environ: Mapping[str, str]) -> CacheLocation:
    """Read AOT_TUNE_CACHE, AOT_TUNE_CACHE_DIR, AOT_TUNE_CACHE_TIERS, AOT_TUNE_TRUST_CACHE, XDG_CACHE_HOME and HOME.

    Raises:
        OptionError: when AOT_TUNE_CACHE is not off, ro, rw or fresh, or a folder's path is relative.
    """
    word = environ.get("AOT_TUNE_CACHE") or "rw"
    if word not in _MODES:
        raise OptionError(f"AOT_TUNE_CACHE={word!r} is not a cache mode", fix=did_you_mean(word, _MODES))
    mode = word
    trusted = environ.get("AOT_TUNE_TRUST_CACHE", "") not in ("", "0")
    if mode == "off":
        return CacheLocation(root=None, mode="off", message="cache disabled: AOT_TUNE_CACHE=off")
    tiers = () if mode == "fresh" else _tiers(environ.get("AOT_TUNE_CACHE_TIERS", ""))
    named = environ.get("AOT_TUNE_CACHE_DIR")
    if named:
        if not Path(named).is_absolute():
            raise OptionError(f"AOT_TUNE_CACHE_DIR={named!r} is not an absolute path", fix="give the whole path")
        return CacheLocation(root=Path(named), mode=mode, trusted=trusted, required=True, tiers=tiers)
    for variable, below in (("XDG_CACHE_HOME", "aot_tune"), ("HOME", ".cache/aot_tune")):
        base = environ.get(variable)
        if base and Path(base).is_absolute():
            return CacheLocation(root=Path(base) / below, mode=mode, trusted=trusted, tiers=tiers)
    message = "cache disabled: neither AOT_TUNE_CACHE_DIR, XDG_CACHE_HOME nor HOME is set"
    return CacheLocation(root=None, mode="off", trusted=trusted, message=message, tiers=tiers)


def _tiers(text: str) -> tuple[Path, ...]:
    paths = tuple(Path(part.strip()) for part in text.split(";") if part.strip())
    for path in paths:
        if not path.is_absolute():
            raise OptionError(
                f"AOT_TUNE_CACHE_TIERS has {str(path)!r}, which is not an absolute path", fix="give the whole path"
            )
    return paths


def private_folder(path: Path) -> None:
    """Make a folder, and missing folders above it, for this user only. The umask does not matter."""
    missing = []
    above = path
    while not above.is_dir():
        missing.append(above)
        above = above.parent
    for folder in reversed(missing):
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            if not folder.is_dir():
                raise


def check_trust(status: os.stat_result, path: Path, owner: int = -1) -> None:
    """Raise CacheError unless the file or folder belongs to this user or a tier's `owner`, and only they can write."""
    if status.st_uid not in (os.geteuid(), owner):
        raise CacheError(
            f"{path} belongs to user {status.st_uid}, not to user {os.geteuid()}",
            why="its contents end up in the library",
            fix="set AOT_TUNE_CACHE_DIR to a folder of your own, or AOT_TUNE_TRUST_CACHE=1",
        )
    if stat.S_IMODE(status.st_mode) & 0o022:
        raise CacheError(
            f"{path} may be written by others (mode {stat.S_IMODE(status.st_mode):04o})",
            why="its contents end up in the library",
            fix=f"chmod go-w {str(path)!r}, or set AOT_TUNE_TRUST_CACHE=1",
        )


def check_folder(path: Path, *, trusted: bool, writable: bool, make: bool = True) -> None:
    """Check a cache root, and if `writable`, make it (or with `make=False`, see that one can). Raises CacheError."""
    try:
        if writable and make:
            private_folder(path)
        nearest = path
        while writable and not nearest.exists():
            nearest = nearest.parent
        status = nearest.stat()
    except OSError as error:
        raise CacheError(
            f"the cache folder {str(path)!r} cannot be used: {error.strerror}",
            fix="set AOT_TUNE_CACHE_DIR to a folder that you can write to, or AOT_TUNE_CACHE=off",
        ) from error
    if not stat.S_ISDIR(status.st_mode):
        raise CacheError(f"the cache folder {str(path)!r} is not a folder", fix="set AOT_TUNE_CACHE_DIR to a folder")
    if not trusted and nearest == path:
        check_trust(status, path)
    if writable and not os.access(nearest, os.W_OK | os.X_OK):
        raise CacheError(
            f"no write access to the cache folder {str(path)!r}",
            fix="set AOT_TUNE_CACHE_DIR to a folder that you can write to, or AOT_TUNE_CACHE=ro or off",
        )


def checked_folder(
    path: Path, *, trusted: bool, writable: bool, required: bool, tell: Callable[[CacheError], object]
) -> tuple[Path | None, bool]:
    """A cache root that was checked, or None if nothing can be read from it; and whether it can be written to.

    `tell` gets why it cannot be used as it was meant.

    Raises:
        CacheError: when it is `required` and cannot be used.
    """
    try:
        check_folder(path, trusted=trusted, writable=writable)
        return path, writable
    except CacheError as error:
        if required:
            raise
        tell(error)
    try:
        check_folder(path, trusted=trusted, writable=False)
    except CacheError:
        return None, False
    return path, False


def write_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a file for this user only. If `durable`, it is on the disk before this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(descriptor)


def replace_file(path: Path, data: bytes, temporaries: Path, *, durable: bool = False, prefix: str = "") -> None:
    """Put `data` at `path` in one step. Readers see the whole old file or the whole new one.

    `temporaries` is a folder on the same file system that `sweep_temporaries` sweeps with the same `prefix`. Unless
    `durable`, a power cut may leave an empty file, which the checksum reveals.
    """
    temporary = new_temporary(temporaries, prefix)
    try:
        write_file(temporary, data, durable=durable)
        try:
            temporary.replace(path)
        except IsADirectoryError:  # damage from a crash or a user
            remove_tree(path)
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_changed(path: Path, data: bytes) -> None:
    """Write a file unless it has these bytes, so that nothing is built again. Raises BuildError."""
    try:
        if path.is_file() and path.read_bytes() == data:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise BuildError(
            f"cannot write {path} ({len(data)} bytes): {error.strerror}",
            fix="free disk space, or build in another folder; the next build writes it again",
        ) from error


def open_quietly(path: Path, flags: int) -> int:
    """A descriptor of a file or folder. If the system allows it, the access time stays as it is."""
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOATIME)
    except PermissionError:  # it belongs to somebody else
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)


@contextlib.contextmanager
def opened_own(path: Path, *, trusted: bool, tier_of: int = -1) -> Iterator[tuple[BinaryIO, os.stat_result]]:
    """A file to read, and its status.

    A file in a tier may belong to the tier's owner, `tier_of`. Reading it leaves no trace.

    Raises:
        OSError: when it does not exist or cannot be opened.
        CorruptError: when it is not a plain file.
        CacheError: when it does not belong to this user only, and is not `trusted`.
    """
    if tier_of < 0:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    else:
        descriptor = open_quietly(path, os.O_RDONLY)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise CorruptError(f"its {path.name} is not a file")
        if not trusted:
            check_trust(status, path, tier_of)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file, status
    finally:
        os.close(descriptor)


def read_own(path: Path, *, trusted: bool, tier_of: int = -1) -> bytes:
    """The contents of a file, see `opened_own`."""
    with opened_own(path, trusted=trusted, tier_of=tier_of) as (file, _):
        return file.read()


def discard(path: Path, temporaries: Path) -> None:
    """Remove a folder or file in one step. A reader finds all of it or nothing."""
    doomed = new_temporary(temporaries)
    path.rename(doomed)
    if doomed.is_dir() and not doomed.is_symlink():
        remove_tree(doomed)
    else:
        doomed.unlink()


def remove_tree(path: Path) -> None:
    """Remove a folder with all that is in it, however deep it is, and whatever its permissions are.

    Links are not followed. What cannot be removed stays, which is no error. Subfolders move up to the top first, so
    that no path is long and nothing recurses.
    """
    with contextlib.suppress(OSError):
        top = _open_changeable(str(path))
        try:
            folders = _without_files(top)
            while folders:
                with contextlib.suppress(OSError):
                    name = folders.pop()
                    inner = _open_changeable(name, top)
                    try:
                        for below in _without_files(inner):
                            with contextlib.suppress(OSError):
                                os.close(_open_changeable(below, inner))  # only then may it move
                                os.rename(below, moved := secrets.token_hex(16), src_dir_fd=inner, dst_dir_fd=top)
                                folders.append(moved)
                    finally:
                        os.close(inner)
                    os.rmdir(name, dir_fd=top)
        finally:
            os.close(top)
        path.rmdir()


def _open_changeable(name: str, within: int | None = None) -> int:
    """A descriptor of a folder, which this user may read and change from now on."""
    held = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    try:
        if ~os.fstat(held).st_mode & stat.S_IRWXU:
            Path(f"/proc/self/fd/{held}").chmod(stat.S_IRWXU)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=held)
    finally:
        os.close(held)


def _without_files(folder: int) -> list[str]:
    """Remove all from an open folder but its subfolders. Returns their names."""
    folders = []
    with os.scandir(folder) as entries:
        every = list(entries)
    for entry in every:
        if entry.is_dir(follow_symlinks=False):
            folders.append(entry.name)
        else:
            with contextlib.suppress(OSError):
                os.unlink(entry.name, dir_fd=folder)
    return folders


class _Scratch(tempfile.TemporaryDirectory[str]):
    def cleanup(self) -> None:
        """Remove it, whatever candidates have left in it."""
        remove_tree(Path(self.name))
        super().cleanup()


def new_temporary(folder: Path, prefix: str = "") -> Path:
    """A new name in `folder` that tells its process, so that a later process can remove it."""
    private_folder(folder)
    return folder / f"{prefix}{_namespace()}-{os.getpid()}-{_start_time(os.getpid())}-{secrets.token_hex(6)}"


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder that is removed in the end. Leftovers of this user's killed processes are removed now."""
    base = Path(tempfile.gettempdir()) / f"aot_tune-{os.geteuid()}" / "scratch"
    try:
        private_folder(base)
        for folder in (base.parent, base):
            check_trust(folder.lstat(), folder)
    except (OSError, CacheError):  # somebody else uses the name
        return _Scratch(prefix="aot_tune-", ignore_cleanup_errors=True)
    sweep_temporaries(base)
    own = f"{_namespace()}-{os.getpid()}-{_start_time(os.getpid())}-"
    return _Scratch(prefix=own, dir=base, ignore_cleanup_errors=True)


def check_loadable(folder: Path) -> None:
    """Check that libraries can be loaded from a folder. Raises WorkerError when it is mounted noexec."""
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise WorkerError(
            f"nothing in {str(folder)!r} can be run",
            why="its file system is mounted with the option noexec, but candidates are loaded from there",
            fix="set TMPDIR to a folder on another file system",
        )


def sweep_temporaries(folder: Path, prefix: str = "") -> int:
    """Remove what dead processes left in a folder of temporaries. Returns the number of removed entries.

    With a `prefix`, entries with other names are not temporaries and stay. An entry is removed when its process is
    dead. If that cannot be known (another machine or PID namespace on a shared disk), it is removed when it is a day
    old.
    """
    swept = 0
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return 0
    for entry in entries:
        if not entry.name.startswith(prefix):
            continue
        parts = entry.name.removeprefix(prefix).split("-")
        if len(parts) == 4 and parts[0] == _namespace() and parts[1].isdigit():
            if _start_time(int(parts[1])) == parts[2]:
                continue
        else:
            try:
                if time.time() - entry.stat(follow_symlinks=False).st_mtime < _STALE_SECONDS:
                    continue
            except OSError:
                continue
        if entry.is_dir(follow_symlinks=False):
            remove_tree(Path(entry.path))
        else:
            try:
                Path(entry.path).unlink(missing_ok=True)
            except OSError:  # it belongs to another user of a shared folder
                continue
        swept += 1
    return swept


def _namespace() -> str:
    """Eight hex digits for this boot and PID namespace. In one, a PID and its start time identify a process."""
    try:
        parts = [Path("/proc/sys/kernel/random/boot_id").read_text(), str(Path("/proc/self/ns/pid").readlink())]
    except OSError:
        parts = [os.uname().nodename]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def _start_time(pid: int) -> str:
    """The start of a process in clock ticks since boot; empty if there is no such process."""
    try:
        return str(stat_of(pid).began)
    except OSError:
        return ""


class _Sealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: int
    check: str
    entry: msgspec.Raw


def seal(value: object, schema: int) -> bytes:
    """A record as JSON with a checksum of its bytes, so that damage is noticed."""
    raw = msgspec.json.encode(value, order="deterministic")
    return msgspec.json.encode(_Sealed(schema, hashlib.sha256(raw).hexdigest(), msgspec.Raw(raw)))


def unseal(data: bytes, kind: type[T], schema: int) -> T:
    """The record that `seal` wrote.

    Raises:
        OtherSchemaError: when it was written under another schema version. Then nothing of it is read.
        CorruptError: when it is not as it was written.
    """
    try:
        sealed = msgspec.json.decode(data, type=_Sealed)
        if sealed.schema != schema:
            raise OtherSchemaError(f"schema {sealed.schema}, this version reads {schema}")
        if hashlib.sha256(sealed.entry).hexdigest() != sealed.check:
            raise CorruptError("its checksum does not match")
        return msgspec.json.decode(sealed.entry, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptError(f"it is not a whole record ({error})" if data else "it is empty") from error


def put_folder(fresh: Path, folder: Path, temporaries: Path) -> None:
    """Replace a folder by another in one step. If two builds do this at once, one of them wins completely."""
    for last in (False, False, True):
        with contextlib.suppress(FileNotFoundError):
            discard(folder, temporaries)
        try:
            fresh.rename(folder)
            return
        except OSError:
            if last:
                raise
