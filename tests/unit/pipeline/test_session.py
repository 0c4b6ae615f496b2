"""What a session knows of the devices that are here."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from gpus import H200

from aot_tune.bench.devices.cuda import device_of
from aot_tune.bench.devices.family import family
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


def test_what_a_user_allows_of_workspace_is_part_of_the_policy_and_holds_for_baselines_too() -> None:
    session: Any = object.__new__(Session)
    given = {None: ("32768", ":4096:8"), 64 << 20: ("65536", ":8192:8"), 0: ("0", ":0:0")}
    for most, cublas in given.items():
        session.options = SimpleNamespace(workspace_max=most)
        policy, usual = session.policy("cuda"), family("cuda").policy()
        assert policy == (usual if most is None else msgspec.structs.replace(usual, workspace_bytes=most))
        variables = family("cuda").environment(H200, 1, "framework", Path(), policy)
        assert (variables["CUBLASLT_WORKSPACE_SIZE"], variables["CUBLAS_WORKSPACE_CONFIG"]) == cublas
