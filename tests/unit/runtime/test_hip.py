"""Libraries for AMD's devices, with stand-ins for the HIP runtime and for kernels; nothing here ran on a card."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import linked
import linked_hip
import numpy as np
import pytest
from linked_cuda import OnDevice, python
from linked_hip import Fake, call
from places import SHARED
from traces import read_trace

from aot_tune.link import LibrarySpec, check_against_manifest
from aot_tune.link.check.against_manifest import read_manifest
from aot_tune.support.errors import ManifestError, ToolchainError
from aot_tune.support.installed_paths import RUNTIME
from aot_tune.triton.installed import find_triton


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> LibrarySpec:
    return linked_hip.library_spec(tmp_path_factory.mktemp("objects"))


@pytest.fixture(scope="module")
def built(spec: LibrarySpec, tmp_path_factory: pytest.TempPathFactory) -> linked.Built:
    """The library, which finds the stand-in because the process has it."""
    folder = tmp_path_factory.mktemp("hip")
    found = ["-Wl,--no-as-needed", str(linked_hip.stand_in(folder)), "-Wl,-rpath,$ORIGIN"]
    return linked.link_library(spec, folder, families=["hip"], libraries=found)


@pytest.fixture(scope="module")
def bare(spec: LibrarySpec, tmp_path_factory: pytest.TempPathFactory) -> linked.Built:
    """The library as it ships: it looks for the runtime at the first call."""
    return linked.link_library(spec, tmp_path_factory.mktemp("bare"), families=["hip"])


@pytest.fixture(scope="module")
def hip(built: linked.Built) -> ModuleType:
    return linked.load_module(built.module)


@pytest.fixture
def fake(built: linked.Built) -> Iterator[Fake]:
    made = Fake(built.library.parent)
    yield made
    made.reset()


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


def test_the_thread_is_left_as_it_was(hip: ModuleType, fake: Fake) -> None:
    call(hip, 8, 0)
    for before, device in ((0, 1), (1, 1), (1, 0)):
        fake.reset(before)
        call(hip, 7, device)
        assert fake.state() == before * 100
        assert [e for e in fake.log() if "set" in e] == ([f"set {device}", f"set {before}"] if before != device else [])
    fake.reset(0, 2)
    with pytest.raises(RuntimeError, match=r"rocm:1 cannot be used: HIP error 2 \(a fake error\)"):
        call(hip, 8, 1)
    assert fake.state() == 0


def test_a_trace_tells_captured_calls(built: linked.Built, tmp_path: Path) -> None:
    """The stand-in captures from streams of odd numbers; the question that it has no answer to leaves no error."""
    code = f"""
import sys
sys.path.insert(0, {str(SHARED)!r})
import linked, linked_hip
from pathlib import Path
hip, fake = linked.load_module(Path({str(built.module)!r})), linked_hip.Fake(Path({str(built.module.parent)!r}))
for stream in (3, 4, 5, 0):
    linked_hip.call(hip, 8, 0, stream=stream)
    assert fake.state() == 0
"""
    python(code, AOT_TUNE_TRACE=str(tmp_path / "trace"))
    counts = read_trace(tmp_path / "trace").counts
    assert (sum(line["calls"] for line in counts), sum(line["captured"] for line in counts)) == (4, 2)


def test_variants_load_in_relaxed_mode_once_per_device(built: linked.Built) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(SHARED)!r})
import linked, linked_hip
from pathlib import Path
hip, fake = linked.load_module(Path({str(built.module)!r})), linked_hip.Fake(Path({str(built.module.parent)!r}))
for device in (0, 0, 1):
    linked_hip.call(hip, 7, device)
print("; ".join(fake.log()))
fake.reset()
hip.preload("rocm:0")
hip.preload("rocm:0")
print("; ".join(fake.log()))
"""
    calls, ahead = (line.split("; ") for line in python(code).splitlines())
    assert [e for e in calls if "preload" in e] == ["preload aot_tune_plain_942", "preload aot_tune_plain_90a"]
    assert [e for e in ahead if "preload" in e] == ["preload aot_tune_plain_942_bf16", "preload aot_tune_fast_942"]


def test_a_workspace_of_the_librarys_own_per_stream(built: linked.Built) -> None:
    code = f"""
import sys, threading
sys.path.insert(0, {str(SHARED)!r})
import linked, linked_hip
from pathlib import Path
hip, fake = linked.load_module(Path({str(built.module)!r})), linked_hip.Fake(Path({str(built.module.parent)!r}))
fake.reset(1)
for stream in (0, 0, 5, 5, 2, 2):
    linked_hip.call(hip, 8, 0, stream=stream)
print([e for e in fake.log() if "malloc" in e])
thread = threading.Thread(target=linked_hip.call, args=(hip, 8, 0), kwargs={{"stream": 2}})
thread.start()
thread.join()
print(sum("malloc" in e for e in fake.log()))
"""
    grown, count = python(code).splitlines()
    assert grown == str(["malloc 1024K on 0"] * 3)
    assert count == "4"  # under the handle 2 each thread has a stream of its own


def said(bare: linked.Built, folder: Path, **environment: str) -> list[str]:
    """What calls on rocm:0 raise, twice, in a process that finds the runtime in a folder, and its state after that."""
    code = f"""
import ctypes, sys
sys.path.insert(0, {str(SHARED)!r})
import linked, linked_hip
from pathlib import Path
hip = linked.load_module(Path({str(bare.module)!r}))
for _ in range(2):
    try:
        print(linked_hip.call(hip, 8, 0))
    except hip.Error as error:
        print(type(error).__name__, error)
if Path({str(folder / "libamdhip64.so")!r}).is_file():
    print(ctypes.CDLL({str(folder / "libamdhip64.so")!r}).stub_state())
"""
    return python(code, LD_LIBRARY_PATH=str(folder), **environment).splitlines()


def test_the_runtime_is_found_at_the_first_call(bare: linked.Built, built: linked.Built) -> None:
    assert said(bare, built.library.parent) == ["300.0", "300.0", "0"]


@pytest.mark.parametrize(
    ("environment", "kind", "message"),
    [
        ({"FAKE_INIT": "100"}, "ArgumentValueError", "rocm:0: the HIP runtime sees no device; look at rocminfo"),
        ({"FAKE_INIT": "3"}, "CallError", "HIP error 3 (a fake error); a process that was forked after HIP was used"),
        ({"FAKE_INIT": "802"}, "CallError", "rocm:0 cannot be used: HIP error 802 (a fake error)"),
        ({"FAKE_ARCHITECTURES": "Hainan"}, "ArgumentValueError", "architecture 'Hainan', wanted a name such as gfx942"),
        ({"FAKE_ARCHITECTURES": "gfx94x"}, "ArgumentValueError", "architecture 'gfx94x', wanted a name such as"),
        ({"FAKE_MALLOC": "2"}, "CallError", "rocm:0: no memory for a workspace of 1048576 bytes: HIP error 2"),
    ],
)
def test_errors_of_the_runtime(
    bare: linked.Built, built: linked.Built, environment: dict[str, str], kind: str, message: str
) -> None:
    *lines, state = said(bare, built.library.parent, **environment)
    assert len(lines) == 2
    for line in lines:
        assert line.startswith(kind)
        assert message in line
    assert state.endswith("0")  # nobody's next question for an error gets ours


def test_without_a_runtime_or_with_one_that_is_too_old(bare: linked.Built, tmp_path: Path) -> None:
    for name in ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"):
        (tmp_path / "none").mkdir(exist_ok=True)
        (tmp_path / "none" / name).write_text("not a library\n")
    linked_hip.stand_in(tmp_path / "old", "-DTOO_OLD")
    code = f"import sys; sys.path.insert(0, {str(SHARED)!r}); import linked, linked_hip; from pathlib import Path; "
    code += f"hip = linked.load_module(Path({str(bare.module)!r}))\n"
    code += "try:\n  linked_hip.call(hip, 8, 0)\nexcept hip.CallError as error:\n  print(error)"
    for folder, message in (
        ("none", "rocm:0: there is no HIP runtime here (libamdhip64.so was not found); install AMD's ROCm, or"),
        ("old", "rocm:0: the HIP runtime here has no function hipGetDevicePropertiesR0600; this library needs that"),
    ):
        assert message in python(code, LD_LIBRARY_PATH=str(tmp_path / folder))


def header() -> Path | None:
    """AMD's header in an installed Triton."""
    try:
        found = find_triton().folder / "backends" / "amd" / "include"
    except ToolchainError:
        return None
    return found if (found / "hip" / "hip_runtime_api.h").is_file() else None


@pytest.mark.skipif(header() is None, reason="no Triton with AMD's hip_runtime_api.h")
def test_declarations_are_those_of_the_header(tmp_path: Path) -> None:
    program = tmp_path / "program.cpp"
    program.write_text(f"""
#define __HIP_PLATFORM_AMD__ 1
#include <hip/hip_runtime_api.h>
#include <cstddef>
#include "{RUNTIME / "hip" / "hip.cpp"}"
#include "facts.h"
namespace aot_tune {{
const LibraryInfo library_info = {{"none", "", nullptr, 0}};
namespace {{
static_assert(offsetof(Properties, architecture) == offsetof(hipDeviceProp_t, gcnArchName));
static_assert(sizeof(Properties::architecture) == sizeof(hipDeviceProp_t::gcnArchName));
static_assert(sizeof(Properties) > sizeof(hipDeviceProp_t) + 1024);
static_assert(kNotInitialized == int{{hipErrorNotInitialized}} && kNoDevice == int{{hipErrorNoDevice}});
static_assert(kInvalidDevice == int{{hipErrorInvalidDevice}} && hipErrorOutOfMemory == 2);
static_assert(kRelaxedCapture == int{{hipStreamCaptureModeRelaxed}});
bool per_thread() {{ return hipStreamPerThread == reinterpret_cast<hipStream_t>(2); }}
}}
}}
#define TEXT_(name) #name
#define TEXT(name) TEXT_(name)
int main() {{
  const bool same = std::strcmp(TEXT(hipGetDeviceProperties), "hipGetDevicePropertiesR0600") == 0;
  return same && aot_tune::per_thread() ? 0 : 1;
}}
""")
    runtime = RUNTIME
    folders = [f"-I{header()}", f"-I{runtime}", f"-I{runtime / 'include'}"]
    sources = [str(program), *(str(p) for p in sorted(runtime.glob("*.cpp")))]
    flags = ["-std=c++17", "-w", "-DAOT_TUNE_PREFIX=test"]
    subprocess.run(["g++", *flags, *folders, *sources, "-ldl", "-o", str(tmp_path / "program")], check=True)
    subprocess.run([str(tmp_path / "program")], check=True)


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


def test_streams(hip: ModuleType, torch: ModuleType) -> None:
    x, out = (Torch(np.zeros(7, np.float32), (10, 0)) for _ in range(2))
    hip.scale(x, out=out)
    assert out.array[0] == 5200  # torch's current stream
    assert (x.streams, out.streams) == ([-1], [5])
    for given, handle in ((9, 9), (0, 0), (None, 0)):
        tensors = [OnDevice(np.zeros(7, np.float32), (10, 0)) for _ in range(2)]
        hip.scale(tensors[0], out=tensors[1], stream=given)
        assert tensors[1].array[0] == 200 + 1000 * handle
        assert [t.streams for t in tensors] == [[handle]] * 2  # 0 is DLPack's default stream of ROCm


# ---- Checks before and after linking


def without(spec: LibrarySpec, *names: str, **changes: object) -> LibrarySpec:
    (scale,) = spec.operators
    kept = tuple(v for v in scale.variants if v.name not in names)
    return dataclasses.replace(spec, operators=(dataclasses.replace(scale, variants=kept, **changes),))  # type: ignore[arg-type]


def test_the_manifest_tells_of_each_architecture(built: linked.Built, bare: linked.Built, tmp_path: Path) -> None:
    manifest, archive = Path(built.made.manifest), Path(built.made.archive)
    document = check_against_manifest(bare.library, bare.module, Path(bare.made.manifest), Path(bare.made.archive))
    generic = {v.target for v in document.operators[0].variants if v.generic}
    assert generic == {"cpu-x86-64", "hip-gfx90a", "hip-gfx942"}
    with pytest.raises(ManifestError, match=r"linked_hip\.so needs libamdhip64\.so, which a machine without a GPU"):
        check_against_manifest(built.library, built.module, manifest, archive)
    text = manifest.read_text()
    bad = tmp_path / "manifest.json"
    bad.write_text(text.replace('"generic": true', '"generic": false'))
    assert not any(v.generic for v in read_manifest(bad.read_bytes()).operators[0].variants)
    with pytest.raises(ManifestError, match="has no generic variant for"):
        check_against_manifest(bare.library, None, bad, archive)
