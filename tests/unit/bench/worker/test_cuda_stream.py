"""A worker compares the device that it is on with the one that its parent names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from gpus import H200

torch = pytest.importorskip("torch")

from aot_tune.bench.worker.cuda_stream import check_device  # noqa: E402
from aot_tune.bench.worker.engine import FaultError  # noqa: E402

OWN = "4c5b3c1e-8d3e-4ab1-9d0a-7f6a1d2b3c4d"


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, ""),
        ({"uuid": OWN}, ""),
        ({"uuid": OWN.replace("4c5b", "0000")}, f"this is GPU 0000.* instead of GPU-{OWN}: .*nvidia-smi -L"),
        ({"name": "NVIDIA L4"}, "this is another device: NVIDIA L4 with 132 multiprocessors instead of NVIDIA H200"),
    ],
)
@pytest.mark.parametrize("kind", ["GPU", "MIG"])
def test_another_device_is_refused(
    monkeypatch: pytest.MonkeyPatch, kind: str, facts: dict[str, Any], said: str
) -> None:
    seen = SimpleNamespace(**{"name": "NVIDIA H200", "multi_processor_count": 132, **facts})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: seen)
    device: Any = msgspec.structs.replace(H200, unit=f"{kind}-{OWN}")
    index = torch.device("cuda", 0)
    if not said or (kind == "MIG" and "uuid" in facts):
        check_device(index, device)
        return
    with pytest.raises(FaultError, match=said):
        check_device(index, device)
