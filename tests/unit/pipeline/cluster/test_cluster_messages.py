"""What a build and the nodes of a cluster say to each other comes out as it went in."""

from __future__ import annotations

from pathlib import Path

from pipelines import FAST

from aot_tune.bench.host.runner import Entrant
from aot_tune.pipeline.cluster.cluster_messages import (
    SentEntrant,
    SentError,
    decode,
    encode,
    sent_options,
    taken_options,
)
from aot_tune.spec import CompileOptions, dim, dtype_index, maximum, stride
from aot_tune.support.errors import ToolchainError, WorkerError


def test_a_candidate_comes_with_its_guards() -> None:
    n = dim("N")
    guards = (n % 16 == 0, (stride("x", 0) == 1) & ~(n < 3), maximum(n, 4) // 2 > dtype_index("T"))
    given = Entrant(candidate=FAST.candidate, shared_object=Path("/here/one.so"), symbol="s", code="c", requires=guards)
    got = decode(encode(SentEntrant.of(given)), SentEntrant).entrant(Path("/there"))
    assert (got.candidate, got.symbol, got.code) == (FAST.candidate, "s", "c")
    assert got.shared_object == Path("/there/one.so")
    assert [g.key() for g in got.requires] == [g.key() for g in guards]
    facts = {"N": 32, "stride.x.0": 1, "dtype.T": 0}
    assert [g.evaluate(facts) for g in got.requires] == [g.evaluate(facts) for g in guards]


def test_an_error_keeps_its_kind_and_says_where() -> None:
    sent = decode(encode(SentError.of(WorkerError("no worker", why="because", fix="do"))), SentError)
    error = sent.error("node seven")
    assert isinstance(error, WorkerError)
    assert (error.what, error.why, error.fix) == ("node seven: no worker", "because", "do")
    assert isinstance(SentError.of(ToolchainError("x")).error(), ToolchainError)


def test_the_options_of_an_author() -> None:
    options = CompileOptions(
        include_directories=(Path("/a"), "/b"), definitions={"A": 1, "B": None}, options=("-O3",), libraries=("m",)
    )
    got = taken_options(sent_options(options))
    assert (got.options, got.definitions) == (options.options, options.definitions)
    assert [*map(str, got.include_directories), *map(str, got.libraries)] == ["/a", "/b", "m"]
