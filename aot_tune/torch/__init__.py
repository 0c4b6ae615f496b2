"""Operators of tuned libraries as torch's: `register(my_kernels.ops)` puts them under `torch.ops.my_kernels`.

Importing this package imports torch. No other part of aot_tune imports it for a call.
"""

from __future__ import annotations

from aot_tune.torch.backward import Backward, BackwardCall
from aot_tune.torch.drop_in.patch_model import Left, Patched, patch
from aot_tune.torch.drop_in.replaced_modules import Replaced
from aot_tune.torch.registration import Registered, register
from aot_tune.torch.shim import ShimError, build_shim
from aot_tune.torch.torch_versions import TorchError, UntestedTorchWarning

__all__ = [
    "Backward",
    "BackwardCall",
    "Left",
    "Patched",
    "Registered",
    "Replaced",
    "ShimError",
    "TorchError",
    "UntestedTorchWarning",
    "build_shim",
    "patch",
    "register",
]
