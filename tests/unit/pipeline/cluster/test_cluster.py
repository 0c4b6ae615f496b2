"""Clusters that cannot be had, and nodes that are not fit for a build: what is told of each."""

import socket
import sys
from pathlib import Path

import msgspec
import pytest
from processes import program

from aot_tune import __version__
from aot_tune.pipeline.cluster.cluster_messages import NodeFacts, NodeQuestion, decode, encode
from aot_tune.pipeline.cluster.node import choosing, node_facts, tell_node
from aot_tune.pipeline.cluster.ray_cluster import ClusterNode
from aot_tune.pipeline.cluster.ray_executor import check_node
from aot_tune.pipeline.executor import reach_cluster
from aot_tune.support.errors import BuildError

NODE = ClusterNode(id="0123456789", name="10.0.0.7", cpus=4, gpus=0, memory=1 << 30)
ASKED = NodeQuestion(backends=("cxx",), targets=("cpu-x86-64", "cpu-x86-64-v3"))


@pytest.fixture(scope="module")
def here() -> NodeFacts:
    return node_facts(ASKED)


def refused(there: NodeFacts | str, here: NodeFacts, node: ClusterNode = NODE) -> str:
    with pytest.raises(BuildError) as caught:
        check_node(node, there, here)
    assert "node 10.0.0.7 (01234567)" in caught.value.what
    assert caught.value.fix
    return str(caught.value)


def test_a_node_that_has_the_same_is_fit(here: NodeFacts) -> None:
    assert here.version == __version__
    check_node(NODE, decode(tell_node(encode(ASKED)), NodeFacts), here)


def test_another_version_of_the_package(here: NodeFacts) -> None:
    assert "another aot_tune: 0.0.9, not" in refused(msgspec.structs.replace(here, version="0.0.9"), here)
    changed = msgspec.structs.replace(here, code="other")
    assert f"another aot_tune: another {__version__}" in refused(changed, here)


def test_another_compiler_is_named_with_what_differs(here: NodeFacts, tmp_path: Path) -> None:
    compiler = program(tmp_path / "g++", 'exec g++ -fno-plt "$@"')
    other = msgspec.structs.replace(ASKED, environ=choosing({"CXX": f"{compiler} -fno-plt", "HOME": "/nowhere"}))
    there = node_facts(other)
    assert "another compiler for cxx: " in refused(there, here)
    check_node(msgspec.structs.replace(NODE, cpus=0), there, here)  # where nothing is compiled


def test_no_compiler(here: NodeFacts) -> None:
    there = node_facts(msgspec.structs.replace(ASKED, environ={"CXX": "/no/such/g++"}))
    said = refused(there, here)
    assert "has no compiler for cxx" in said
    assert "CXX='/no/such/g++' is not a program" in said


def test_files_that_differ_or_are_not_there(tmp_path: Path) -> None:
    files = [tmp_path / name for name in "abcd"]
    for file in files:
        file.write_text("")
    asked = NodeQuestion(files=tuple(map(str, files)))
    here = node_facts(asked)
    digests = dict.fromkeys(map(str, files), "")
    said = refused(msgspec.structs.replace(here, files=digests), here)
    assert f"lacks {files[0]}, {files[1]}, {files[2]} and 1 more" in said
    digests = {**here.files, str(files[3]): "other"}
    assert f"has other contents of {files[3]}\n" in refused(msgspec.structs.replace(here, files=digests), here)


def no_cluster() -> str:
    with pytest.raises(BuildError) as caught, reach_cluster(print):
        raise AssertionError
    return str(caught.value)


def test_without_ray_the_command_to_install_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    said = no_cluster()
    assert "Ray is not installed here" in said
    assert "pip install 'aot_tune[ray]'" in said


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="no ray: install aot_tune[ray]")
    with socket.socket() as bound:  # and nobody listens
        bound.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{bound.getsockname()[1]}")
        assert "Connection refused" in no_cluster()
