"""What a node of a cluster does for a build without a device: it says what it has, and compiles."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from aot_tune import __version__
from aot_tune.compile import Toolchain, families_of, target_by_name, toolchain_for
from aot_tune.compile.cache_entries import OBJECT, file_digest
from aot_tune.compile.diagnostics import SOURCES
from aot_tune.pipeline.cluster.cluster_messages import (
    CompileOrder,
    MadeObject,
    NodeFacts,
    NodeQuestion,
    SentError,
    decode,
    encode,
    taken_options,
)
from aot_tune.support.digests import digest_of_files
from aot_tune.support.errors import AotTuneError, ToolchainError
from aot_tune.support.installed_paths import PACKAGE
from aot_tune.support.run_program import key_environment
from aot_tune.support.storage import scratch_folder

__all__ = ["choosing", "compile_here", "maker_of", "node_facts", "tell_node"]

_CHOOSE = (
    "CXX",
    "NVCC",
    "CUDACXX",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDAHOSTCXX",
    "NVCC_CCBIN",
    "NVCC_PREPEND_FLAGS",
    "NVCC_APPEND_FLAGS",
    "CUTLASS_PATH",
    "AOT_TUNE_TEMPLATE_ROOTS",
)
_OWN = ("AOT_TUNE_CACHE", "AOT_TUNE_CACHE_DIR", "AOT_TUNE_JOBS")
"""Variables that concern the build's own machine only."""


def choosing(environ: Mapping[str, str]) -> dict[str, str]:
    """The build's variables that choose compilers or are part of keys. A node finds programs by its own PATH."""
    return key_environment(environ) | {n: environ[n] for n in _CHOOSE if environ.get(n)}


def tell_node(question: bytes) -> bytes:
    """Answer a `NodeQuestion` with `NodeFacts`."""
    return encode(node_facts(decode(question, NodeQuestion)))


def node_facts(asked: NodeQuestion) -> NodeFacts:
    """What this machine has for a build."""
    makers, missing = {}, {}
    for backend in asked.backends:
        try:
            makers[backend] = maker_of(_chain(backend, tuple(sorted(asked.environ.items()))), asked.targets)
        except ToolchainError as error:
            missing[backend] = str(error)
    return NodeFacts(
        version=__version__,
        code=_package_digest(),
        python=platform.python_version(),
        makers=makers,
        missing=missing,
        files={name: file_digest(name) for name in asked.files},
    )


def maker_of(chain: Toolchain, targets: tuple[str, ...]) -> dict[str, object]:
    """The identity of a toolchain for targets, as the keys of its objects have it."""
    known = (target_by_name(t) for t in targets)
    return {"identity": chain.identity(), **{t.name: chain.recipe(t) for t in known if t.family in families_of(chain)}}


def compile_here(order: bytes) -> bytes:
    """Carry out a `CompileOrder` in a folder that is removed afterwards. The answer is a `MadeObject`."""
    node = platform.node()
    try:
        return encode(_compile(node, decode(order, CompileOrder)))
    except AotTuneError as error:
        return encode(MadeObject(node=node, error=SentError.of(error)))


def _compile(node: str, one: CompileOrder) -> MadeObject:
    chain = _chain(one.backend, tuple(sorted(one.environ.items())))
    with scratch_folder() as name:
        folder = Path(name)
        target, options = target_by_name(one.target), taken_options(one.options)
        outcome = chain.compile(one.source, target, folder / OBJECT, one.timeout, options)
        kept = (OBJECT,) if outcome.status == "ok" else SOURCES
        return MadeObject(
            node=node,
            outcome=outcome,
            files={p.name: p.read_bytes() for p in folder.iterdir() if p.name in kept},
            includes={name: file_digest(chain.locate(name)) for name in outcome.includes},
        )


@cache
def _chain(backend: str, variables: tuple[tuple[str, str], ...]) -> Toolchain:
    """The toolchain that a build's variables choose here. It is cached, because it searches for its programs."""
    ours = {n: v for n, v in os.environ.items() if n not in {*_CHOOSE, *_OWN, *key_environment(os.environ)}}
    return toolchain_for(backend, {**ours, **dict(variables)})


@cache
def _package_digest() -> str:
    """Digest of the package's code. The operators that are installed with it do not count."""
    code = {str(p.relative_to(PACKAGE)): p for p in PACKAGE.rglob("*.py")}
    return digest_of_files((name, p) for name, p in code.items() if not name.startswith("ops/"))
