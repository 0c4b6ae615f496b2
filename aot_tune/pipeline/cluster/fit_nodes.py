"""Compares a node of a cluster with the build's machine: is it fit for the build?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aot_tune.pipeline.cluster.cluster_messages import NodeFacts
from aot_tune.pipeline.cluster.ray_cluster import ClusterNode
from aot_tune.support.errors import BuildError

__all__ = ["check_node"]

_SHOWN = 3
"""How many of the files that differ are named."""


def check_node(node: ClusterNode, there: NodeFacts | str, here: NodeFacts) -> None:
    """Compare a node's answer with this machine's answer to the same question.

    Raises:
        BuildError: for the first difference that would change objects or measurements. It names the node.
    """
    if isinstance(there, str):
        raise BuildError(
            f"{node.shown} cannot take part in the build",
            why=there,
            fix="pip install 'aot_tune[ray]' in the Python that Ray runs in there, or take the node out of the cluster",
        )
    _check_package(node, there, here)
    if node.cpus:  # without CPUs nothing is compiled there
        _check_compilers(node, there, here)
    _check_files(node, there.files, here.files)


def _check_package(node: ClusterNode, there: NodeFacts, here: NodeFacts) -> None:
    if (there.version, there.code) == (here.version, here.code):
        return
    other = f"{there.version}, not {here.version}" if there.version != here.version else f"another {there.version}"
    raise BuildError(
        f"{node.shown} has another aot_tune: {other}",
        why="another version may compile, verify and time otherwise",
        fix="install the same aot_tune on all nodes, then restart Ray there",
    )


def _check_compilers(node: ClusterNode, there: NodeFacts, here: NodeFacts) -> None:
    for backend, reason in there.missing.items():
        if backend in here.makers:
            raise BuildError(
                f"{node.shown} has no compiler for {backend}",
                why=reason,
                fix="install it there, or start the node with `ray start --num-cpus=0`: then nothing is compiled on it",
            )
    for backend, maker in here.makers.items():
        if there.makers.get(backend) != maker:
            raise BuildError(
                f"{node.shown} has another compiler for {backend}: {_difference(there.makers[backend], maker)}",
                why="the keys of its objects would name the wrong compiler",
                fix="install the same compiler on all nodes, or start the node with `ray start --num-cpus=0`, so that "
                "nothing is compiled on it",
            )


def _difference(there: Mapping[str, Any], here: Mapping[str, Any], place: str = "") -> str:
    """The first thing that differs, in a few words."""
    for name in dict.fromkeys((*here, *there)):
        mine, other = here.get(name), there.get(name)
        if mine == other:
            continue
        if isinstance(mine, Mapping) and isinstance(other, Mapping):
            return _difference(other, mine, f"{name} ")
        return f"{place}{name} {str(other)[:80]!r}, here {str(mine)[:80]!r}"
    return "no difference"


def _check_files(node: ClusterNode, there: Mapping[str, str], here: Mapping[str, str]) -> None:
    wrong = [name for name, digest in here.items() if there.get(name) != digest]
    if not wrong:
        return
    absent = not any(there.get(name) for name in wrong)
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    raise BuildError(
        f"{node.shown} {'lacks' if absent else 'has other contents of'} {', '.join(wrong[:_SHOWN])}{more}",
        why="the node loads operators from the project's files, at the same path as this machine",
        fix="put the project at the same path on all nodes: on a shared file system, or in the nodes' image",
    )
