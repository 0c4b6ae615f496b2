"""All inputs that determine the files of a build. A build with the same inputs can reuse these files."""

from __future__ import annotations

import hashlib
import importlib.machinery
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from aot_tune.compile import families_of, toolchain_for
from aot_tune.compile.cache_entries import file_digest, key_text
from aot_tune.database.plain_values import plain_value
from aot_tune.pipeline.baseline_versions import baseline_versions
from aot_tune.pipeline.records.record_writer import records_folder
from aot_tune.pipeline.session import Session
from aot_tune.plan.library_plan import Paths
from aot_tune.support.digests import canonical_digest
from aot_tune.support.errors import ToolchainError
from aot_tune.support.installed_paths import HOOKS, STANDARD, file_of
from aot_tune.support.storage import folder_digest

__all__ = [
    "build_key",
    "digest_of_all",
    "included",
    "loaded_modules",
    "measurements_now",
    "module_digests",
    "recorded_digest",
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


def module_digests(names: Iterable[str]) -> dict[str, str]:
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


def included(session: Session, includes: Mapping[str, Iterable[str]]) -> dict[str, dict[str, str]]:
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


def measurements_now(session: Session, names: Iterable[str]) -> str:
    """Digest of what the measurement store has now under some names; see `digest_of_all`."""
    return digest_of_all(session.store.file_digest(name) for name in names)


def digest_of_all(digests: Iterable[str]) -> str:
    """One digest of several, in their order."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def recorded_digest(session: Session) -> str:
    """Digest of the records that the library's last build left. They say which algorithms a vendor's library offers.

    Raises:
        OSError: when a file cannot be read.
    """
    folder = records_folder(session)
    return "" if folder is None else folder_digest(folder)
