"""Libraries for AMD's devices, with stand-ins for the HIP runtime and for kernels; nothing here ran on a card."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import forked
import linked
import linked_hip
import numpy as np
import pytest
from dltensors import OnDevice
from linked_hip import call
from stand_ins import build

from aot_tune.support.errors import ToolchainError
from aot_tune.support.installed_paths import RUNTIME
from aot_tune.triton.installed import find_triton


@pytest.fixture(scope="module")
def built(linked_once: Callable[..., linked.Built]) -> linked.Built:
    """The library as it ships: it looks for the runtime at the first call."""
    return linked_once("hip", linked_hip.library)


@pytest.fixture(scope="module")
def hip(built: linked.Built) -> ModuleType:
    """Its module, in a process that has the stand-in of the runtime."""
    ctypes.CDLL(str(linked_hip.runtime_of(built.module)))
    return linked.load_module(built.module)


def test_each_architecture_has_its_own_generic_variants(hip: ModuleType) -> None:
    assert call(hip, 8, 0) == 300  # gfx942, by its table
    assert call(hip, 7, 0) == 200  # its guard fails
    assert call(hip, 8, 1) == 100  # gfx90a has no table
    assert hip.scale(np.ones(8, np.float32), factor=3).tolist() == [3] * 8
    for device, generic in (("rocm:0", "plain_942_bf16"), ("hip:1", "plain_90a_bf16")):
        assert hip.explain("scale", N=8, T="bf16", device=device)["variant"] == generic
    told = hip.explain("scale", N=8, device="rocm:0")
    assert (told["device"], told["table"], told["variant"]) == ("hip gfx942", "hip-gfx942", "fast_942")
    assert [hip.is_tuned("scale", N=8, device=f"rocm:{d}") for d in (0, 1)] == [True, False]
    assert hip.explain("scale", N=8)["device"].startswith("cpu level ")


def test_an_architecture_that_nothing_was_built_for(hip: ModuleType) -> None:
    wanted = (
        "scale: rocm:2 has the architecture gfx1100, but this library is for hip-gfx90a, hip-gfx942 alone; build it "
        "again with AOT_TUNE_TARGETS naming a target of that device, where aot_tune has one, or use a device of those"
    )
    for ask in (
        lambda: call(hip, 8, 2),
        lambda: hip.explain("scale", N=8, T="bf16", device="rocm:2"),
        lambda: hip.preload("rocm:2"),
    ):
        with pytest.raises(hip.ArgumentValueError, match=wanted):
            ask()
    with pytest.raises(ValueError, match="rocm:7: there is no such device; the HIP runtime sees 3, from rocm:0 on"):
        call(hip, 8, 7)
    with pytest.raises(ValueError, match="this library has no variants for cuda:0"):
        hip.preload("cuda:0")


SAID = """
import ctypes
runtime = Path({runtime!r})
if runtime.is_file() and {ahead}:
    stand_in = ctypes.CDLL(str(runtime))
hip = linked.load_module(Path({module!r}))
for _ in range(2):
    try:
        print(linked_hip.call(hip, 8, 0))
    except hip.Error as error:
        print(type(error).__name__, error)
if {ahead}:
    print(stand_in.stub_current(), stand_in.stub_mode(), stand_in.stub_waiting())
"""


def test_errors_of_the_runtime(built: linked.Built) -> None:
    code = SAID.format(runtime=str(linked_hip.runtime_of(built.module)), module=str(built.module), ahead=True)
    for environment, kind, message in (
        ({"FAKE_init": "100"}, "ArgumentValueError", "rocm:0: the HIP runtime sees no device; look at rocminfo"),
        ({"FAKE_init": "3"}, "CallError", "HIP error 3 (a fake error); a process that was forked after HIP was used"),
        ({"FAKE_init": "802"}, "CallError", "rocm:0 cannot be used: HIP error 802 (a fake error)"),
        ({"FAKE_ARCHITECTURES": "Hainan"}, "ArgumentValueError", "architecture 'Hainan', wanted a name such as gfx942"),
        ({"FAKE_ARCHITECTURES": "gfx94x"}, "ArgumentValueError", "architecture 'gfx94x', wanted a name such as"),
        ({"FAKE_malloc": "2"}, "CallError", "rocm:0: no memory for a workspace of 1048576 bytes: HIP error 2"),
    ):
        *lines, state = forked.python(code, **environment).splitlines()
        assert len(lines) == 2
        assert all(line.startswith(kind) and message in line for line in lines), lines
        assert state == "0 0 0"  # nobody's next question for an error gets ours


def test_the_runtime_is_found_at_the_first_call(built: linked.Built, tmp_path: Path) -> None:
    """Where the loader finds it; or there is none, or one that is too old."""
    (tmp_path / "none").mkdir()
    for name in ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"):
        (tmp_path / "none" / name).write_text("not a library\n")
    build(tmp_path / "old", "libamdhip64.so", "-DTOO_OLD")
    code = f"import sys; sys.path[:0] = {sys.path!r}; import linked, linked_hip; from pathlib import Path\n"
    code += SAID.format(runtime="", module=str(built.module), ahead=False)
    for folder, message in (
        (linked_hip.runtime_of(built.module).parent, "300.0\n300.0\n"),
        (tmp_path / "none", "rocm:0: there is no HIP runtime here (libamdhip64.so was not found); install AMD's ROCm"),
        (tmp_path / "old", "the HIP runtime here has no function hipGetDevicePropertiesR0600; this library needs that"),
    ):
        environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}  # which is read when a process begins
        run = [sys.executable, "-c", code]
        said = subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout
        assert message in said


def header() -> Path | None:
    """AMD's header in an installed Triton."""
    try:
        found = find_triton().folder / "backends" / "amd" / "include"
    except ToolchainError:
        return None
    return found if (found / "hip" / "hip_runtime_api.h").is_file() else None


@pytest.mark.skipif(header() is None, reason="no Triton with AMD's hip_runtime_api.h")
def test_declarations_are_those_of_the_header(tmp_path: Path) -> None:
    (tmp_path / "program.cpp").write_text(f"""
#define __HIP_PLATFORM_AMD__ 1
#include <hip/hip_runtime_api.h>
#include <cstddef>
#include "{RUNTIME / "hip" / "hip.cpp"}"
#include "facts.h"
#define TEXT_(name) #name
#define TEXT(name) TEXT_(name)
namespace aot_tune {{
namespace {{
static_assert(offsetof(Properties, architecture) == offsetof(hipDeviceProp_t, gcnArchName));
static_assert(sizeof(Properties::architecture) == sizeof(hipDeviceProp_t::gcnArchName));
static_assert(sizeof(Properties) > sizeof(hipDeviceProp_t) + 1024);
static_assert(kNotInitialized == int{{hipErrorNotInitialized}} && kNoDevice == int{{hipErrorNoDevice}});
static_assert(kInvalidDevice == int{{hipErrorInvalidDevice}} && kOutOfMemory == int{{hipErrorOutOfMemory}});
static_assert(kRelaxedCapture == int{{hipStreamCaptureModeRelaxed}});
static_assert(__builtin_strcmp(TEXT(hipGetDeviceProperties), "hipGetDevicePropertiesR0600") == 0);
static_assert(__builtin_strcmp(TEXT(hipStreamPerThread), "((hipStream_t)2)") == 0);
}}
}}
""")
    flags = ["-std=c++17", "-w", "-fsyntax-only"]
    folders = [f"-I{header()}", f"-I{RUNTIME}", f"-I{RUNTIME / 'include'}"]
    subprocess.run(["g++", *flags, *folders, str(tmp_path / "program.cpp")], check=True)


# ---- Python's devices and streams


class Torch(OnDevice):
    """A tensor of a torch that has no exchange interface."""


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A torch for ROCm: its devices are called cuda."""
    torch, cuda, version = (ModuleType(name) for name in ("torch", "torch.cuda", "torch.version"))
    stream = type("Stream", (), {"cuda_stream": 5})
    torch.Tensor = Torch  # type: ignore[attr-defined]
    cuda.current_stream = lambda device: stream()  # type: ignore[attr-defined]
    cuda.current_device = lambda: 1  # type: ignore[attr-defined]
    version.hip = "6.4"  # type: ignore[attr-defined]
    for module in (torch, cuda, version):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return torch


def test_devices_of_a_torch_for_rocm(hip: ModuleType, torch: ModuleType) -> None:
    named = {device: hip.explain("scale", N=8, device=device)["device"] for device in ("cuda:0", 0, "cuda", "rocm:1")}
    assert named == {"cuda:0": "hip gfx942", 0: "hip gfx942", "cuda": "hip gfx90a", "rocm:1": "hip gfx90a"}
    torch_for_cuda = sys.modules["torch.version"]
    torch_for_cuda.hip = None  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="tensors are on cuda:0, for which this library has no variants"):
        hip.explain("scale", N=8, device="cuda:0")
