"""Calls that read what the call right before them writes: kernels that start early must wait for it."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from problems import Case

from aot_tune.spec import Operator, Problem, problem

_GIVEN = {"rms_norm": ("weight",), "layer_norm": ("weight", "bias")}
_LINKS = 8
_REPLAYS = 20


def chained(ops: Any, operator: Operator, dtypes: dict[str, str]) -> tuple[int, list[str]]:
    """Chains of calls in a graph, against the same calls one by one.

    Returns how many chains the variant that AOT_TUNE_FORCE names has served, and what was wrong with them.
    """
    count, faults = 0, []
    for source, chosen in _problems(operator.name, dtypes):
        case = Case(operator, chosen, "dense", 1)
        _keep_as_large(case, source)
        links = [torch.empty_like(case.tensors[operator.outputs[0].name]) for _ in range(_LINKS + 1)]
        links[0].copy_(case.tensors[source].view(links[0].shape))
        try:
            wanted = _one_by_one(ops, case, source, links)
            count += 1
            bad = _in_a_graph(ops, case, source, links, wanted)
            turns = [links[0], *(links[1 + i % 2] for i in range(_LINKS))]  # written while the call before may read it
            bad += _in_a_graph(ops, case, source, turns, wanted)
        except ops.Error as error:
            if "AOT_TUNE_FORCE" not in str(error):  # that is: no call for this variant
                faults.append(f"{case.text} in a chain: {error}")
            continue
        if bad:
            faults.append(f"{case.text}: {bad} of {2 * _REPLAYS} chains of {_LINKS} calls by {source} are wrong")
    return count, faults


def _problems(name: str, dtypes: dict[str, str]) -> Iterator[tuple[str, Problem]]:
    """Calls whose output may be the named input of the next."""
    if name == "gemm":
        for m in (1, 16, 64, 256):
            for order in ({"b": (1, 0)}, {}):
                for attributes in ({"math": "tf32"}, {}) if dtypes.get("T") == "f32" else ({},):
                    given: Any = {"M": m, "N": 1024, "K": 1024, "order": order, "attributes": attributes}
                    yield "a", problem(**given, dtypes=dtypes)
                    yield "residual", problem(**given, present=["residual"], dtypes=dtypes)
                    if m == 1:
                        yield "bias", problem(**given, present=["bias"], dtypes=dtypes)
    elif name == "batched_gemm":
        for order in ({"b": (0, 2, 1)}, {}):
            yield "a", problem(B=4, M=128, N=128, K=128, order=order, dtypes=dtypes)
    elif name in ("softmax", "rms_norm", "layer_norm", "silu_mul"):
        for rows, width in ((3, 1024), (300, 4096), (5, 40000), (2, 150000)):
            given = _GIVEN.get(name, ())
            yield "gate" if name == "silu_mul" else "x", problem(R=rows, D=width, present=given, dtypes=dtypes)
        if name in _GIVEN:
            yield "weight", problem(R=1, D=4096, present=_GIVEN[name], dtypes=dtypes)


def _keep_as_large(case: Case, source: str) -> None:
    """Make inputs such that values stay about as large as they are, from link to link."""
    if "b" in case.tensors:
        case.tensors["b"].div_(math.sqrt(case.problem.dims["K"]))
    if source == "weight":
        case.tensors["x"].sign_()
    if "up" in case.tensors:
        case.tensors["up"].clamp_(-1.5, 1.5)


def _call(ops: Any, case: Case, source: str, taken: Any, made: Any) -> None:
    given = case.tensors | {source: taken.view(case.tensors[source].shape), case.operator.outputs[0].name: made}
    getattr(ops, case.operator.name)(**given, **case.problem.attributes)


def _one_by_one(ops: Any, case: Case, source: str, links: list[Any]) -> Any:
    for taken, made in itertools.pairwise(links):
        _call(ops, case, source, taken, made)
        torch.cuda.synchronize()
    wanted = links[-1].double()
    assert bool(torch.isfinite(wanted).all()), f"{case.text}: the chain's values are no numbers any more"
    return wanted


def _in_a_graph(ops: Any, case: Case, source: str, links: list[Any], wanted: Any) -> int:
    """How many replays did not come to the same, though all links were NaN before."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for taken, made in itertools.pairwise(links):
            _call(ops, case, source, taken, made)
    allowed, bad = 2e-2 * float(wanted.abs().max()), 0
    for _ in range(_REPLAYS):
        for link in links[1:]:
            link.fill_(math.nan)
        graph.replay()
        bad += not float((links[-1].double() - wanted).abs().max()) <= allowed
    return bad
