"""Two ordinary Triton kernels become a library, without a GPU: by replay of a record, called through a stand-in driver.

The record's times are made up: code with the JIT's assumptions is twice as fast as code without.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_project import FAKE, Made, build, device_of
from environments import ROOT, environment, run

from aot_tune.bench import Measurement, Policy, policy_for
from aot_tune.compile import ObjectCache, compile_all, target_by_name, toolchain_for
from aot_tune.database import make_database, operator_digest, save_database
from aot_tune.errors import ToolchainError
from aot_tune.inspection import inspect_functions, with_inspections
from aot_tune.library import load_operators
from aot_tune.link.archive import read_archive
from aot_tune.link.elf import Image, device_code_digest
from aot_tune.render import Rendered, Renderer, candidates_for, requirements, resolved
from aot_tune.spec import Operator, Target, all_of

EXAMPLE = ROOT / "examples" / "triton_package"
TARGET = "cuda-sm_90a"


def _why_not() -> str:
    try:
        toolchain_for("triton").identity()
    except ToolchainError as error:
        return f"no Triton: {error.what}"
    return ""


pytestmark = pytest.mark.skipif(bool(_why_not()), reason=_why_not())


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The author's folder of operators and kernels."""
    folder = tmp_path_factory.mktemp("author") / "templates"
    shutil.copytree(EXAMPLE / "templates", folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def _rendered(operator: Operator, renderer: Renderer, target: Target) -> list[Rendered]:
    found: dict[str, Rendered] = {}
    for kernel in operator.kernels:
        one = resolved(kernel, target.name)
        for config in () if kernel.generic else one.configs(target.facts):
            for candidate in candidates_for(operator, one, config, target):
                if candidate.dtypes == {"T": "bf16"}:
                    found[candidate.id] = renderer.render(operator, candidate, target)
    return list(found.values())


def _record(templates: Path, folder: Path) -> None:
    target, roots = target_by_name(TARGET), [templates]
    environ = {**os.environ, "AOT_TUNE_TEMPLATE_ROOTS": str(templates)}
    chain = toolchain_for("triton", environ)
    operators = {name: op for name, (_, op) in load_operators(roots).items()}
    known, note = inspect_functions(operators, [target], ["cpu", "cuda"], roots, environ)
    assert note == ""
    device, policy = device_of(target), policy_for("cuda", Policy())
    for name, plain in operators.items():
        operator = with_inspections(plain, known, ["cpu", "cuda"])
        rendered = _rendered(operator, Renderer(roots), target)
        cache = ObjectCache(None, chain)
        compiled = compile_all(cache, rendered, 2)
        measurements = [
            Measurement(
                candidate=r.candidate.id,
                object=compiled[r.candidate.id].digest,
                problem=p,
                device=device.digest,
                policy=policy.digest,
                status="ok",
                screen=(_time(r),) * 4,
                error=0.1,
                bitwise=True,
            )
            for r in rendered
            for p in operator.workload_for("cuda")
            if all_of(requirements(operator, r.candidate), operator.facts(p))
        ]
        save_database(
            folder,
            make_database(
                operator=name,
                contract=operator_digest(operator),
                device=device,
                policy=policy,
                toolchains={"triton": chain.identity()},
                baselines={},
                compiled=[(r, compiled[r.candidate.id]) for r in rendered],
                measurements=measurements,
            ),
        )
        cache.close()


def _time(rendered: Rendered) -> float:
    candidate = rendered.candidate
    special = any(name.endswith("%16") for name in candidate.pins)
    return (1000.0 if special else 2000.0) + 100 * int(candidate.config.get("ROWS", 2) != 2)


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory, templates: Path) -> Made:
    """The author's library, by replay."""
    folder = tmp_path_factory.mktemp("replayed")
    _record(templates, folder / "tuning")
    return build(
        folder / "project",
        templates=(templates,),
        operators=("rms_norm", "swiglu"),
        database=folder / "tuning",
        MODE="replay",
        STRICT="1",
    )


def test_it_is_a_library_of_cubins_without_a_toolkit(replayed: Made) -> None:
    assert not [n for n in replayed.needed() if n.startswith(("libcuda", "libcudart", "libtriton", "libpython"))]
    for operator in ("rms_norm", "swiglu"):
        found = replayed.variants(operator, TARGET)
        assert found
        assert all(v["device"] and not v["rebuilt"] for v in found.values())
    assert replayed.variants("rms_norm", "cuda-ptx_80")
    members = {m.name: m for m in read_archive((replayed.folder / "aot_tune" / "my_ops" / "variants.a").read_bytes())}
    for variant in found.values():
        assert device_code_digest(members[f"{variant['symbol']}.o"].data) == variant["device"]
    data = replayed.library.read_bytes()
    assert b".target sm_80" in data
    assert str(ROOT).encode() not in data
    assert Image(data)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stand-in for libcuda.so.1."""
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("triton_driver.cpp")
    flags = ["-std=c++17", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["g++", *flags, source, "-o", folder / "libcuda.so.1"], check=True)
    return folder


CALLS = """
stub = ctypes.CDLL("libcuda.so.1")
stub.stub_log.restype = ctypes.c_char_p

def bf16(rows, columns, pitch=None, offset=0):
    pitch = pitch or columns
    whole = np.zeros(rows * pitch + offset + 64, np.float16)
    start = -whole.ctypes.data % 64 // 2 + offset
    array = whole[start:start + rows * pitch].reshape(rows, pitch)[:, :columns]
    return AsBf16(array)

class AsBf16(OnGpu):
    def __dlpack__(self, **_):
        capsule = super().__dlpack__()
        place = pointer(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)
        ctypes.c_uint8.from_address(place + 12).value = 4
        return capsule

def launched(x, w, out):
    before = len(stub.stub_log())
    ops.rms_norm(x, w, eps=1e-5, out=out)
    print(stub.stub_log()[before:].decode().strip().replace("\\n", "; "))

def case(rows, columns, **given):
    weight = bf16(1, columns)
    flat = AsBf16(weight.array[0])
    launched(bf16(rows, columns, **given), flat, bf16(rows, columns))
case(4096, 4096)
case(4096, 4096)
case(4096, 4096, offset=1)
case(4096, 4096, pitch=4097)
case(63, 4096)
case(7, 100)
"""


def test_calls_get_the_code_that_is_right_for_them(replayed: Made, driver: Path) -> None:
    path = os.pathsep.join([str(replayed.folder), *(p for p in sys.path if p)])
    env = environment(PYTHONPATH=path, LD_LIBRARY_PATH=str(driver))
    said = run([sys.executable, "-c", FAKE + CALLS], env=env).strip().splitlines()
    two, loaded = "rms_norm 2048,1,1 x 256", "load cubin; "
    assert said[0] == loaded + two  # what the JIT would assume holds
    assert said[1] == two  # loaded once
    assert said[2] == loaded + two  # an address that 16 does not divide: other code of the same config
    assert said[3] == two  # a stride that 16 does not divide
    assert said[4] == "rms_norm 32,1,1 x 256"  # 63 rows, two a block
    assert said[5].startswith("load ptx; rms_norm 7,1,1")  # no BLOCK was compiled for 100 columns
