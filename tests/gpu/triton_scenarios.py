"""Scenarios of `scenarios.py` for a library of Triton kernels, and some of its own: run in fresh processes likewise."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import scenarios
import torch
from problems import Case
from scenarios import BF16, World

from aot_tune.spec import Operator, Problem, problem

ROWS = (1, 2, 3, 7, 33, 300)
WIDTHS = (1, 3, 100, 128, 1000, 4096, 4099, 8192, 14336, 20000)
LAYOUTS = ("dense", "padded", "padded oddly", "unaligned", "broadcast")


class TritonWorld(World):
    """The library of examples/triton_package."""

    def usual(self, seed: int = 0) -> list[Case]:
        """Calls of each operator: two that a tuned variant serves, and one for the generic variant."""
        widths = {"rms_norm": (4096, 4096, 100), "swiglu": (14336, 9000, 20000)}
        return [
            self.case(name, seed, R=rows, D=width)
            for name, members in widths.items()
            for rows, width in zip((1, 64, 5), members, strict=True)
        ]


def odd_calls(operator: Operator, dtypes: dict[str, str]) -> Iterator[tuple[Problem, str]]:
    """Problems and layouts, around what is tuned and far from it."""
    for rows in ROWS:
        for width in WIDTHS:
            for layout in LAYOUTS:
                yield problem(R=rows, D=width, dtypes=dtypes), layout


def forced(world: World, name: str, dtypes: str) -> None:
    """Odd calls of one operator to the variant that AOT_TUNE_FORCE names; prints how many of each layout it served."""
    operator, faults = world.operator(name), list[str]()
    told: dict[str, Counter[str]] = {"served": Counter(), "refused": Counter()}
    for number, (chosen, layout) in enumerate(odd_calls(operator, json.loads(dtypes))):
        case = Case(operator, chosen, layout, number)
        try:
            case.call(world.ops)
        except world.ops.Error as error:
            told["refused"][layout] += 1
            faults += [] if "AOT_TUNE_FORCE" in str(error) else [f"{case.text}: {error}"]
            continue
        told["served"][layout] += 1
        faults += [fault] if (fault := case.fault()) else []
    print("RESULT " + json.dumps({**told, "faults": faults}))


def unforced(world: World) -> None:
    """Every legal call is right; none is served by a variant that assumes an alignment which it lacks."""
    manifest = {o["name"]: o["variants"] for o in world.ops.manifest()["operators"]}
    faults, kernels = list[str](), Counter[str]()
    for name in world.ops.operators:
        aligned = {v["name"] for v in manifest[name] if any("alignment." in r for r in v["requires"])}
        for number, (chosen, layout) in enumerate(odd_calls(world.operator(name), BF16)):
            case = Case(world.operator(name), chosen, layout, number)
            case.call(world.ops)
            faults += [fault] if (fault := case.fault()) else []
            chose = world.ops.explain(name, **case.tensors)["variant"]
            kernels[f"{name} {layout} {chose in aligned}"] += 1
            if layout == "unaligned" and chose in aligned:
                faults.append(f"{case.text}: served by {chose}, which assumes an alignment")
    assert not faults, "\n".join(faults[:20])
    print("RESULT " + json.dumps(kernels))


def nothing_and_too_little(world: World) -> None:
    """No rows, rows of nothing; a unit stride that is missing is refused, and the next call is right."""
    for rows, width in ((0, 4096), (3, 0), (0, 0)):
        x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
        assert world.ops.rms_norm(x, x.new_ones(width)).shape == (rows, width)
        assert world.ops.swiglu(x, x).shape == (rows, width)
    case = world.case("rms_norm", layout="stepped", R=4, D=64)
    scenarios.refused((world.ops.Error,), case.call, world.ops)
    right = world.usual()
    for one in right:
        one.call(world.ops)
    scenarios._all_right([right])


def replaced(world: World) -> None:
    """The library's images were replaced by what no driver takes: other variants serve, and are right."""
    cases = world.usual()
    for case in cases:
        case.call(world.ops)
    scenarios._all_right([cases])


SCENARIOS: dict[str, Callable[..., None]] = {
    **scenarios.SCENARIOS,
    **{function.__name__: function for function in (forced, unforced, nothing_and_too_little, replaced)},
}


def main(name: str, module: str, templates: str, *arguments: Any) -> None:
    """Run one of them."""
    SCENARIOS[name](TritonWorld(module, templates), *arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
