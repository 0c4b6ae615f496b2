"""Reuses the files of an earlier build with the same inputs: nothing is rendered, asked for or chosen again.

Once all measurements are known, the inputs determine what `auto` makes. A build that left no work for the next one
keeps its files in the cache, under the digest of what is known when a build begins (see `build_key`). Beside them are
digests of what shows only on the way: imported modules, headers that candidates include, each measurement that was
used, and the records of the build itself. If one of these has changed, a build runs in the ordinary way.

What `tune` made also serves the next `auto`, unless a committed record would have decided instead.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from aot_tune.compile import families_of, toolchain_for
from aot_tune.compile.cache_entries import KEY, check_entry, file_digest, key_text, read_checked
from aot_tune.database.plain_values import UnlistedError, plain_value
from aot_tune.pipeline.baseline_versions import baseline_versions
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.records.record_writer import records_folder
from aot_tune.pipeline.session import Session
from aot_tune.plan.library_plan import Paths
from aot_tune.report.report_records import Report
from aot_tune.spec.kernel import may_serve
from aot_tune.support.digests import canonical_digest
from aot_tune.support.errors import CacheError, ToolchainError
from aot_tune.support.installed_paths import HOOKS, STANDARD, file_of
from aot_tune.support.storage import (
    TEMPORARIES,
    CorruptError,
    OtherSchemaError,
    discard,
    folder_digest,
    new_temporary,
    private_folder,
    put_folder,
    seal,
    unseal,
    write_changed,
    write_file,
)

__all__ = [
    "Repeats",
    "build_key",
    "loaded_modules",
    "recorded_digest",
    "unanswered",
]

_SCHEMA = 1
_NOT_OWN = ("/usr", "/opt", "/lib", "/lib64", "/nix", "/proc", "/sys", "/dev")
PACKAGE = Path(__file__).resolve().parents[2]
_CODE = (".py", ".cpp", ".h")
_VARIABLES = (
    *("AOT_TUNE_", "CUDA_", "CUBLAS", "CUTLASS_", "NVCC", "NVIDIA_", "TRITON_"),
    *("HIP_", "ROCM_", "ROCR_", "OMP_"),
)
"""Prefixes of variables that can affect a build, beside those that reach compilers.

Their known effects show elsewhere in the key. If a value changes, the build runs in the ordinary way."""
_FREE_OPTIONS = ("budget", "cache", "cache_dir", "cache_tiers", "executor", "jobs", "mode")
"""Options that say how a build gets to its files, but not what the files are if it is not cut short.

One is the mode: only `auto` reuses a build's files, and only `auto` and `tune` leave files for reuse."""
_FREE_VARIABLES = (
    *(f"AOT_TUNE_{name}" for name in ("BUDGET", "CACHE", "CACHE_DIR", "CACHE_TIERS")),
    *(f"AOT_TUNE_{name}" for name in ("EXECUTOR", "JOBS", "MODE", "TRUST_CACHE")),
    "AOT_TUNE_WORKLOAD",  # the plan has the contents of its files
    "AOT_TUNE_IMPORT_PATH",  # an isolated build's folders: only their contents count
    "CUDA_CACHE_PATH",
)
_log = logging.getLogger("aot_tune.pipeline.build_library")
_RECORD, _FILES = "build.json", "files"
_ROOM = "builds"
_MOST, _MOST_BYTES = 16, 1 << 28
"""How many builds are kept, and how many bytes all but the last may take together."""


class _Kept(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of `build.json`: the `files`, by name below the build's folder, and what must be unchanged.

    `measurements` are names of files of the measurement store, and `measured` is the digest of them all. `recorded` is
    the digest of the records that the build left. All others are digests by name.
    """

    date: str
    files: dict[str, str]
    modules: dict[str, str]
    includes: dict[str, dict[str, str]]
    measurements: tuple[str, ...]
    measured: str
    recorded: str


@dataclass(frozen=True)
class _Begun:
    """What is known when a build begins."""

    key: str
    text: bytes
    modules: Mapping[str, str]


class Repeats:
    """The files of earlier builds in the cache, and the inputs of this build.

    Create it before anything is rendered: it detects changes during the build by comparing with that moment.
    """

    def __init__(self, session: Session, paths: Paths) -> None:
        self._session, self._paths = session, paths
        root = session.store.root
        self._folder = None if root is None else root / _ROOM
        self._begun: _Begun | None = None
        self._includes: dict[str, list[str]] = {}
        if self._folder is not None and session.options.mode in ("auto", "tune") and session.plan.may_measure:
            self._begun = self._now(loaded_modules())

    def take(self, directory: Path) -> Report | None:
        """Write the files of a build with the same inputs into `directory`. Returns its report; None without one."""
        begun = self._begun
        anew = self._session.options.mode == "tune" or self._session.location.mode == "fresh"
        if begun is None or self._folder is None or anew:
            return None
        folder = self._folder / begun.key
        try:
            kept = self._load(folder, begun.key)
            changed = self._changed(kept)
            if changed:
                self._session.progress.line(f"{changed} changed since the build of {kept.date}")
                return None
            contents = {name: self._file(folder, name, digest) for name, digest in kept.files.items()}
            report = msgspec.json.decode(contents["report.json"], type=Report)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OtherSchemaError:
            return None
        except (CorruptError, CacheError, OSError, KeyError, msgspec.MsgspecError) as error:
            _log.warning("kept build %s is not used: %s", folder, error)
            return None
        for name, data in contents.items():
            write_changed(directory / name, data)
        self._mark(folder)
        self._includes = {backend: list(names) for backend, names in kept.includes.items()}
        self._session.progress.line(
            f"all inputs are those of the build of {kept.date}, and its files are used again: "
            "nothing compiled or chosen, 0 measurements made"
        )
        return report

    @property
    def headers(self) -> list[Path]:
        """The author's headers that the built sources, now or in the kept build, include beside its templates."""
        session = self._session
        used = self._includes or {b: list(session.cache(b).includes) for b in session.plan.toolchains}
        return own_headers(session, self._paths, used)

    def keep(
        self, directory: Path, files: Iterable[Path], evidence: Mapping[str, Sequence[Evidence]], recorded: str
    ) -> None:
        """Keep what a build wrote, unless it left work for the next one or an input changed meanwhile.

        `recorded` is the digest of the records that it saved. If it differs later, another build has saved its own.
        """
        session = self._session
        if self._folder is None or self._begun is None or session.location.mode not in ("rw", "fresh"):
            return
        if session.budget.seconds is not None or not all(session.devices_for(target) for target in session.targets):
            return  # the next build may know more, and each build must say what is missing
        if session.options.mode == "tune" and any(map(session.is_recorded, session.devices)):
            return  # the record would have decided in `auto`
        left = self._left(evidence)
        if left:
            session.progress.line(f"an unchanged build will do some of the work again: {left}")
            return
        try:
            self._keep(self._folder, directory, files, recorded)
        except OSError as error:
            _log.warning("this build is not kept: %s: %s", self._folder, error.strerror)

    def _keep(self, room: Path, directory: Path, files: Iterable[Path], recorded: str) -> None:
        begun, session = self._begun, self._session
        if begun is None or self._now(begun.modules) != begun:
            return
        names = sorted(session.store.used)
        own = {str(path.relative_to(directory)): path.read_bytes() for path in files}
        used = {backend: session.cache(backend).includes for backend in session.plan.toolchains}
        kept = _Kept(
            date=time.strftime("%Y-%m-%d %H:%M:%S"),
            files={name: hashlib.sha256(data).hexdigest() for name, data in own.items()},
            modules={**_module_digests(loaded_modules()), **begun.modules},
            includes={backend: dict(digests) for backend, digests in used.items()},
            measurements=tuple(names),
            measured=_digest_of_all(session.store.used[name] for name in names),
            recorded=recorded,
        )
        lost = sorted(name for name, digest in kept.modules.items() if not digest)
        if lost:
            session.progress.line(
                f"an unchanged build will do some of the work again: the file of module {lost[0]} is gone"
            )
            return
        temporaries = room.parent / TEMPORARIES
        fresh = new_temporary(temporaries)
        try:
            for name, data in own.items():
                private_folder((fresh / _FILES / name).parent)
                write_file(fresh / _FILES / name, data, durable=False)  # after a power cut, digests show damaged files
            write_file(fresh / KEY, begun.text, durable=False)
            write_file(fresh / _RECORD, seal(kept, _SCHEMA), durable=False)
            private_folder(room)
            put_folder(fresh, room / begun.key, temporaries)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        _forget_old(room, temporaries, begun.key)

    def _now(self, modules: Iterable[str]) -> _Begun | None:
        try:
            return _Begun(*build_key(self._session, self._paths), _module_digests(modules))
        except (UnlistedError, OSError, ValueError, OverflowError) as error:  # such as names that are not text
            self._session.progress.line(f"an unchanged build will do some of the work again: {error}")
            return None

    def _left(self, evidence: Mapping[str, Sequence[Evidence]]) -> str:
        """What the next build would do beside looking up the results of this one, in a few words; empty for nothing."""
        session = self._session
        caches = [session.cache(backend) for backend in session.plan.toolchains]
        if session.store.root is None or any(c.root is None for c in caches):
            return "the cache was lost"
        if session.store.absent:  # crashes that may not happen again, and races that lacked an entrant
            return f"{len(session.store.absent)} measurements will be made again"
        unkept = sum(c.counters.unkept for c in caches)
        if unkept:
            return f"{unkept} candidates will be compiled again"
        asked = sorted({k for own in evidence.values() for e in own for k in unanswered(session, e)})
        return f"{', '.join(asked)} will be asked for algorithms again" if asked else ""

    def _load(self, folder: Path, key: str) -> _Kept:
        trusted = self._session.location.trusted
        check_entry(folder, key, trusted)
        return unseal(read_checked(folder / _RECORD, trusted), _Kept, _SCHEMA)

    def _file(self, folder: Path, name: str, digest: str) -> bytes:
        data = read_checked(folder / _FILES / name, self._session.location.trusted)
        if hashlib.sha256(data).hexdigest() != digest:
            raise CorruptError(f"its {name} is not what was stored")
        return data

    def _changed(self, kept: _Kept) -> str:
        """What has changed, in a few words; empty if nothing has."""
        modules = _module_digests(kept.modules)
        for name, digest in kept.modules.items():
            if modules[name] != digest:
                return f"the module {name}"
        for backend, digests in _included(self._session, kept.includes).items():
            for name, digest in digests.items():
                if digest != kept.includes[backend][name]:
                    return name
        if recorded_digest(self._session) != kept.recorded:
            return "the library's records in the cache"
        return (
            "" if _measurements_now(self._session, kept.measurements) == kept.measured else "measurements in the cache"
        )

    def _mark(self, folder: Path) -> None:
        """Mark a kept build as used, and its records as those of the library's last build."""
        records = records_folder(self._session)
        for path in (folder, records) if self._session.location.mode == "rw" else ():
            if path is not None and path.is_dir():
                try:
                    os.utime(path)
                except OSError as error:
                    _log.warning("%s cannot be marked as used: %s", path, error.strerror)


def unanswered(session: Session, evidence: Evidence) -> list[str]:
    """Kernels that call a vendor's library and have no measurement. The next build asks the library again."""
    operator = evidence.operator
    measured = {c for row in evidence.measurements.values() for c in row}
    known = {e.candidate.kernel for i, e in evidence.entries.items() if i in measured}
    found = []
    for kernel in session.kernels_for(operator, evidence.target):
        algorithms, name = kernel.algorithms, f"{operator.name}/{kernel.name}"
        if algorithms is None or kernel.name in known or not fnmatchcase(name, session.options.filter):
            continue
        if any(algorithms(p) is not None for p in evidence.workload if may_serve(kernel, operator.facts(p))):
            found.append(name)
    return found


def _forget_old(room: Path, temporaries: Path, last: str) -> None:
    """Remove the builds that were unused for longest, but never the last one, even if the clock was set back."""
    with contextlib.suppress(FileNotFoundError):  # another build removes it too
        folders = sorted(room.iterdir(), key=lambda f: (f.name == last, f.stat().st_mtime), reverse=True)
        total = 0
        for i, folder in enumerate(folders):
            total += sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
            if i and (i >= _MOST or total > _MOST_BYTES):
                discard(folder, temporaries)


def build_key(session: Session, paths: Paths) -> tuple[str, bytes]:
    """The key of a build, and its plain text: all that is known before anything is rendered.

    What shows only while the build runs, such as headers that a candidate includes, is not part of it.

    Raises:
        UnlistedError: when an operator holds something that cannot be put into a key.
        OSError: when a file cannot be read.
    """
    plan = session.plan
    options = {n: v for n, v in msgspec.to_builtins(plan.options).items() if n not in _FREE_OPTIONS}
    return key_text(
        {
            "build": _SCHEMA,
            "plan": {**msgspec.to_builtins(plan), "options": options},
            "compile": msgspec.to_builtins(paths.compile),
            "package": folder_digest(PACKAGE, _CODE),
            "python": sys.version,
            "templates": [[Path(root).name, folder_digest(Path(root))] for root in paths.templates],
            "operators": {n: canonical_digest(plain_value(one.operator)) for n, one in session.operators.items()},
            "database": folder_digest(Path(paths.database)) if paths.database else "",
            "devices": [msgspec.to_builtins(d) for d in session.devices],
            "threads": session.threads,
            "policies": {f: session.policy_of(f).digest for f in plan.families},
            "toolchains": {backend: _maker(session, backend) for backend in plan.toolchains},
            "baselines": {n: baseline_versions(one) for n, one in session.operators.items()},
            "environment": {
                n: v for n, v in os.environ.items() if n.startswith(_VARIABLES) and n not in _FREE_VARIABLES
            },
        }
    )


def _maker(session: Session, backend: str) -> dict[str, object]:
    """The identity of a backend's toolchain for each target, as the keys of its objects have it."""
    chain = toolchain_for(backend, session.environment)
    recipes: dict[str, object] = {}
    for target in (*session.baselines, *session.targets):
        if target.family in families_of(chain):
            try:
                recipes[target.name] = chain.recipe(target)
            except ToolchainError as error:
                recipes[target.name] = error.what
    return {"identity": chain.identity(), "recipes": recipes}


def loaded_modules() -> list[str]:
    """Names of the modules in this process that belong neither to Python nor to this package.

    Hooks that run when Python starts are left out too. Each front end has its own, which name its folders.
    """
    files = {name: file_of(module) for name, module in list(sys.modules.items())}
    return sorted(name for name, file in files.items() if file and not _left_out(name.partition(".")[0], file))


def _left_out(top: str, file: str) -> bool:
    if top in sys.stdlib_module_names:  # a project's module may have such a name
        return file.startswith(STANDARD) or "site-packages" in file
    return top in ("aot_tune", "__main__", "__mp_main__", *HOOKS)


def _module_digests(names: Iterable[str]) -> dict[str, str]:
    """Current digests of the files of modules, loaded or not; empty if a module is not found.

    Folders do not count, because isolated builds have new folder names each time.
    """
    return {name: _content(Path(file_of(sys.modules.get(name)) or _search(name))) for name in names}


def _search(name: str) -> str:
    """The file that a module would be imported from. Its packages are not imported to find it."""
    where: list[str] | None = None
    parts, origin = name.split("."), ""
    for i in range(len(parts)):
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[: i + 1]), where)
        if spec is None:
            return ""
        where, origin = list(spec.submodule_search_locations or ()), spec.origin or ""
    return origin


def _content(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _included(session: Session, includes: Mapping[str, Iterable[str]]) -> dict[str, dict[str, str]]:
    """Digests of included files, by backend and name. They are of the moment when this process saw a file first."""
    found: dict[str, dict[str, str]] = {}
    for backend, names in includes.items():
        chain = toolchain_for(backend, session.environment)
        found[backend] = {name: file_digest(chain.locate(name)) for name in names}
    return found


def own_headers(session: Session, paths: Paths, includes: Mapping[str, Iterable[str]]) -> list[Path]:
    """Headers that the C++ sources include and that are the author's: of no template root, compiler or package."""
    known = [Path(p).resolve() for p in (*_NOT_OWN, sys.prefix, sys.base_prefix, str(PACKAGE), *paths.templates)]
    found: set[Path] = set()
    for backend, names in includes.items():
        chain = toolchain_for(backend, session.environment)
        folders = [*known, *(Path(f).resolve() for f in chain.include_folders())]
        for name in names:
            path = Path(chain.locate(name)).resolve()
            if path.is_file() and not any(path.is_relative_to(f) for f in folders):
                found.add(path)
    return sorted(found)


def _measurements_now(session: Session, names: Iterable[str]) -> str:
    """Digest of what the measurement store has now under some names; see `_digest_of_all`."""
    return _digest_of_all(session.store.file_digest(name) for name in names)


def _digest_of_all(digests: Iterable[str]) -> str:
    """One digest of several, in their order."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def recorded_digest(session: Session) -> str:
    """Digest of the records that the library's last build left. They say which algorithms a vendor's library offers.

    Raises:
        OSError: when a file cannot be read.
    """
    folder = records_folder(session)
    return "" if folder is None else folder_digest(folder)
