"""What the driver is asked about the GPUs, and what is said when it cannot answer. The driver is a few lines here."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from aot_tune.cli import doctor
from aot_tune.cli.examination import gpu_lines
from aot_tune.compile.cuda import visible_gpus as cuda_devices
from aot_tune.compile.cuda.nvcc import NvccToolchain
from aot_tune.compile.cuda.visible_gpus import (
    DeviceQuery,
    check_driver,
    check_usable,
    visible_devices,
)
from aot_tune.support.errors import ToolchainError

# A driver. STUB_DEVICES holds a row `name|capability|compute mode|first byte of the UUID` for each GPU; of these it
# shows those that CUDA_VISIBLE_DEVICES lists by number, up to the first that is none, as the real one does.
DRIVER = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>
#include <unistd.h>
struct Gpu { std::string name; int capability, mode, byte; };
static std::vector<Gpu> gpus;
static int number(const char* name, int other) { const char* t = getenv(name); return t ? atoi(t) : other; }
static std::vector<std::string> split(std::string text, char mark) {
  std::vector<std::string> found;
  for (size_t at; (at = text.find(mark)) != std::string::npos; text = text.substr(at + 1))
    found.push_back(text.substr(0, at));
  found.push_back(text);
  return found;
}
extern "C" {
int cuDriverGetVersion(int* v) { *v = number("STUB_DRIVER", 13000); return *v ? 0 : 3; }
int cuInit(unsigned) {
  if (number("STUB_HANG", 0)) sleep(60);
  if (number("STUB_CRASH", 0)) abort();
  if (int code = number("STUB_INIT", 0)) return code;
  std::vector<Gpu> all;
  for (auto& row : split(getenv("STUB_DEVICES") ? getenv("STUB_DEVICES") : "", ';')) {
    auto f = split(row, '|');
    if (f.size() == 4) all.push_back({f[0], atoi(f[1].c_str()), atoi(f[2].c_str()), atoi(f[3].c_str())});
  }
  const char* visible = getenv("CUDA_VISIBLE_DEVICES");
  if (!visible) { gpus = all; return all.empty() ? 100 : 0; }
  for (auto& word : split(visible, ',')) {
    char* end = nullptr;
    const long n = strtol(word.c_str(), &end, 10);
    if (word.empty() || *end || n < 0 || n >= static_cast<long>(all.size())) break;
    gpus.push_back(all[n]);
  }
  return gpus.empty() ? 100 : 0;
}
int cuGetErrorName(int, const char** name) { *name = "CUDA_ERROR"; return 0; }
int cuDeviceGetCount(int* n) { *n = static_cast<int>(gpus.size()); return number("STUB_COUNT", 0); }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char* out, int size, int d) { snprintf(out, size, "%s", gpus[d].name.c_str()); return 0; }
int cuDeviceGetUuid_v2(unsigned char* out, int d) { memset(out, 0x11, 16); out[0] = gpus[d].byte; return 0; }
int cuDeviceTotalMem_v2(size_t* out, int) { *out = 143771ull << 20; return 0; }
int cuDeviceGetAttribute(int* out, int what, int d) {
  *out = what == 16 ? 132 : what == 20 ? gpus[d].mode : what == 38 ? 52428800 : what == 75 ? gpus[d].capability / 10
       : what == 76 ? gpus[d].capability % 10 : what == 97 ? 232448 : -1;
  return 0;
}
int cuCtxCreate_v2() { abort(); }
int cuDevicePrimaryCtxRetain() { abort(); }
}
"""

# NVML: the GPU of byte 1 has slices, that of byte 2 is a slice, that of byte 3 is whole
NVML = r"""
#include <cstdio>
#include <cstring>
extern "C" {
int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlSystemGetDriverVersion(char* out, unsigned size) { snprintf(out, size, "580.95.05"); return 0; }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** handle) {
  const int byte = uuid[5] - '0';
  *handle = reinterpret_cast<void*>(static_cast<long>(byte));
  return strncmp(uuid, byte == 2 ? "MIG-" : "GPU-", 4) == 0 ? 0 : 6;
}
int nvmlDeviceGetMigMode(void* handle, unsigned* now, unsigned* then) {
  *now = *then = reinterpret_cast<long>(handle) == 1;
  return 0;
}
}
"""
H200 = "NVIDIA H200|90|0|3"


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """LD_LIBRARY_PATH with a driver alone, and with NVML."""
    top = tmp_path_factory.mktemp("drivers")
    for folder, name, text in (("plain", "libcuda", DRIVER), ("nvml", "libnvidia-ml", NVML)):
        (top / folder).mkdir()
        (top / f"{name}.cpp").write_text(text)
        argv = ["g++", "-O1", "-shared", "-fPIC", "-o", str(top / folder / f"{name}.so.1"), str(top / f"{name}.cpp")]
        subprocess.check_call(argv)
    return {"plain": str(top / "plain"), "nvml": f"{top}/plain:{top}/nvml"}


@pytest.fixture
def ask(drivers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., DeviceQuery]:
    """Ask the driver made here: `ask(devices, visible=..., INIT=...)`."""

    def asked(*devices: str, visible: str | None = None, nvml: bool = False, **stub: int) -> DeviceQuery:
        monkeypatch.setenv("STUB_DEVICES", ";".join(devices))
        for name, value in stub.items():
            monkeypatch.setenv(f"STUB_{name}", str(value))
        for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("LD_LIBRARY_PATH", drivers["nvml" if nvml else "plain"])
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        cuda_devices.query_with.cache_clear()
        return visible_devices()

    yield asked
    cuda_devices.query_with.cache_clear()


def test_a_gpu(ask: Callable[..., DeviceQuery]) -> None:
    slices = ask("NVIDIA H200|90|0|1", "NVIDIA H200 MIG 1g.18gb|90|0|2", nvml=True)
    assert [(d.mig, d.uuid[:6]) for d in slices.devices] == [("enabled", "GPU-01"), ("slice", "MIG-02")]
    query = ask(H200, nvml=True)
    assert (query.error, query.fix, query.driver, query.driver_text) == ("", "", 13000, "580.95.05")
    (gpu,) = query.devices
    assert (gpu.ordinal, gpu.name, gpu.capability, gpu.sm_count) == (0, "NVIDIA H200", 90, 132)
    assert gpu.uuid == "GPU-03111111-1111-1111-1111-111111111111"
    assert (gpu.l2_bytes, gpu.memory_bytes, gpu.shared_bytes) == (50 << 20, 143771 << 20, 232448)
    assert (gpu.compute_mode, gpu.mig) == ("default", "disabled")
    assert [t.name for t in NvccToolchain(dict(os.environ)).native()] == ["cuda-sm_90", "cuda-sm_90a"]


def test_a_value_that_leaves_nothing_is_named(ask: Callable[..., DeviceQuery]) -> None:
    for value in ("", "-1", "GPU-deadbeef", "0 1", "\u0663"):
        query = ask(H200, visible=value)
        assert query.devices == ()
        assert f"CUDA_VISIBLE_DEVICES={value!r} leaves no GPU" in query.error
        assert "nvidia-smi -L" in query.fix
        assert query.driver == 13000
    assert NvccToolchain(dict(os.environ)).native() == ()


def test_what_the_driver_may_answer(ask: Callable[..., DeviceQuery]) -> None:
    for code, words, fix in (
        (34, "stub", "LD_LIBRARY_PATH"),
        (100, "sees no GPU", "--gpus all"),
        (304, "device files", "/dev/nvidia"),
        (802, "not ready", "fabricmanager"),
        (803, "another version", "reboot"),
        (804, "does not run on this GPU", "compatibility"),
        (999, "cannot be used (cuInit: 999 CUDA_ERROR)", "nvidia-smi"),
    ):
        query = ask(H200, INIT=code)
        assert query.devices == ()
        assert words in query.error
        assert fix in query.fix
        assert str(code) in query.error


def test_a_driver_that_dies_or_hangs(ask: Callable[..., DeviceQuery], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "-6" in ask(H200, CRASH=1).error
    monkeypatch.setenv("STUB_CRASH", "0")
    monkeypatch.setattr(cuda_devices, "ANSWER_SECONDS", 0.5)
    assert "did not answer within 0.5 s" in ask(H200, HANG=1).error


def test_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty file where the loader looks first stands for none at all, also on a machine that has one."""
    (tmp_path / "libcuda.so.1").write_text("")
    query = visible_devices({**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})
    assert (query.devices, query.driver) == ((), 0)
    assert "no NVIDIA driver" in query.error
    assert "--gpus all" in query.fix
    with pytest.raises(ToolchainError, match="no NVIDIA driver"):
        check_usable(query)


def test_compute_modes(ask: Callable[..., DeviceQuery]) -> None:
    with pytest.raises(ToolchainError, match="is in compute mode prohibited"):
        check_usable(ask("NVIDIA H200|90|2|4"))
    with pytest.raises(ToolchainError, match="is in compute mode exclusive") as caught:
        check_usable(ask(H200, "NVIDIA H200|90|3|4"))
    assert "GPU 1 (NVIDIA H200, GPU-04" in caught.value.what
    assert "-c DEFAULT" in caught.value.fix
    check_usable(ask(H200))


def test_a_driver_older_than_the_toolkit() -> None:
    said = check_driver("13.2.5", 13000)
    assert "supports CUDA 13.0, nvcc is of CUDA 13.2" in said
    assert "runs machine code" in said
    assert "PTX" in said
    with pytest.raises(ToolchainError, match=r"older than the toolkit.*CUDA 12\.8, nvcc is of CUDA 13\.0") as caught:
        check_driver("13.0.88", 12080)
    assert "update the driver" in caught.value.fix
    assert "toolkit of CUDA 12" in caught.value.fix


def test_doctor_shows_the_gpu_and_counts_what_bars_a_build(
    ask: Callable[..., DeviceQuery], monkeypatch: pytest.MonkeyPatch
) -> None:
    def use_torch(found: tuple[str, str] | None) -> None:
        for module in (doctor, cuda_devices):
            monkeypatch.setattr(module, "installed_torch", lambda: found)

    def told(query: DeviceQuery) -> tuple[int, str]:
        found = doctor.examine_gpus(query)
        return sum(one.stops for one in found.troubles), "\n".join(gpu_lines(found))

    use_torch(("2.9.1+cu130", "13.0"))
    problems, said = told(ask("NVIDIA H200|90|3|3", nvml=True))
    assert problems == 1
    assert "driver     580.95.05, supports CUDA 13.0" in said
    assert "sm_90, 132 SMs, 140 GiB, L2 50 MiB, compute mode exclusive" in said
    assert "torch      2.9.1+cu130, built for CUDA 13.0" in said
    assert "problem    GPU 0" in said
    use_torch(("2.9.1+cu140", "14.0"))
    problems, said = told(ask(H200))
    assert problems == 1
    assert "torch is built for CUDA 14.0" in said
    use_torch(None)
    problems, said = told(ask(H200))
    assert problems == 1
    assert "torch is not installed" in said
    problems, said = told(ask(H200, INIT=803))
    assert problems == 0
    assert "gpu        none: the driver's library is of another version" in said
