"""Libraries for CUDA: dispatch over devices and dtypes with stand-ins for driver and kernels; real objects by nvcc."""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import forked
import linked
import numpy as np
import pytest
from dltensors import OnDevice
from linked_cuda import call, driver_of
from stand_ins import StandIn


@pytest.fixture
def fake(standin: linked.Built) -> Iterator[StandIn]:
    made = driver_of(standin.module)
    yield made
    made.reset()


@pytest.fixture(scope="module")
def cuda(standin: linked.Built) -> ModuleType:
    return linked.load_module(standin.module)


def test_the_device_of_the_call_picks_the_table(cuda: ModuleType) -> None:
    assert call(cuda, 8, 0) == 200  # sm_80
    assert call(cuda, 7, 0) == 100  # its guard fails
    assert call(cuda, 8, 1) == 300  # sm_90a, after the vendor's variant that is not here
    assert cuda.scale(np.ones(8, np.float32), factor=3).tolist() == [3] * 8
    tables = {0: "cuda-sm_80", 1: "cuda-sm_90a"}
    for device, name in tables.items():
        assert cuda.explain("scale", N=8, device=f"cuda:{device}")["table"] == name


def test_a_device_older_than_every_variant(cuda: ModuleType) -> None:
    wanted = (
        r"scale: cuda:2 has the architecture sm_75, but this library is for cuda-ptx_80, cuda-sm_80, cuda-sm_90a and "
        r"needs sm_80 or later; build it again with AOT_TUNE_TARGETS naming a target of that device"
    )
    for ask in (
        lambda: call(cuda, 8, 2),
        lambda: cuda.explain("scale", N=8, device="cuda:2"),
        lambda: cuda.preload("cuda:2"),
    ):
        with pytest.raises(cuda.ArgumentValueError, match=wanted):
            ask()


def test_dtypes_have_variants_of_their_own(cuda: ModuleType) -> None:
    told = cuda.explain("scale", N=8, T="bf16", device="cuda:1")
    assert (told["variant"], told["dtypes"]) == ("fast_bf16", {"T": "bf16"})
    assert cuda.explain("scale", N=9, T="bf16", device="cuda:1")["variant"] == "plain_bf16"
    assert cuda.explain("scale", N=8, T="bf16", device="cuda:0")["variant"] == "plain_bf16"
    assert told["tensors"][0].startswith("x bf16 [N]")
    with pytest.raises(TypeError, match=r"with T=bf16, .*; it has T=f32; T is the dtype of 'x', 'bias', 'out'$"):
        cuda.explain("scale", N=8, T="bf16")
    with pytest.raises(ValueError, match=r"dtype 'T' is 'f64', wanted one of \('f32', 'bf16'\)"):
        cuda.explain("scale", N=8, T="f64")


def test_tensors_of_a_variable_agree(cuda: ModuleType) -> None:
    x, half = np.zeros(8, np.float32), np.zeros(8, np.int16)
    with pytest.raises(TypeError, match=r"'out' has dtype bf16, but 'x' has f32; wanted one for all \(T\)"):
        cuda.scale(OnDevice(x), out=OnDevice(half, code=4))
    with pytest.raises(TypeError, match="'x' has dtype f64, wanted f32 or bf16"):
        cuda.scale(x.astype(np.float64))
    with pytest.raises(TypeError, match="scale: tensors are on cpu:0 with T=bf16"):
        cuda.scale(OnDevice(half, (1, 0), code=4), out=OnDevice(half.copy(), (1, 0), code=4))
    with pytest.raises(TypeError, match=r"'x' is missing \(NULL\); wanted f32 or bf16 \[N\]"):
        cuda.scale(None, out=OnDevice(x))


def test_the_thread_is_left_as_it_was(cuda: ModuleType, fake: StandIn) -> None:
    call(cuda, 8, 0)
    call(cuda, 8, 1)
    for before, device, switched in ((-1, 1, True), (0, 1, True), (1, 1, False), (0, 0, False), (9, 1, False)):
        fake.reset(before)
        call(cuda, 7, device)
        assert fake.state() == (before, 0)
        assert ("set" in "".join(fake.log())) == switched, (before, device)


def test_kernels_load_in_relaxed_mode_once_per_device(standin: linked.Built) -> None:
    code = f"""
module = Path({str(standin.module)!r})
cuda, fake = linked.load_module(module), linked_cuda.driver_of(module)
for device in (0, 0, 1):
    linked_cuda.call(cuda, 7, device)
print("; ".join(fake.log()))
fake.reset()
cuda.preload("cuda:1")
cuda.preload("cuda:1")
print("; ".join(fake.log()))
"""
    first, ahead = forked.python(code).splitlines()
    assert first.split("; ").count("preload aot_tune_plain_cuda") == 1  # on device 0, where the guard fails
    assert first.split("; ").count("preload aot_tune_wide_90a") == 1
    assert "strict mode" not in first
    loaded = [e.removeprefix("preload aot_tune_") for e in ahead.split("; ") if e.startswith("preload")]
    assert loaded == ["plain_cuda", "plain_bf16", "vendor_90a", "fast_90a", "fast_bf16"]  # wide_90a was there


def test_a_device_that_cannot_be_used(cuda: ModuleType, fake: StandIn) -> None:
    fake.reset(-1, 46)
    with pytest.raises(RuntimeError, match=r"cuda:0 cannot be used: CUDA error 46 .*another process holds it"):
        call(cuda, 8, 0)
    assert fake.state() == (-1, 0)


def test_a_workspace_of_the_librarys_own_per_stream(standin: linked.Built) -> None:
    code = f"""
module = Path({str(standin.module)!r})
cuda, fake = linked.load_module(module), linked_cuda.driver_of(module)
fake.reset()
for stream in (0, 0, 5, 5, 2, 2):
    linked_cuda.call(cuda, 8, 1, stream=stream)
print(sum(e.startswith("malloc") for e in fake.log()))
thread = threading.Thread(target=linked_cuda.call, args=(cuda, 8, 1), kwargs={{"stream": 2}})
thread.start()
thread.join()
print(sum(e.startswith("malloc") for e in fake.log()))
print([e for e in fake.log() if e.startswith("malloc") and "strict" in e])
"""
    assert forked.python(code).splitlines() == [
        "3",
        "4",
        "[]",
    ]  # under the handle 2 each thread has a stream of its own


def test_the_callers_workspace_decides(cuda: ModuleType, fake: StandIn) -> None:
    enough, small = np.zeros((1 << 20) + 64, np.uint8), np.zeros(1 << 10, np.uint8)
    enough = enough[-enough.ctypes.data % 64 :][: 1 << 20]
    call(cuda, 8, 1, workspace=OnDevice(enough, (2, 1), code=1))
    assert not any("malloc" in event for event in fake.log())
    assert call(cuda, 8, 1, workspace=OnDevice(enough, (2, 1), code=1)) == 300
    assert call(cuda, 8, 1, workspace=OnDevice(small, (2, 1), code=1)) == 400
    assert call(cuda, 7, 1, workspace=OnDevice(small, (2, 1), code=1)) == 100
    told = cuda.explain("scale", N=8, device="cuda:1", workspace=1024)
    assert told["rejected"] == [
        "vendor_90a: the vendor's library 12.3 is not here",
        "wide_90a: needs a workspace of 1048576 bytes, the caller's has 1024",
    ]
    assert (told["variant"], told["workspace"]) == ("fast_90a", 0)
    assert cuda.explain("scale", N=8, device="cuda:1")["workspace"] == 1 << 20
    with pytest.raises(ValueError, match="the workspace is on another device than the tensors"):
        call(cuda, 8, 1, workspace=small)
    with pytest.raises(ValueError, match="the workspace has gaps"):
        call(cuda, 8, 1, workspace=OnDevice(enough[::2], (2, 1), code=1))


def test_a_variant_by_name(standin: linked.Built) -> None:
    code = f"""
cuda = linked.load_module(Path({str(standin.module)!r}))
try:
    print(linked_cuda.call(cuda, 8, 1), cuda.explain("scale", N=8, device=1)["why"])
except cuda.CallError as error:
    print(error)
"""
    for names, wanted in (
        ("fast_90a", "400.0 named by AOT_TUNE_FORCE"),
        ("scale:wide", "300.0 named by"),
        ("fast", "400.0 named by"),  # the kernel's name: the first of its variants that takes the call
        ("plain_cuda, nobody", "100.0 named by"),
        ("gemm:fast,rms_norm:norm", "300.0 first of"),  # of other operators
        ("plain_cpu", "300.0 first of"),  # for CPUs
        ("", "300.0 first of"),
        ("even_80", "AOT_TUNE_FORCE names variant even_80 for cuda-sm_80, which this device (sm_90) does not run"),
        ("fast_bf16", "names variant fast_bf16, whose guard (dtype.T == 1) does not hold for this call"),
        ("scale:fats", "scale: AOT_TUNE_FORCE names 'fats', which is no variant and no kernel of it"),
        (
            "vendor",
            "variant vendor_90a for cuda-sm_90a: workspace returned -100 (the vendor's library 12.3 is not here)",
        ),
    ):
        assert wanted in forked.python(code, AOT_TUNE_FORCE=names)


class Stream:
    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


class Protocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, 9)


def test_streams(cuda: ModuleType) -> None:
    for given, handle in ((9, 9), (Stream(cuda_stream=9), 9), (Stream(ptr=9), 9), (Protocol(), 9), (0, 0), (None, 0)):
        x, out = np.zeros(7, np.float32), np.zeros(7, np.float32)
        tensors = [OnDevice(x), OnDevice(out)]
        cuda.scale(tensors[0], out=tensors[1], stream=given)
        assert out[0] == 100 + 1000 * handle
        assert [t.streams for t in tensors] == [[handle or 1]] * 2  # 1 is DLPack's legacy default stream
    for bad in ("fast", 1.5, object()):
        with pytest.raises(TypeError, match="wanted a number or an object with cuda_stream"):
            call(cuda, 7, 0, stream=bad)
    host = OnDevice(np.zeros(7, np.float32), (1, 0))
    cuda.scale(host)
    assert host.streams == [None]


class Torch(OnDevice):
    """A tensor of a torch that has no exchange interface."""


def test_the_current_stream_of_an_older_torch(cuda: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    torch, streams = ModuleType("torch"), ModuleType("torch.cuda")
    torch.Tensor = Torch  # type: ignore[attr-defined]
    streams.current_stream = lambda device: Stream(cuda_stream=5 + device)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.cuda", streams)
    x, out = Torch(np.zeros(7, np.float32)), Torch(np.zeros(7, np.float32))
    cuda.scale(x, out=out)
    assert out.array[0] == 5100
    assert (x.streams, out.streams) == ([-1], [5])  # its own stream waits for nothing


class Device:
    def __str__(self) -> str:
        return "cuda:1"


def test_preload_takes_devices(cuda: ModuleType, fake: StandIn) -> None:
    for device in ("cuda:1", 1, Device(), "cpu", "cpu:0"):
        fake.reset()
        assert cuda.preload(device) is None
        assert ("set 1" in fake.log()) == (not str(device).startswith("cpu")), fake.log()
    for bad in ("cuda:", "cuda:x", "tpu", -1, "cuda:99999999999", "cpus", None):
        with pytest.raises(ValueError, match="is not known; wanted 'cpu', 'cuda', 'cuda:1'"):
            cuda.preload(bad)
    with pytest.raises(ValueError, match="this library has no variants for rocm:0"):
        cuda.preload("rocm:0")


def test_driver_errors(standin: linked.Built) -> None:
    code = f"""
cuda = linked.load_module(Path({str(standin.module)!r}))
for _ in range(2):
    try:
        linked_cuda.call(cuda, 8, 0)
    except cuda.Error as error:
        print(type(error).__name__, error)
"""
    for environment, kind, message in (
        ({"FAKE_device": "35", "FAKE_version": "0"}, "CallError", "there is no CUDA driver here"),
        ({"FAKE_device": "35", "FAKE_version": "11040"}, "CallError", "the driver is for CUDA 11.4, but this library"),
        ({"FAKE_device": "100"}, "ArgumentValueError", "the driver sees no device; look at nvidia-smi"),
        ({"FAKE_device": "802"}, "CallError", "cuda:0 cannot be used: CUDA error 802 (a fake error)"),
        ({"FAKE_exchange": "3"}, "CallError", "CUDA error 3 (a fake error); a process that was forked after CUDA"),
        ({"FAKE_exchange": "4"}, "CallError", "cuda:0 cannot be used: CUDA error 4 (a fake error)"),
    ):
        lines = forked.python(code, **environment).splitlines()
        assert len(lines) == 2
        assert all(line.startswith(f"{kind} ") and message in line for line in lines), lines


def test_threads_that_share_a_stream_have_its_memory_in_turn(cuda: ModuleType) -> None:
    x, begin = np.zeros(1 << 20, np.float32), threading.Barrier(4, timeout=60)

    def work(factor: float) -> None:
        begin.wait()
        cuda.scale(OnDevice(x, (2, 1)), factor=factor, out=OnDevice(np.zeros_like(x), (2, 1)), stream=7)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, [1e6 + i for i in range(4)]))  # a kernel whose memory another one wrote to returns 91
