"""One candidate by itself: problems are found by their ids, candidates by their names."""

import re
from pathlib import Path

import pytest
from bundled import OPERATORS, RENDERER
from nvcc_sources import MISSING

from aot_tune.cli.main import main
from aot_tune.compile import native_targets, target_by_name
from aot_tune.render import candidates_for

OWN = """
from aot_tune.spec import Kernel, Operator, Tensor, dims, problem

(N,) = dims("N")
operator = Operator(
    name="{name}", dims=("N",), tensors=(Tensor("x", (N,)), Tensor("y", (N,), output=True)), flops=N,
    reference=lambda xp, call: {{"y": call.x}}, workload=(problem(N=4),),
    kernels=(Kernel("generic", "{name}/generic.cpp.j2", generic=True),))
"""
OWN_GENERIC = """{{ prelude() }}
{% include "common/simd.h.j2" %}
{{ no_workspace() }}
{{ kernel_signature("launch") }} { return 0; }
"""


def test_a_name_that_nothing_has(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert (
        main(["try", "softmax", "rows_00000000", "--target", "cpu-x86-64-v2", "--source", str(tmp_path / "s.cpp")]) == 1
    )
    said = capsys.readouterr().err
    assert "operator 'softmax' has no candidate 'rows_00000000' for cpu-x86-64-v2" in said
    assert not (tmp_path / "s.cpp").exists()


@pytest.mark.parametrize("name", ["own", "softmax"])  # the bundled templates have a softmax, too
def test_templates_of_a_project_may_include_bundled_ones(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "templates" / name
    folder.mkdir(parents=True)
    (folder / "operator.py").write_text(OWN.format(name=name))
    (folder / "generic.cpp.j2").write_text(OWN_GENERIC)
    assert main(["try", name, "generic_00000000", "--templates", str(tmp_path / "templates")]) == 1
    said = capsys.readouterr().err
    wanted = (
        "has no candidate 'generic_00000000'" if name == "own" else "'common/simd.h.j2' is not below a template root"
    )
    assert wanted in said
    assert ("fix: add the bundled templates" in said) == (name == "softmax")


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_a_source_is_written_anywhere_without_a_device(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, target = OPERATORS["softmax"], target_by_name("cuda-sm_90a")
    if target.name in [t.name for t in native_targets()]:
        pytest.skip("there is such a device here")
    kernel = operator.kernel("cuda_split")
    candidate = next(candidates_for(operator, kernel, next(kernel.configs(target.facts)), target))
    rendered = RENDERER.render(operator, candidate, target)
    name, source = f"cuda_split_{candidate.id[:8]}", tmp_path / "of" / "no" / "folder.cu"
    monkeypatch.setenv("AOT_TUNE_KEEP", str(tmp_path / "kept"))
    assert main(["try", "softmax", name, "--target", target.name, "--source", str(source)]) == 1
    said = capsys.readouterr()
    assert source.read_text() == rendered.source
    assert f"source    {source}\n" in said.out
    assert re.search(r"^resources \d+ registers, no spills, \d+ static bytes of shared memory$", said.out, re.MULTILINE)
    assert "there is no device for cuda-sm_90a here" in said.err
    kept = {p.suffix: p.read_text() for p in (tmp_path / "kept" / "once" / "softmax").iterdir()}
    assert kept[".cu"] == rendered.source
    assert ".target sm_90a" in kept[".ptx"]
    assert ".sass" not in kept or "EXIT" in kept[".sass"]


def test_an_operator_of_a_project_needs_its_templates(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["try", "affine", "tuned_0123abcd"]) == 1
    said = capsys.readouterr().err
    assert (
        "there is no bundled operator 'affine'\n  fix: name the template root of its project with --templates" in said
    )
