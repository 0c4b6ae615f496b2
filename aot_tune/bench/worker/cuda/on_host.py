"""Reference results that torch cannot compute. It has few functions for unsigned integers of 16 to 64 bits.

Their references run in numpy, on copies of the inputs on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.inputs import layout
from aot_tune.bench.worker.reference_results import rounded_inputs, run_reference
from aot_tune.bench.worker.stored_elements import array_dtype, values_of
from aot_tune.spec import Operator

__all__ = ["exact_on_host", "is_for_host"]

_FOR_HOST = ("u16", "u32", "u64")


def is_for_host(operator: Operator) -> bool:
    """Whether the reference of a concrete operator runs on the host."""
    return any(t.dtype.name in _FOR_HOST for t in operator.tensors)


def exact_on_host(operator: Operator, check: Check, storages: Mapping[str, Any], *, wide: bool) -> dict[str, Any]:
    """What `truth.exact_values` returns, on the device of the storages. Integers of 64 bits keep their dtype."""
    inputs: dict[str, Any] = {}
    device = torch.device("cpu")
    for tensor in (t for t in operator.inputs if t.name in storages):
        storage = storages[tensor.name]
        device = storage.device
        array = layout(operator, check, tensor).array(array_dtype(tensor.dtype), storage.cpu().numpy())
        inputs[tensor.name] = values_of(tensor.dtype, array)
    given = inputs if wide else rounded_inputs(operator, check, inputs)
    with np.errstate(all="ignore"):
        found = run_reference(operator, check, given, np, wide=wide)
    return {name: torch.from_numpy(value).to(device) for name, value in found.items()}
