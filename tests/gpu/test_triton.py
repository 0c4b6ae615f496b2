"""examples/triton_package on a GPU: built and tuned by the real build, every variant right or refused where it must."""

import importlib.util
import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from building import AT_ONCE, BUDGET, Library, build_project
from draws import LEAST
from environments import ROOT, environment, run

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="no Triton here, which compiles the kernels of the example"
)
OPERATORS = ("rms_norm", "swiglu")


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory, import_path: str) -> Library:
    """The library of the example, tuned on this GPU, with workloads in all dtypes."""
    folder = tmp_path_factory.mktemp("triton_package")
    templates = folder / "templates"
    shutil.copytree(
        ROOT / "examples" / "triton_package" / "templates", templates, ignore=shutil.ignore_patterns("__pycache__")
    )
    for path in templates.glob("*/operator.py"):
        path.write_text(path.read_text() + _IN_ALL_DTYPES)
    return build_project(folder, templates, import_path, AOT_TUNE_BUDGET=BUDGET)


_IN_ALL_DTYPES = """
import dataclasses

operator = dataclasses.replace(
    operator,
    workload=tuple(problem(**p.dims, dtypes={"T": t}) for p in operator.workload for t in operator.dtypes["T"]),
)
"""


def said(library: Library, scenario: str, *arguments: object, **env: str) -> Any:
    """What a scenario prints as its result; it fails where the scenario does."""
    script = Path(__file__).with_name("triton_scenarios.py")
    argv = [sys.executable, "-B", script, scenario, library.module, library.templates, *arguments]
    text = run(argv, env=environment(PYTHONPATH=library.import_path, **env), status=0, timeout=600)
    return json.loads(text.rpartition("RESULT ")[2]) if "RESULT " in text else text


def of_triton(library: Library) -> list[tuple[str, dict[str, Any]]]:
    """All variants for GPUs, with their operators."""
    return [(name, v) for name, members in library.variants().items() for v in members]


def assumes_alignment(variant: dict[str, Any]) -> bool:
    return any("alignment." in text for text in variant["requires"])


def test_every_operator_has_tuned_variants_and_generic_ones(package: Library) -> None:
    for name in OPERATORS:
        members = package.variants()[name]
        assert any(v["generic"] and v["target"] == "cuda-ptx_80" for v in members), name
        assert any(not v["generic"] and v["target"] != "cuda-ptx_80" for v in members), name
        assert any(assumes_alignment(v) for v in members), f"{name}: nothing is specialised as the JIT does"


def test_every_variant_is_right_on_what_it_serves_and_refuses_the_rest(package: Library) -> None:
    def check(one: tuple[str, dict[str, Any]]) -> Any:
        name, v = one
        given = (json.dumps(v[field]) for field in ("dtypes", "requires"))
        return said(package, "forced", name, *given, AOT_TUNE_FORCE=f"{name}:{v['name']}")

    members = of_triton(package)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(check, members))
    for (_, v), told in zip(members, answers, strict=True):
        assert not told["faults"], f"{v['name']}:\n" + "\n".join(told["faults"][:10])
        assert sum(told["served"].values()) >= LEAST, f"{v['name']} served too little: {told}"
        if v["generic"]:
            assert not told["refused"], f"{v['name']} is generic: {told}"
        elif assumes_alignment(v):
            assert told["served"].get("unaligned", 0) == 0, f"{v['name']}: {told}"
            assert told["refused"]["unaligned"] > 0
        else:
            assert told["served"].get("unaligned", 0) >= 1, f"{v['name']}: {told}"


def test_odd_calls_are_right_and_unaligned_ones_go_elsewhere(package: Library) -> None:
    served = said(package, "unforced")
    for name in OPERATORS:
        assert served.get(f"{name} dense True", 0) > 0, f"no call of {name} went to a specialised variant: {served}"
        assert served[f"{name} unaligned False"] > 0


@pytest.mark.parametrize("scenario", [("capture", "cold"), ("capture", "preloaded"), ("two_threads",), ("imports",)])
def test_loading_in_captures_and_threads(package: Library, scenario: tuple[str, ...]) -> None:
    """`cold`: the first call of the process is inside a global-mode capture."""
    said(package, *scenario)


def test_images_of_the_debug_folder_replace_those_of_the_library(package: Library, tmp_path: Path) -> None:
    """What the driver refuses there leaves the calls to other variants, the generic ones in the end."""
    for _, variant in of_triton(package):
        if not variant["generic"]:
            (tmp_path / f"{variant['symbol']}.bin").write_bytes(b"no image" * 100)
    told = said(package, "replaced", AOT_TUNE_KERNEL_DIR=str(tmp_path))
    assert "is taken from" in told, told
