"""A library with operators that work in place, built by CMake and used from outside; wrong kernels are not in it."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest
from environments import run
from project import Project

ADD_RMS_NORM = """
from aot_tune.spec import Baseline, Kernel, Launcher, Operator, Parameter, Scalar, Tensor
from aot_tune.spec import dims, present, problem, stride

R, D = dims("R D")
dense = tuple(c for t in ("x", "residual") for c in (stride(t, 1) == 1, stride(t, 0) == D))


def reference(xp, call):
    residual = call.residual + call.x
    scale = 1 / xp.sqrt(xp.mean(residual * residual, axis=-1, keepdims=True) + call.eps)
    new = {"x": residual * scale * call.w, "residual": residual}
    return new if call.calls is None else {**new, "calls": call.calls + 1}


def in_numpy(np, call):
    def run():
        np.add(call.residual, call.x, out=call.residual)
        scale = 1 / np.sqrt(np.mean(call.residual**2, axis=-1, keepdims=True) + call.eps)
        np.multiply(call.residual * scale, call.w, out=call.x)
        if call.calls is not None:
            call.calls += 1

    return run


operator = Operator(
    name="add_rms_norm",
    dims=("R", "D"),
    tensors=(
        Tensor("x", (R, D), inout=True),
        Tensor("residual", (R, D), inout=True),
        Tensor("w", (D,)),
        Tensor("calls", (R,), "i32", inout=True, optional=True),
    ),
    scalars=(Scalar("eps", default=1e-5),),
    reference=reference,
    flops=5 * R * D,
    workload=(problem(R=16, D=1024), problem(R=300, D=500)),
    baselines=(Baseline("numpy", "numpy", in_numpy),),
    kernels=(
        Kernel("generic", "add_rms_norm/rows.cpp.j2", generic=True),
        Kernel("dense", "add_rms_norm/rows.cpp.j2", requires=(stride("x", 1) == 1, stride("residual", 1) == 1)),
        Kernel(
            "own",
            function=Launcher("csrc/add_rms_norm.cpp:add_rms_norm", {"rows": R, "columns": D}),
            requires=(*dense, stride("w", 0) == 1, ~present("calls")),
        ),
        Kernel("wrong", "add_rms_norm/rows.cpp.j2", parameters=(Parameter("WRONG", ("idle", "twice", "gap")),)),
    ),
)
"""
ROWS = """
{% set wrong = WRONG | default("") %}
{{ prelude() }}
{{ no_workspace() }}
{{ kernel_signature("launch") }} {
  for (int64_t i = 0; i < {{ "0" if wrong == "idle" else dim("R") }}; ++i) {
    float sum = 0;
    for (int64_t j = 0; j < {{ dim("D") }}; ++j) {
      float r = {{ load("residual", ["i", "j"]) }} + {{ load("x", ["i", "j"]) }};
{% if wrong == "twice" %}
      r += {{ load("x", ["i", "j"]) }};
{% endif %}
      {{ store("residual", ["i", "j"], "r") }}
      sum += r * r;
    }
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>({{ dim("D") }}) + eps);
    for (int64_t j = 0; j < {{ dim("D") }}; ++j) {
      {{ store("x", ["i", "j"], load("residual", ["i", "j"]) ~ " * scale * " ~ load("w", ["j"])) }}
    }
    if ({{ present("calls") }}) {{ store("calls", ["i"], load("calls", ["i"]) ~ " + 1") }}
  }
{% if wrong == "gap" %}
  if ({{ stride("x", 1) }} == 1 && {{ stride("x", 0) }} > {{ dim("D") }}) {{ ptr("x") }}[{{ dim("D") }}] = 0;
{% endif %}
  return 0;
}
"""
OWN = """
#include <cmath>

void add_rms_norm(float* x, float* residual, const float* w, int rows, int columns, float eps) {
  for (; rows > 0; --rows, x += columns, residual += columns) {
    float sum = 0;
    for (int j = 0; j < columns; ++j) residual[j] += x[j], sum += residual[j] * residual[j];
    const float scale = 1 / std::sqrt(sum / columns + eps);
    for (int j = 0; j < columns; ++j) x[j] = residual[j] * scale * w[j];
  }
}
"""

GATED = """
from aot_tune.spec import Kernel, Operator, Parameter, Tensor, dims, problem

R, D = dims("R D")
operator = Operator(
    name="gated",
    dims=("R", "D"),
    tensors=(
        Tensor("gate", (R, D)),
        Tensor("up", (R, D)),
        Tensor("out", (R, D), output=True, may_alias=("gate", "up")),
        Tensor("total", (R,), output=True),
    ),
    reference=lambda xp, call: {"out": call.gate * call.gate + call.up, "total": xp.sum(call.gate, axis=1)},
    flops=3 * R * D,
    workload=(problem(R=64, D=1000),),
    kernels=(
        Kernel("generic", "gated/rows.cpp.j2", generic=True),
        Kernel("rows", "gated/rows.cpp.j2", parameters=(Parameter("LATE", (0, 1)),)),
    ),
)
"""
GATED_ROWS = """
{% set late = LATE | default(0) %}
{% set add %}
    for (int64_t j = 0; j < {{ dim("D") }}; ++j) sum += {{ load("gate", ["i", "j"]) }};
{% endset %}
{{ prelude() }}
{{ no_workspace() }}
{{ kernel_signature("launch") }} {
  for (int64_t i = 0; i < {{ dim("R") }}; ++i) {
    float sum = 0;
{{ "" if late else add }}
    for (int64_t j = 0; j < {{ dim("D") }}; ++j) {
      const float g = {{ load("gate", ["i", "j"]) }};
      {{ store("out", ["i", "j"], "g * g + " ~ load("up", ["i", "j"])) }}
    }
{{ add if late else "" }}
    {{ store("total", ["i"], "sum") }}
  }
  return 0;
}
"""

CALLS = """
import numpy as np
import ops

rng = np.random.default_rng(0)


def near(got, want, most=1e-5):
    assert np.abs(np.asarray(got, "f8") - want).max() <= most


def refused(words, call, *arguments, **given):
    try:
        call(*arguments, **given)
    except ops.ArgumentValueError as error:
        assert words in str(error), error
    else:
        raise SystemExit("not refused: " + words)


class Foreign:
    # an array whose export does not say whether it may be written

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **_):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def norm(x, residual, w):
    residual = residual.astype("f8") + x
    return residual / np.sqrt((residual**2).mean(-1, keepdims=True) + 1e-5) * w, residual


for shape in ((16, 1024), (5, 77), (1, 1)):
    x, residual, w = (rng.standard_normal(s).astype("f4") for s in (shape, shape, shape[1:]))
    new_x, new_residual = norm(x, residual, w)
    for _ in range(3):  # the same call again is remembered
        a, b = x.copy(), residual.copy()
        assert ops.add_rms_norm(a, b, w) is None
        near(a, new_x)
        near(b, new_residual)
    wide = np.zeros((shape[0], 2 * shape[1]), "f4")
    wide[:, ::2] = x
    b = residual.copy()
    ops.add_rms_norm(wide[:, ::2], b, w, eps=1e-5)
    near(wide[:, ::2], new_x)
    assert not wide[:, 1::2].any()
    a, b, count = x.copy(), residual.copy(), np.arange(shape[0], dtype="i4")
    assert ops.add_rms_norm(a, b, w, count) is None
    assert ops.add_rms_norm(a, b, w, calls=count) is None
    assert (count == np.arange(shape[0]) + 2).all()
    b = residual.copy()
    b.flags.writeable = False
    a = x.copy()
    refused("tensor 'residual' is read-only; wanted a tensor that can be written", ops.add_rms_norm, a, b, w)
    refused("tensor 'x' is read-only", ops.add_rms_norm, np.broadcast_to(x[:1], shape), x.copy(), w)
    refused("'residual' is passed by a DLPack capsule without a version", ops.add_rms_norm, a, Foreign(x.copy()), w)
    assert (a == x).all()
    ops.add_rms_norm(x.copy(), residual.copy(), Foreign(w))
    refused("tensor 'residual' overlaps tensor 'x' in memory; wanted separate memory", ops.add_rms_norm, a, a, w)

    gate, up = x, residual
    out = gate.astype("f8") ** 2 + up
    made, total = ops.gated(gate, up)
    near(np.from_dlpack(made), out)
    near(np.from_dlpack(total), gate.astype("f8").sum(1), 1e-4)
    for name in ("gate", "up"):
        for _ in range(3):
            given = {"gate": gate.copy(), "up": up.copy()}
            found, total = ops.gated(**given, out=given[name])
            assert found is given[name]
            near(found, out)
            near(np.from_dlpack(total), gate.astype("f8").sum(1), 1e-4)
    flat = np.zeros(gate.size + 1, "f4")
    partly, shifted = flat[:-1].reshape(shape), flat[1:].reshape(shape)
    partial = "output 'out' overlaps input 'gate' in memory; wanted separate memory, or the very same tensor"
    if shape[0] > 1:
        refused(partial, ops.gated, partly, up, out=shifted)
        square = np.zeros((shape[0],) * 2, "f4")
        refused(partial, ops.gated, square, np.ones_like(square), out=square.T)
        refused("output 'total' overlaps output 'out'", ops.gated, gate, up, out=partly, total=flat[: shape[0]])

empty = np.zeros((0, 4), "f4")
assert ops.add_rms_norm(empty, empty, np.zeros(4, "f4")) is None
assert ops.is_tuned("add_rms_norm", R=16, D=1024) and not ops.is_tuned("add_rms_norm", R=16, D=1025)
assert "x: f32 [R, D], changed in place." in ops.add_rms_norm.__doc__
try:
    ops.add_rms_norm(empty, w=empty)
except ops.ArgumentTypeError as error:
    assert "needs the tensor 'residual'" in str(error), error
else:
    raise SystemExit("a missing tensor was not missed")

import torch

a, b, w = torch.tensor(x), torch.tensor(residual), torch.tensor(w)
versions = a._version, b._version
assert ops.add_rms_norm(a, b, w) is None
near(a.numpy(), new_x)
near(b.numpy(), new_residual)
assert (a._version, b._version) == (versions[0] + 1, versions[1] + 1)
gate = torch.tensor(x)
assert ops.gated(gate, torch.tensor(residual), out=gate)[0] is gate
near(gate.numpy(), out)
refused("requires a gradient", ops.add_rms_norm, torch.zeros(2, 4, requires_grad=True), torch.zeros(2, 4), w[:1])
print("all is right")
"""


@pytest.fixture(scope="module")
def project(tuned_once: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("in_place") / "project"
    made = tuned_once.copied(folder, arguments="MODULE ops", AOT_TUNE_EFFORT="quick")
    made.env["AOT_TUNE_TARGETS"] = "native"
    operators = {"add_rms_norm": (ADD_RMS_NORM, ROWS), "gated": (GATED, GATED_ROWS)}
    for name, (declared, template) in operators.items():
        (made.templates / name).mkdir()
        (made.templates / name / "operator.py").write_text(declared)
        (made.templates / name / "rows.cpp.j2").write_text(template)
    (made.folder / "csrc").mkdir()
    (made.folder / "csrc" / "add_rms_norm.cpp").write_text(OWN)
    made.cmake()
    (made.folder / "said.txt").write_text(made.make_all())
    return made


def test_wrong_kernels_are_dropped_and_right_ones_are_verified_in_the_library(project: Project) -> None:
    said = (project.folder / "said.txt").read_text()
    for config, words in (
        ("WRONG=idle", r"(x|residual)\[\d+, \d+\]: got .* elements are wrong"),
        ("WRONG=twice", r"(x|residual)\[\d+, \d+\]: got .* elements are wrong"),
        ("WRONG=gap", r"oob: 4 bytes between the rows of 'x' were written"),
        ("LATE=1", r"total\[\d+\]: got .*\(problem 'R=\d+ D=\d+', 'out' in the memory of 'gate'\)"),
    ):
        assert re.search(rf"dropped \w+ {config}: wrong-result( on 2 problems)?: {words}", said), (config, said)
    assert re.search(r"\d variants verified inside the library", said)
    (made,) = project.folder.glob("cmake/**/manifest.json")
    operators: Any = {o["name"]: o for o in json.loads(made.read_bytes())["operators"]}
    kernels = {n: {v["kernel"] for v in o["variants"]} for n, o in operators.items()}
    assert kernels["add_rms_norm"] <= {"generic", "dense", "own"}
    assert "tried 6 (3 ok, 3 wrong-result)" in said  # a function of a source that works in place is one of the three
    assert "generic" in kernels["add_rms_norm"] & kernels["gated"]
    assert "numpy" in said  # the baseline was right and took part


def test_the_library_says_what_it_changes(project: Project) -> None:
    (header,) = project.folder.glob("cmake/**/tiny.h")
    text = header.read_text()
    assert "* x: f32 [R, D], read and written\n" in text
    assert "* out: f32 [R, D], output, may be the memory of gate or up\n" in text
    assert "An output may be the very memory of an input" in text
    (stub,) = project.folder.glob("cmake/**/ops.pyi")
    stubs = stub.read_text()
    words = (
        r"def add_rms_norm\(x: Tensor, residual: Tensor, w: Tensor, calls: Tensor \| None = None, \*, eps.*\) -> None:"
    )
    assert re.search(words, re.sub(r",\n +", ", ", stubs).replace("(\n    ", "(").replace(",\n)", ")"))
    assert "out: _T | None = None" in stubs


def test_calls_change_their_arguments_in_place(project: Project) -> None:
    (module,) = project.folder.glob("cmake/**/ops.abi3.so")
    script = project.folder / "calls.py"
    script.write_text(CALLS)
    said = run([sys.executable, "-B", script], env=project.environment(PYTHONPATH=str(module.parent)))
    assert said == "all is right\n"
