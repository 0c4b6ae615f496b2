"""What the driver is asked about the GPUs, and what is said when it cannot answer. The driver is a few lines here."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from places import ROOT

from aot_tune.bench.devices.cuda import FAMILY
from aot_tune.compile import visible_gpus
from aot_tune.compile.nvcc import NvccToolchain
from aot_tune.compile.visible_gpus import DeviceQuery, check_driver, check_usable, visible_devices
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
// NVML: it is not there without STUB_POWER
int nvmlInit_v2() { return number("STUB_POWER", 0) ? 0 : 1; }
int nvmlShutdown() { return 0; }
int nvmlSystemGetDriverVersion(char* out, unsigned size) { snprintf(out, size, "580.95.05"); return 0; }
int nvmlDeviceGetHandleByUUID(const char*, void** handle) { *handle = nullptr; return 0; }
int nvmlDeviceGetMigMode(void*, unsigned* now, unsigned* then) { *now = *then = 0; return 0; }
int nvmlDeviceGetPowerManagementLimit(void*, unsigned* to) { *to = number("STUB_POWER", 0) * 1000; return 0; }
int nvmlDeviceGetPowerManagementDefaultLimit(void*, unsigned* to) { *to = number("STUB_USUAL", 0) * 1000; return 0; }
int nvmlDeviceGetApplicationsClock(void*, unsigned kind, unsigned* to) { *to = kind == 2 ? 2619 : 0; return 0; }
int nvmlDeviceGetDefaultApplicationsClock(void*, unsigned, unsigned* to) { *to = 3201; return number("STUB_OLD", 0); }
int cuCtxCreate_v2() { abort(); }
int cuDevicePrimaryCtxRetain() { abort(); }
}
"""

H200 = "NVIDIA H200|90|0|3"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    (folder / "libcuda.cpp").write_text(DRIVER)
    subprocess.check_call(["g++", "-O1", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", folder / "libcuda.cpp"])
    (folder / "libnvidia-ml.so.1").symlink_to("libcuda.so.1")
    return folder


@pytest.fixture
def ask(driver: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., DeviceQuery]]:
    """Ask the driver made here: `ask(devices, visible=..., INIT=...)`."""

    def asked(*devices: str, visible: str | None = None, **stub: int) -> DeviceQuery:
        monkeypatch.setenv("STUB_DEVICES", ";".join(devices))
        for name, value in stub.items():
            monkeypatch.setenv(f"STUB_{name}", str(value))
        for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        visible_gpus.query_with.cache_clear()
        return visible_devices()

    yield asked
    visible_gpus.query_with.cache_clear()


def test_a_gpu(ask: Callable[..., DeviceQuery]) -> None:
    query = ask(H200)
    assert (query.error, query.fix, query.driver) == ("", "", 13000)
    (gpu,) = query.devices
    assert (gpu.ordinal, gpu.name, gpu.capability, gpu.sm_count) == (0, "NVIDIA H200", 90, 132)
    assert gpu.uuid == "GPU-03111111-1111-1111-1111-111111111111"
    code = "from aot_tune.bench.devices.cuda import FAMILY; print(FAMILY.unit_here())"  # as a worker on it
    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT).strip() == gpu.uuid
    assert (gpu.l2_bytes, gpu.memory_bytes, gpu.shared_bytes) == (50 << 20, 143771 << 20, 232448)
    assert gpu.compute_mode == "default"
    assert [t.name for t in NvccToolchain(dict(os.environ)).native()] == ["cuda-sm_90", "cuda-sm_90a"]
    assert [d.name for d in ask("A|90|0|3", "B|90|0|4", "C|90|0|5", visible="2,0").devices] == ["C", "A"]


def test_settings_of_a_board_that_are_not_the_usual_ones_make_another_device(ask: Callable[..., DeviceQuery]) -> None:
    digests = set()
    for watts, usual, old, settings in (
        (0, 700, 0, {}),
        (700, 700, 1, {}),
        (650, 0, 1, {}),
        (650, 700, 1, {"power_watts": 650}),
        (700, 700, 0, {"memory_mhz": 2619}),
    ):
        query = ask(H200, POWER=watts, USUAL=usual, OLD=old)
        assert query.devices[0].settings == settings
        (device,) = FAMILY.devices(1)
        assert device.identity.items() >= settings.items()
        digests.add(msgspec.structs.replace(device, identity={**device.identity, "driver": ""}).digest)
    assert len(digests) == 3


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
    monkeypatch.setattr(visible_gpus, "ANSWER_SECONDS", 0.5)
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
