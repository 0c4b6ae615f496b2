"""What the build backend asks for: nothing for CPU builds, and for GPUs only what is missing and of use."""

import sys
from pathlib import Path

import pytest
from places import ROOT
from processes import program

from aot_tune.plan import requirements
from aot_tune.plan.requirements import build_requirements, chosen, uses_cutlass

WHEELS = ["nvidia-cuda-nvcc", "nvidia-cuda-runtime", "nvidia-cuda-cccl"]
INCLUDES = "{{ prelude() }}\n#include <cutlass/cutlass.h>\n"
CUTLASS, TORCH = "nvidia-cutlass", "torch"
CUDA = {"cmake.define.AOT_TUNE_TARGETS": "cuda-sm_90a"}


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch):
    """Sets the driver's CUDA and the number of GPUs."""

    def put(driver: int, count: int) -> None:
        monkeypatch.setattr(requirements, "visible_gpus", lambda _: (driver, count))

    put(0, 0)
    return put


@pytest.fixture
def names(tmp_path: Path):
    """The names that are asked for, on a machine without nvcc unless its folder is given."""

    def asked(
        settings: dict[str, object] | None = None, nvcc: str = "", editable: bool = False, **environ: str
    ) -> list[str]:
        environ = {"PATH": "/nowhere", **environ}
        system = tmp_path / "cuda"
        if nvcc:
            program(Path(nvcc), "")
        found = build_requirements(settings, environ, tmp_path, editable=editable, system=system)
        return [r.partition(">")[0] for r in found]

    return asked


def test_a_cpu_build_asks_for_nothing(gpus, names, tmp_path: Path) -> None:
    assert names() == []
    for mode in ("auto", "tune", "generic", "replay"):
        assert names(AOT_TUNE_MODE=mode) == []
        gpus(13000, 1)
        assert names({"cmake.define.AOT_TUNE_TARGETS": "cpu-x86-64-v3;cpu-x86-64"}, AOT_TUNE_MODE=mode) == []
        gpus(0, 0)


def test_triton_where_a_kernel_of_the_project_is_written_in_it(gpus, names, tmp_path: Path) -> None:
    folder = tmp_path / "templates" / "softmax"
    folder.mkdir(parents=True)
    (folder / "operator.py").write_text('Kernel("rows", "softmax/rows.cu.j2", backend="nvcc")\n')
    assert "triton" not in names(CUDA)
    (folder / "kernels.py").write_text('Kernel("t", backend="triton", triton=TritonFunction("k.py:k", {}, (1,)))\n')
    assert names(CUDA) == names(CUDA, AOT_TUNE_MODE="replay") == [*WHEELS, CUTLASS, "triton"]
    assert names(CUDA, AOT_TUNE_MODE="replay-or-generic") == [*WHEELS, CUTLASS, "triton"]
    assert names() == []
    for mode in ("auto", "replay", "generic"):
        assert names(AOT_TUNE_TARGETS="cpu-x86-64;hip-gfx942", AOT_TUNE_MODE=mode) == ["triton"]  # no CUDA for AMD
    gpus(13000, 1)
    assert names() == [*WHEELS, CUTLASS, "triton", TORCH]
    assert names(AOT_TUNE_TARGETS="hip-gfx90a") == ["triton"]
    assert names(AOT_TUNE_TARGETS="hip-gfx90a;native") == [*WHEELS, CUTLASS, "triton", TORCH]
    (tmp_path / "softmax.jsonl").write_text('{"target":"hip-gfx942"}\n')
    assert names(AOT_TUNE_MODE="replay") == names(AOT_TUNE_MODE="replay-or-generic") == ["triton"]


def test_a_machine_that_has_them(gpus, names, tmp_path: Path) -> None:
    gpus(13000, 1)
    assert names(NVCC="/any/nvcc", CUTLASS_PATH="/any") == [TORCH]
    assert names(CUDACXX="nvcc") == [CUTLASS, TORCH]
    assert names(nvcc=f"{tmp_path}/home/bin/nvcc", CUDA_HOME=f"{tmp_path}/home") == [CUTLASS, TORCH]
    assert names(nvcc=f"{tmp_path}/path/nvcc", PATH=f"/nowhere:{tmp_path}/path") == [CUTLASS, TORCH]
    assert names(CUDA_PATH=str(tmp_path)) == [*WHEELS, CUTLASS, TORCH]
    assert names(nvcc=f"{tmp_path}/cuda/bin/nvcc") == [CUTLASS, TORCH]


def test_replay_looks_into_the_database(gpus, names, tmp_path: Path) -> None:
    folder = tmp_path / "tuning/nvidia-h200"
    folder.mkdir(parents=True)
    (folder / "gemm.jsonl").write_text('{"target":"cpu-x86-64-v4"}\n')
    assert names(AOT_TUNE_MODE="replay") == []
    (folder / "gemm.jsonl").write_text('{"target":"cuda-sm_90a"}\n')
    assert names(AOT_TUNE_MODE="replay") == [*WHEELS, CUTLASS]
    assert names({"cmake.define.AOT_TUNE_TARGETS": "cpu-x86-64"}, AOT_TUNE_MODE="replay") == []
    assert names() == []


def test_where_an_option_is_chosen(tmp_path: Path) -> None:
    name = "AOT_TUNE_TARGETS"
    environ = {name: "from-environment"}

    def value(settings: dict[str, object] | None = None) -> str:
        return chosen(name, settings, environ, tmp_path)

    assert value() == "from-environment"
    project = tmp_path / "pyproject.toml"
    project.write_text('[tool.scikit-build.cmake.define]\nAOT_TUNE_TARGETS = ["a", "b"]\n')
    assert value() == "a;b"
    assert value({"skbuild.cmake.define.AOT_TUNE_TARGETS": "f"}) == "f"
    assert value({"cmake.define.AOT_TUNE_TARGETS": ["f", "g"]}) == "g"
    environ["SKBUILD_CMAKE_DEFINE"] = "X=1;AOT_TUNE_TARGETS=e"
    assert value({"cmake.define.AOT_TUNE_TARGETS": "f"}) == "e"
    assert value({"cmake.args": "-DX=1;-DAOT_TUNE_TARGETS=h"}) == "h"
    assert value({"skbuild.cmake.args": ["-DAOT_TUNE_TARGETS=h", "-DAOT_TUNE_TARGETS=i", "-GNinja"]}) == "i"
    environ["SKBUILD_CMAKE_ARGS"] = "-DX=1;-DAOT_TUNE_TARGETS=j"
    assert value({"cmake.args": "-DAOT_TUNE_TARGETS=h"}) == "j"
    environ["CMAKE_ARGS"] = "-DX=1 -DAOT_TUNE_TARGETS:STRING='c;d' -DY=2"
    assert value({"cmake.args": "-DAOT_TUNE_TARGETS=h", "cmake.define.AOT_TUNE_TARGETS": "f"}) == "c;d"


def test_the_backend_imports_nothing_that_is_not_there_yet() -> None:
    import subprocess

    code = (
        "import sys\n"
        "class No:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('msgspec', 'numpy', 'jinja2', 'filelock', 'elftools', 'torch'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, No())\n"
        "import aot_tune.plan.requirements\n"
    )
    subprocess.check_call([sys.executable, "-c", code], cwd=ROOT)


@pytest.fixture
def bundled(tmp_path: Path) -> Path:
    """Bundled templates of which one operator's kernel includes CUTLASS."""
    root = tmp_path / "bundled"
    add(root, "gemm", INCLUDES)
    add(root, "softmax", "{{ prelude() }}\n")
    return root


def add(root: Path, operator: str, text: str, name: str = "kernel.cu.j2") -> None:
    folder = root / operator
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "operator.py").write_text("")
    (folder / name).write_text(text)


def library(project: Path, *arguments: str, name: str = "CMakeLists.txt") -> Path:
    project.mkdir(exist_ok=True)
    (project / name).write_text(f"project(p)\naot_tune_add_library(\n  ops {' '.join(arguments)} # a comment (\n)\n")
    return project


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("", True),
        ("OPERATORS softmax", False),
        ("OPERATORS gemm softmax MODULE ops", True),
        ('OPERATORS "softmax" TEMPLATES bundled', False),
        ("TEMPLATES templates", False),
        ('TEMPLATES "${CMAKE_CURRENT_SOURCE_DIR}/templates"', False),
        ("TEMPLATES templates bundled", True),
        ("TEMPLATES templates bundled OPERATORS softmax", False),
        ("TEMPLATES ${ROOTS}", True),
        ("OPERATORS ${ALL}", True),
        ("${ARGUMENTS} OPERATORS softmax", True),
    ],
)
def test_of_bundled_operators(tmp_path: Path, bundled: Path, arguments: str, wanted: bool) -> None:
    project = library(tmp_path / "project", arguments)
    add(project / "templates", "own", "{{ prelude() }}\n// like cutlass/gemm\n")
    assert uses_cutlass(project, bundled) == wanted
    takes_bundled = "TEMPLATES" not in arguments or "bundled" in arguments or "ROOTS" in arguments
    assert uses_cutlass(project, bundled, named="*") == takes_bundled
    assert not uses_cutlass(project, bundled, named="softmax")


@pytest.mark.parametrize(
    ("text", "name", "wanted"),
    [
        (INCLUDES, "kernel.cu.j2", True),
        ('#  include "cute/tensor.hpp"\n', "shared.cuh", True),
        ("// #include <cutlass/cutlass.h>\n", "kernel.cu.j2", False),
        (INCLUDES, "notes.md", False),
    ],
)
def test_of_a_projects_own_kernels(tmp_path: Path, bundled: Path, text: str, name: str, wanted: bool) -> None:
    project = library(tmp_path / "project", "TEMPLATES templates")
    add(project / "templates", "own", text, name)
    assert uses_cutlass(project, bundled) == wanted
    library(project, "TEMPLATES templates OPERATORS another")
    assert not uses_cutlass(project, bundled)
    (project / "templates" / "common").mkdir()  # no operator's own: any of them may include it
    (project / "templates" / "common" / name).write_text(text)
    assert uses_cutlass(project, bundled) == wanted
