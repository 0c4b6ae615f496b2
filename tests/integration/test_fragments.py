"""A library whose operator has an epilogue and a fragment of its author's: built, verified, and called from outside."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from project import Project

OPERATOR = """
from aot_tune.spec import (
    Epilogue, Fragment, Kernel, Operator, Parameter, Scalar, Tensor, dims, elementwise as el, problem, stride,
)

M, N, K = dims("M N K")
x = el.value()


def reference(xp, call):
    product = xp.matmul(call.a, call.b)
    return {"out": call.epilogue(call.fragment("slanted", product))}


operator = Operator(
    name="mixture",
    dims=("M", "N", "K"),
    tensors=(
        Tensor("a", (M, K)),
        Tensor("b", (K, N)),
        Tensor("bias", (N,), optional=True),
        Tensor("slopes", (M,)),
        Tensor("out", (M, N), output=True),
    ),
    scalars=(Scalar("alpha", default=0.75),),
    epilogue=Epilogue("out", expression=x * el.sigmoid(x) + el.element("bias", 1) * el.scalar("alpha")),
    fragments={"slanted": Fragment({"i": M, "j": N}, x + el.element("slopes", "i") * (el.index("j") % 5))},
    reference=reference,
    flops=2 * M * N * K,
    workload=(problem(M=32, N=256, K=16, present=("bias",)),),
    kernels=(
        Kernel("generic", "mixture/generic.cpp.j2", generic=True),
        *(
            Kernel(
                name,
                "mixture/lanes.cpp.j2",
                listed=({"W": 4, "FORGETS": name},),
                requires=tuple(stride(t, 1) == 1 for t in ("b", "out")),
            )
            for name in ("whole", "forgets_epilogue", "forgets_fragment")
        ),
    ),
)
"""

GENERIC = """
{{ prelude() }}
{{ no_workspace() }}
{{ kernel_signature("launch") }} {
  for (int64_t i = 0; i < {{ dim("M") }}; ++i)
    for (int64_t j = 0; j < {{ dim("N") }}; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < {{ dim("K") }}; ++k) sum += {{ load("a", ["i", "k"]) }} * {{ load("b", ["k", "j"]) }};
      {{ apply_fragment("slanted", ["i", "j"], "sum") }}
      {{ store_output("out", ["i", "j"], "sum") }}
    }
  return 0;
}
"""

LANES = """
{{ prelude() }}
{% include "common/math.h.j2" %}
{{ no_workspace() }}
{{ kernel_signature("launch") }} {
  for (int64_t i = 0; i < {{ dim("M") }}; ++i)
    for (int64_t j = 0; j < {{ dim("N") }}; j += {{ W }}) {
      const int64_t left = {{ dim("N") }} - j, count = left < {{ W }} ? left : {{ W }};
      vf<{{ W }}> sum = {};
      for (int64_t k = 0; k < {{ dim("K") }}; ++k)
        sum += {{ load("a", ["i", "k"]) }} * {{ load("b", ["k", "j"], W, "count") }};
{% if FORGETS != "forgets_fragment" %}
      {{ apply_fragment("slanted", ["i", "j"], "sum", W, "count") }}
{% endif %}
{% if FORGETS != "forgets_epilogue" %}
      {{ store_output("out", ["i", "j"], "sum", W, "count") }}
{% else %}
      {{ store("out", ["i", "j"], "sum", W, "count") }}
{% endif %}
    }
  return 0;
}
"""

CALL = """
import face, numpy as np
draws = np.random.default_rng(3)
for m, n, k in ((32, 256, 16), (5, 37, 3), (1, 1, 1)):
    a, b, slopes, bias = (draws.normal(size=s).astype("f4") for s in ((m, k), (k, n), (m,), (n,)))
    for given, alpha in ((bias, 0.75), (bias, -2.5), (None, 0.75)):
        x = a.astype("f8") @ b + slopes[:, None] * (np.arange(n) % 5)
        wanted = x / (1 + np.exp(-x)) + (0 if given is None else given * np.float64(np.float32(alpha)))
        got = np.from_dlpack(face.mixture(a, b, slopes, bias=given, alpha=alpha))
        assert np.abs(got - wanted).max() < 1e-4, (m, n, k)
        turned = np.from_dlpack(face.mixture(a.T.copy().T, b.T.copy().T, slopes, bias=given, alpha=alpha))
        assert np.abs(turned - wanted).max() < 1e-4, (m, n, k)
print("right")
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("fragments") / "project"
    made = Project.make(folder, arguments="bundled OPERATORS mixture MODULE face", AOT_TUNE_EFFORT="quick")
    own = made.templates / "mixture"
    own.mkdir()
    for name, text in (("operator.py", OPERATOR), ("generic.cpp.j2", GENERIC), ("lanes.cpp.j2", LANES)):
        (own / name).write_text(text)
    return made


def test_built_verified_and_called(project: Project) -> None:
    project.cmake()
    said = project.make_all()
    assert re.search(r"libtiny\.so\.1: \d variants verified inside the library", said), said
    built = project.folder / "cmake"
    (operator,) = json.loads((built / "aot_tune" / "tiny" / "manifest.json").read_bytes())["operators"]
    assert {v["name"].rpartition("_")[0] for v in operator["variants"]} == {"generic", "whole"}
    for name in ("forgets_epilogue", "forgets_fragment"):
        assert re.search(rf"{name}.*wrong-result", said), said
    env = {**os.environ, "PYTHONPATH": str(built)}
    done = subprocess.run([sys.executable, "-c", CALL], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "right\n", done.stderr


def test_a_formula_that_contradicts_its_operator_is_told_when_it_is_configured(project: Project) -> None:
    own = project.templates / "mixture" / "operator.py"
    own.write_text(OPERATOR.replace('el.element("bias", 1)', 'el.element("bias", 0)'))
    said = project.configure("--templates", project.templates, build="other", status=1)
    assert (
        "operator.py: operator 'mixture': the epilogue of 'out': element(\"bias\", 0): 'bias' has the extent N" in said
    )
    assert "fix: take another axis" in said
