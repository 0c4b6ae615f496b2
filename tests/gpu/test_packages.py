"""Examples with kernels of other packages and of an author, on a GPU: tuned, shipped and right, unmodified."""

import functools
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from building import BUDGET, Library, build_project
from environments import ROOT, environment, run

EXAMPLES = ROOT / "examples"
PACKAGES = {"triton": "triton", "liger_kernel": "liger-kernel==0.8.5", "einops": "einops",
            "fla": "flash-linear-attention==0.6.0 fla-core==0.6.0",
            "torchao": "torchao==0.18.0", "xformers": "xformers==0.0.35"}  # fmt: skip
WRONG = {"wrong-result", "crashed", "no-result", "timeout", "suspicious", "compile-failed"}
KERNELS: dict[str, dict[str, str]] = {
    "cuda_author": {"add_rms_norm": "rows", "convolution": "tiled", "gemv": "warps", "quantise": "rows"},
    "cuda_packages": {
        **dict.fromkeys((f.parent.name for f in (EXAMPLES / "cuda_packages").glob("templates/*/operator.py")), ""),
        **dict.fromkeys(("causal_conv", "embedding", "hadamard", "quantize_rows", "rope_in_place"), "any"),
        **dict.fromkeys(("selective_scan", "silu_and_mul"), "any"),
    },
    "from_packages": {
        **dict.fromkeys(("causal_conv", "chunk_cumsum", "chunk_output"), "fla"),
        **dict.fromkeys(("cross_entropy", "layer_norm", "rope", "swiglu", "swiglu_mlp"), "liger"),
        "gather_rows": "xformers",
        "rms_norm": "liger xformers",  # either may win
        "scaled_int8_mm": "torchao",
    },
}
"""The operators of each example, and of which kernel a tuned variant is shipped at least, where one must be."""


def missing(example: str) -> str:
    if example == "from_packages":
        absent = [text for name, text in PACKAGES.items() if importlib.util.find_spec(name) is None]
        return f"pip install {' '.join(absent)}" if absent else ""
    if example == "cuda_packages":
        text = (EXAMPLES / example / "packages.cmake").read_text()
        files = re.findall(r"^fetch_package\(\n  (\S+)\n  \S+\n  ([0-9a-f]{64})", text, re.M)
        here = [(EXAMPLES / example / "packages" / f"{name}.{digest}").is_file() for name, digest in files]
        return "" if all(here) else f"cmake -P examples/{example}/packages.cmake"
    return ""


@dataclass(frozen=True)
class Example:
    """A built example, and what was measured of each operator, for each target."""

    library: Library
    measured: list[dict[str, Any]]


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory, import_path: str) -> Callable[[str], Example]:
    """An example by name, built once."""

    @functools.cache
    def build(name: str) -> Example:
        templates = EXAMPLES / name / "templates"
        library = build_project(tmp_path_factory.mktemp(name), templates, import_path, AOT_TUNE_BUDGET=BUDGET)
        (found,) = library.folder.rglob("report.json")
        return Example(library, json.loads(found.read_bytes())["operators"])

    return build


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_right_on_the_card_and_shipped(examples: Callable[[str], Example], name: str) -> None:
    """The build holds each candidate, and each variant in the linked library, against float64."""
    if lacks := missing(name):
        pytest.skip(f"for examples/{name}: {lacks}")
    example = examples(name)
    wrong = WRONG - ({"compile-failed"} if name == "from_packages" else set())  # Triton's may ask for too much
    for operator, kernels in KERNELS[name].items():
        members = example.library.variants()[operator]
        assert any(v["generic"] for v in members), operator
        tuned = [v["name"] for v in members if not v["generic"]]
        wanted = tuple("" if kernel == "any" else f"{kernel}_" for kernel in kernels.split())
        assert not wanted or any(one.startswith(wanted) for one in tuned), (operator, example.library.log[-3000:])
        rows = [row for row in example.measured if row["operator"] == operator]
        statuses = {status for row in rows for status in row["statuses"]}
        assert "ok" in statuses or not wanted, operator
        assert not wrong & statuses, (operator, [row["failures"] for row in rows])


USE = """
import json
import torch, ops

torch.manual_seed(1)
close = lambda a, b, off: float((a.double() - b.double()).norm() / b.double().norm()) < off
found = {}
image, weights = torch.randn(500, 700, device="cuda"), torch.randn(9, 9, device="cuda")
want = torch.nn.functional.conv2d(image.double()[None, None], weights.double()[None, None])[0, 0]
found["convolution"] = close(torch.from_dlpack(ops.convolution(image, weights)), want, 1e-5)
matrix, x = torch.randn(777, 1234, device="cuda"), torch.randn(1234, device="cuda")
found["gemv"] = close(torch.from_dlpack(ops.gemv(matrix, x)), matrix.double() @ x.double(), 1e-5)
for dtype, off in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
    x, residual, weight = (torch.randn(s, device="cuda").to(dtype) for s in ((33, 5000), (33, 5000), (5000,)))
    total = (residual.double() + x.double()).to(dtype)
    normed = total.double() * torch.rsqrt(total.double().square().mean(1, keepdim=True) + 1e-5) * weight.double()
    assert ops.add_rms_norm(x, residual, weight) is None
    found[f"add_rms_norm {dtype}"] = close(residual, total, off) and close(x, normed, off)
    x = torch.randn(33, 5000, device="cuda").to(dtype)
    q, scale = map(torch.from_dlpack, ops.quantise(x))
    largest = x.double().abs().amax(1)
    found[f"quantise {dtype}"] = close(scale, largest / 448, 1e-6) and close(q.float() * scale[:, None], x, 0.04)
print(json.dumps(found))
"""


def test_torch_gets_what_sources_of_an_author_compute(examples: Callable[[str], Example]) -> None:
    (module,) = examples("cuda_author").library.folder.rglob("ops.abi3.so")
    said = run([sys.executable, "-c", USE], env=environment(PYTHONPATH=str(module.parent)))
    found = json.loads(said.splitlines()[-1])
    assert len(found) == 6
    assert all(found.values()), found
