"""What is rendered, in full, in C++ and in CUDA C++: a change of it shows in review. UPDATE_GOLDEN=1 writes it anew."""

import os
from pathlib import Path

import pytest
from places import GOLDEN
from small_operators import make_operator

from aot_tune.compile import target_by_name
from aot_tune.render import Renderer, candidate_for
from aot_tune.spec import Attribute, Epilogue, Kernel, Scalar, Tensor, dim, dims, stride
from aot_tune.spec import elementwise as el

M, N = dims("M N")
BODY = """{{ prelude() }}
{{ no_workspace() }}
PRELOAD
{{ kernel_signature("launch") }} {
PACK
  for (int64_t i = 0; i < {{ dim("M") }}; ++i)
    for (int64_t j = 0; j < {{ dim("N") }}; ++j) {
      {{ store("copied", ["i", "j"], load("x", ["i", "j"])) }}
      {{ store_output("out", ["i", "j"], load("x", ["i", "j"])) }}
    }
  return 0;
}
"""


@pytest.mark.parametrize(("suffix", "target"), [("cpp", "cpu-x86-64"), ("cu", "cuda-sm_90a")])
def test_a_kernel_of_every_hook(suffix: str, target: str, tmp_path: Path) -> None:
    operator = make_operator(
        name="every",
        tensors=(
            Tensor("x", (M, N), "T"),
            Tensor("bias", (N,), optional=True),
            Tensor("copied", (M, N), "T", output=True),
            Tensor("out", (M, N), "T", output=True),
        ),
        attributes=(Attribute("mode", ("none", "relu")),),
        scalars=(Scalar("factor", "f32", 1.0), Scalar("steps", "u8", 3)),
        dtypes={"T": ("f32", "bf16")},
        epilogue=Epilogue("out", expression=el.relu(el.value()) * el.scalar("factor") + el.element("bias", 1)),
        reference=lambda xp, call: {"copied": call.x, "out": call.epilogue(call.x)},
        kernels=(
            Kernel("generic", f"generic.{suffix}.j2", generic=True),
            Kernel("even", f"even.{suffix}.j2", requires=(dim("N") % 8 == 0, stride("x", 1) == 1)),
        ),
    )
    of_cuda = {
        "PRELOAD": '{{ kernel_signature("preload") }} { return 0; }',
        "PACK": "  const Arguments args = {{ pack() }};",
    }
    text = BODY
    for name, value in of_cuda.items():
        text = text.replace(name, value if suffix == "cu" else "")
    (tmp_path / f"even.{suffix}.j2").write_text(text)
    to = target_by_name(target)
    candidate = candidate_for(operator, operator.kernel("even"), {}, to, None, {"T": "bf16"})
    made = Renderer([tmp_path]).render(operator, candidate, to)
    found, golden = made.source.replace(made.symbol, "SYMBOL"), GOLDEN / f"every.{suffix}"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(found)
    assert found == golden.read_text(), "see the difference, then run with UPDATE_GOLDEN=1"
