"""A function whose configs were chosen by the device when its module was imported, as packages do."""

# ruff: noqa: N803 - constexprs are written in capitals

import torch
import triton
import triton.language as tl
from triton.runtime import driver

assert torch.cuda.is_available()
PROPERTIES = torch.cuda.get_device_properties(0)
UTILS = driver.active.utils.get_device_properties(driver.active.get_current_device())
assert UTILS["multiprocessor_count"] == PROPERTIES.multi_processor_count
IS_AMD = torch.version.hip is not None
assert (driver.active.get_current_target().backend == "hip") == IS_AMD
BLOCKS = [64, 128] if UTILS["max_shared_mem"] > 200_000 else [32]
MAJOR = tl.constexpr(torch.cuda.get_device_capability()[0])


@triton.autotune(configs=[triton.Config({"BLOCK": b, "AMD": IS_AMD}) for b in BLOCKS], key=["n"])
@triton.heuristics({"HALF": lambda args: args["x"].dtype == torch.float16})
@triton.jit
def chosen(x, n, BLOCK: tl.constexpr, AMD: tl.constexpr, HALF: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), MAJOR)
