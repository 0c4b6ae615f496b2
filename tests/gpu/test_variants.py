"""Every variant for this GPU on odd shapes, strides and alignments, against float64."""

import itertools
import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from building import AT_ONCE
from draws import LEAST

OPERATORS = ("batched_gemm", "flash_attention", "gemm", "layer_norm", "rms_norm", "silu_mul", "softmax")


@pytest.fixture(scope="session")
def checked(library: Any) -> dict[str, dict[str, Any]]:
    """What came of each variant, by `operator:variant`: the n-th variants of all operators share a process."""
    columns = [
        [(name, v["name"], v["dtypes"], v["requires"]) for v in members]
        for name, members in sorted(library.variants().items())
    ]
    rows = [[one for one in row if one is not None] for row in itertools.zip_longest(*columns)]

    def check(wanted: Sequence[Sequence[Any]]) -> dict[str, dict[str, Any]]:
        force = ",".join(f"{name}:{variant}" for name, variant, *_ in wanted)
        said = library.run("variants", json.dumps(wanted), AOT_TUNE_FORCE=force, timeout=600)
        found: dict[str, dict[str, Any]] = json.loads(said.rpartition("RESULT ")[2])
        return found

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return {name: told for found in pool.map(check, rows) for name, told in found.items()}


@pytest.mark.parametrize("name", OPERATORS)
def test_every_variant_is_right(library: Any, checked: dict[str, dict[str, Any]], name: str) -> None:
    members = library.variants().get(name)
    if members is None:
        pytest.skip(f"the project has no operator {name}")
    assert members
    told_of = {v["name"]: checked[f"{name}:{v['name']}"] for v in members}
    wrong = [f"{v['name']} ({v['kernel']}): {fault}" for v in members for fault in told_of[v["name"]]["faults"][:3]]
    assert not wrong, "\n".join(wrong)
    for variant in members:
        told = told_of[variant["name"]]
        assert sum(told["served"].values()) >= LEAST, f"{variant['name']} ({variant['kernel']}): {told}"
        assert not (variant["generic"] and told["refused"]), f"{variant['name']} is generic: {told}"


@pytest.mark.parametrize("name", ["batched_gemm", "gemm", "layer_norm", "rms_norm", "silu_mul", "softmax"])
def test_calls_wait_for_what_the_call_before_writes(
    library: Any, checked: dict[str, dict[str, Any]], name: str
) -> None:
    """What was wrong is among the faults of the variants; here, that tuned ones made chains of calls."""
    tuned = [v for v in library.variants().get(name, ()) if not v["generic"]]
    if not tuned:
        pytest.skip(f"the project has no tuned variant of {name}")
    assert any(checked[f"{name}:{v['name']}"]["chained"] for v in tuned)


def test_tuned_variants_are_there(library: Any) -> None:
    """The library has more than its generic variants."""
    for name, members in library.variants().items():
        assert any(not v["generic"] for v in members), name
        assert any(v["generic"] for v in members), name


def test_every_variant_was_verified_inside_the_library(library: Any) -> None:
    """The generic ones too, which are compiled for another target than the GPU's own."""
    count = sum(len(o["variants"]) for o in library.manifest["operators"])
    if not library.log:
        pytest.skip("the library was built elsewhere, so its build says nothing")
    assert "not verified inside the library" not in library.log
    assert re.search(rf"\b{count} variants verified inside the library|verified before on this machine", library.log)


@pytest.mark.parametrize("scenario", ["no_numbers", "far_apart"])
def test_tf32_by_f16_is_right_for_floats_of_all_kinds(library: Any, scenario: str) -> None:
    members = [v["name"] for v in library.variants()["gemm"] if v["kernel"] == "cutlass_tf32_halves"]
    if not members:
        pytest.skip("no problem chose cutlass_tf32_halves here, which is for Hopper")
    for name in members:
        library.run(scenario, "tf32", AOT_TUNE_FORCE=f"gemm:{name}")


def test_an_unknown_name_is_refused(library: Any) -> None:
    said = library.run("without_force", status=None, AOT_TUNE_FORCE="softmax:no_such_variant")
    assert "AOT_TUNE_FORCE" in said
    assert "no_such_variant" in said
