"""Scenarios of `scenarios.py` for a library of Triton kernels, and some of its own: run in fresh processes likewise."""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import scenarios
from draws import guards_of, odd_rows, own_calls
from problems import Case
from world import BF16, World


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


def forced(world: World, name: str, dtypes: str, requires: str) -> None:
    """Calls of one operator to the variant that AOT_TUNE_FORCE names: odd ones, and those made for its guards."""
    operator, chosen = world.operator(name), json.loads(dtypes)
    guards = guards_of(operator, chosen, json.loads(requires))
    calls = [*odd_rows(chosen), *own_calls(operator, guards)]
    print("RESULT " + json.dumps(scenarios.judged(world, operator, guards, calls)))


def unforced(world: World) -> None:
    """Every legal call is right; none is served by a variant that assumes an alignment which it lacks."""
    manifest = {o["name"]: o["variants"] for o in world.ops.manifest()["operators"]}
    faults, kernels = list[str](), Counter[str]()
    for name in world.ops.operators:
        aligned = {v["name"] for v in manifest[name] if any("alignment." in r for r in v["requires"])}
        for number, (chosen, layout) in enumerate(odd_rows(BF16)):
            case = Case(world.operator(name), chosen, layout, number)
            case.call(world.ops)
            faults += [fault] if (fault := case.fault()) else []
            chose = world.ops.explain(name, **case.tensors)["variant"]
            kernels[f"{name} {layout} {chose in aligned}"] += 1
            if layout == "unaligned" and chose in aligned:
                faults.append(f"{case.text}: served by {chose}, which assumes an alignment")
    assert not faults, "\n".join(faults[:20])
    print("RESULT " + json.dumps(kernels))


def replaced(world: World) -> None:
    """The library's images were replaced by what no driver takes: other variants serve, and are right."""
    cases = world.usual()
    for case in cases:
        case.call(world.ops)
    scenarios._all_right([cases])


SCENARIOS = scenarios.SCENARIOS | scenarios.found_in(globals())


def main(name: str, module: str, templates: str, *arguments: Any) -> None:
    SCENARIOS[name](TritonWorld(module, templates), *arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
