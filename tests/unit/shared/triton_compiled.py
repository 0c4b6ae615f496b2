"""Candidates of Triton functions for the tests of the toolchain: recipes, and a launcher that tells what it has."""

from pathlib import Path
from typing import Any

from triton_installed import FUNCTIONS, ask, chain, integer, request

from aot_tune.compile import target_by_name
from aot_tune.compile.toolchain import Object
from aot_tune.render.triton.recipe import Recipe, with_recipes
from aot_tune.spec import dims

VISIBLE = 'extern "C" __attribute__((visibility("default")))'
LAUNCHER_SOURCE = f"""#include "launch.h"
#include "kernel.h"
{VISIBLE} int f_workspace(unsigned long* size) {{ *size = kernel::global_scratch; return 0; }}
{VISIBLE} int f_preload(const void** image, const char** name) {{
  *image = AOT_TUNE_KERNEL_IMAGE;
  *name = kernel::name;
  return static_cast<int>(kernel::image_size);
}}
{VISIBLE} int f_launch() {{ return static_cast<int>(kernel::shared + kernel::warps * kernel::warp_size); }}
"""
PLAIN: dict[str, Any] = {
    "signature": {"x": "*bf16", "y": "*bf16", "n": "i32", "step": "i32", "BLOCK": "constexpr"},
    "constexprs": {"BLOCK": 1024},
    "divisible": ["x", "y", "step"],
    "options": {"num_warps": 8},
}
DIGESTS: dict[tuple[str, str, str], str] = {}
OFTEN = (
    "rows.py:plain",
    "matmul.py:product",
    *(f"wrong.py:{name}" for name in ("calls_wrong", "refuses", "needs_much", "offset_of_64_bits")),
    *(f"wrong.py:{name}" for name in ("crashes", "hangs")),
)
"""Functions that are read together."""


def recipe(search: list[str], function: str, root: Path = FUNCTIONS.parent, **given: Any) -> Recipe:
    """A recipe with the digest that the function has."""
    key = (search[0], str(root), function)
    if key not in DIGESTS:
        names = OFTEN if function in OFTEN and root == FUNCTIONS.parent else (function,)
        asked = [request(name, {"n": integer(dims("N")[0])}) for name in names]
        for name, answer in zip(names, ask(search, "cuda-sm_90a", *asked, root=root), strict=True):
            assert answer.inspection is not None, answer.fault
            DIGESTS[search[0], str(root), name] = answer.inspection.digest
    return Recipe(function=f"triton_functions/{function}", digest=DIGESTS[key], **given)


def compiled(
    search: list[str], one: Recipe, target: str, folder: Path, root: Path = FUNCTIONS.parent, timeout: float = 120.0
) -> tuple[Object, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    source = with_recipes([one], LAUNCHER_SOURCE)
    return chain(search, root).compile(
        source, target_by_name(target), folder / "object.o", timeout
    ), folder / "object.o"
