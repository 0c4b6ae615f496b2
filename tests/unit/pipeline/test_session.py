"""What a session knows of the devices that are here."""

from types import SimpleNamespace
from typing import Any

import msgspec
from gpus import H200

from aot_tune.bench.devices.cuda import device_of
from aot_tune.compile import target_by_name
from aot_tune.pipeline.session import Session

L4 = device_of(
    name="NVIDIA L4",
    uuid="GPU-4",
    capability=90,  # so that it runs the same target
    sm_count=58,
    l2_bytes=48 << 20,
    memory_bytes=24 << 30,
    driver="580.159.04",
)


def test_a_second_model_of_gpus_is_named_as_left_out() -> None:
    target = target_by_name("cuda-sm_90a")
    session: Any = object.__new__(Session)
    session.targets, session.baselines, session._native = [target], [], {target.name}
    session.plan = SimpleNamespace(may_measure=True)
    session.devices = [H200, L4, msgspec.structs.replace(H200, unit="GPU-1")]
    assert [d.unit for d in session.devices_for(target)] == ["GPU-0", "GPU-1"]
    said = "NOTE cuda-sm_90a is measured on NVIDIA H200 only, not on NVIDIA L4; `aot-tune tune` makes records of each"
    assert session.left_out() == [said]
    session.devices = [H200]
    assert session.left_out() == []
