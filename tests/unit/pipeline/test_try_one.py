"""One candidate by itself: problems are found by their ids, candidates by their names."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from aot_tune.cli.main import main
from aot_tune.pipeline.evidence import Entry
from aot_tune.pipeline.naming import again, variant_name
from aot_tune.render import Renderer, candidate_for
from aot_tune.spec import Target
from aot_tune.spec.load_operators import bundled_templates, load_operators

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
OPERATORS = {name: op for name, (_, op) in load_operators([bundled_templates()]).items()}


def test_the_command_names_roots_by_their_last_part() -> None:
    operator, target = OPERATORS["softmax"], Target(name="cpu-x86-64", family="cpu", level=1)
    candidate = candidate_for(operator, operator.kernel("generic"), {}, target)
    entry = Entry.of(operator, Renderer([bundled_templates()]).render(operator, candidate, target))
    assert again(operator, entry, target.name) == f"aot-tune try softmax {variant_name(entry)} --target cpu-x86-64"
    elsewhere = dataclasses.replace(operator, folder="/some where/my templates/softmax")
    found = again(elsewhere, entry, target.name, operator.workload_for("cpu")[0])
    assert found.endswith(f"--templates 'my templates' --problem '{operator.workload_for('cpu')[0].id}'")


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


def test_an_operator_of_a_project_needs_its_templates(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["try", "affine", "tuned_0123abcd"]) == 1
    said = capsys.readouterr().err
    assert (
        "there is no bundled operator 'affine'\n  fix: name the template root of its project with --templates" in said
    )
