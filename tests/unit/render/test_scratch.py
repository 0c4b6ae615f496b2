"""Kernels of several launches whose scratch memory depends on the config: a split sum and its reduction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cpu_kernels import TARGETS, CpuKernel

from aot_tune.render import Renderer, candidate_for
from aot_tune.spec import (
    Kernel,
    Operator,
    Parameter,
    Target,
    Tensor,
    dims,
    parameter,
    problem,
    stride,
    where,
)
from aot_tune.support.errors import RenderError, SpecError

M, K = dims("M K")
SPLIT = parameter("SPLIT")
GPU = Target(name="cuda-sm_90a", family="cuda", level=90)
BYTES = where(SPLIT == 1, 0, SPLIT * M * 4)

SPLIT_SUM = """{{ prelude() }}
{{ kernel_signature("workspace") }} {
  *workspace_size = {{ scratch() }};
  return 0;
}
{{ kernel_signature("launch") }} {
  if (workspace_size < static_cast<size_t>({{ scratch() }})) return 9;
  const int64_t rows = {{ dim("M") }}, each = {{ dim("K") }} / {{ SPLIT }};
  [[maybe_unused]] float* parts = static_cast<float*>(workspace);
  for (int64_t part = 0; part < {{ SPLIT }}; ++part) {
    for (int64_t i = 0; i < rows; ++i) {
      float sum = 0;
      for (int64_t k = part * each; k < (part + 1) * each; ++k) sum += {{ load("x", ["i", "k"]) }};
{% if SPLIT == 1 %}
      {{ store("out", ["i"], "sum") }}
{% else %}
      parts[part * rows + i] = sum;
{% endif %}
    }
  }
{% if SPLIT > 1 %}
  for (int64_t i = 0; i < rows; ++i) {
    float sum = 0;
    for (int64_t part = 0; part < {{ SPLIT }}; ++part) sum += parts[part * rows + i];
    {{ store("out", ["i"], "sum") }}
  }
{% endif %}
  return 0;
}
"""


def operator(template: str = "sums/split.cpp.j2", scratch: Any = BYTES, **given: Any) -> Operator:
    return Operator(
        name="sums",
        dims=("M", "K"),
        tensors=(Tensor("x", (M, K)), Tensor("out", (M,), output=True)),
        reference=lambda xp, call: {"out": xp.sum(call.x, axis=1)},
        flops=M * K,
        workload=(problem(M=3, K=8),),
        kernels=(
            Kernel("generic", "sums/generic.cpp.j2", generic=True),
            Kernel(
                "split",
                template,
                backend="nvcc" if ".cu" in template else "cxx",
                parameters=(Parameter("SPLIT", (1, 2, 4)),),
                stages=("partial", "reduce"),
                scratch=scratch,
                requires=(K % SPLIT == 0,),
                **given,
            ),
        ),
    )


@pytest.fixture
def roots(tmp_path: Path) -> Path:
    (tmp_path / "sums").mkdir()
    (tmp_path / "sums" / "split.cpp.j2").write_text(SPLIT_SUM)
    return tmp_path


@pytest.mark.parametrize("split", [1, 4])
def test_each_config_has_the_scratch_memory_that_it_needs(roots: Path, tmp_path: Path, split: int) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    kernel = CpuKernel(folder, [roots], operator(), "split", TARGETS[0], {"SPLIT": split})
    size = "INT64_C(0)" if split == 1 else f"((INT64_C({split}) * x->shape[0]) * INT64_C(4))"
    assert f"*workspace_size = {size};" in kernel.source
    x = np.random.default_rng(1).standard_normal((3, 8), np.float32)
    out = np.zeros(3, np.float32)
    assert kernel(x=x, out=out) == 0
    np.testing.assert_allclose(out, x.sum(1), rtol=1e-5)


def test_a_config_without_scratch_memory_need_not_ask_for_it(roots: Path) -> None:
    op, template = operator(), roots / "sums" / "split.cpp.j2"
    template.write_text(template.read_text().replace("{{ scratch() }}", "0"))
    for split in (1, 2):
        candidate = candidate_for(op, op.kernel("split"), {"SPLIT": split}, TARGETS[0])
        if split == 1:
            Renderer([roots]).render(op, candidate, TARGETS[0])
            continue
        with pytest.raises(RenderError, match=r"it has no scratch\(\)"):
            Renderer([roots]).render(op, candidate, TARGETS[0])


def test_cuda_templates_have_it_too(roots: Path) -> None:
    text = """{{ prelude() }}
{{ kernel_signature("preload") }} { return 0; }
{{ kernel_signature("workspace") }} {
  const Arguments args = {{ pack() }};
  *workspace_size = {{ scratch() }};
  return 0;
}
{{ kernel_signature("launch") }} { return 0; }
"""
    (roots / "sums" / "split.cu.j2").write_text(text)
    op = operator("sums/split.cu.j2")
    source = Renderer([roots]).render(op, candidate_for(op, op.kernel("split"), {"SPLIT": 4}, GPU), GPU).source
    assert "*workspace_size = ((INT64_C(4) * args.dim_M) * INT64_C(4));" in source


def test_what_scratch_may_not_be_of() -> None:
    with pytest.raises(SpecError, match=r"scratch uses 'parameter.SPLITS', which is not bound\n  fix: did you mean"):
        operator(scratch=parameter("SPLITS") * M)
    with pytest.raises(SpecError, match=r"scratch uses 'stride.x.0', which is not bound"):
        operator(scratch=SPLIT * stride("x", 0))
