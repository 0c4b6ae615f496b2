"""Which nvcc is found, and what is said when it is missing, old or incomplete. Scripts answer as nvcc does."""

from pathlib import Path

import pytest
from processes import program

from aot_tune.compile import target_by_name
from aot_tune.compile.device_targets import best_targets, fits
from aot_tune.compile.nvcc import NvccToolchain
from aot_tune.compile.toolkit import find_compute_sanitizer, find_nvcc
from aot_tune.support.errors import ToolchainError

PATH = "/usr/local/bin:/usr/bin:/bin"
NOWHERE = Path("/nowhere")


def toolkit(
    top: Path, version: str = "13.0.88", known: str = "sm_80 sm_86 sm_89 sm_90 sm_100 sm_120", without: str = ""
) -> Path:
    """A toolkit whose nvcc only answers questions; returns nvcc."""
    for name in (
        "bin/nvcc",
        "bin/cudafe++",
        "bin/ptxas",
        "bin/fatbinary",
        "nvvm/bin/cicc",
        "nvvm/libdevice/libdevice.10.bc",
    ):
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")
    for name in ("include/cuda_runtime.h", "lib64/libcudart_static.a", "lib64/libcudart.so"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("")
    lines = "\n".join(f"echo {k}" for k in known.split())
    program(
        top / "bin/nvcc",
        'case "$*" in\n'
        f'*--version*) echo "Cuda compilation tools, release {version[:4]}, V{version}";;\n'
        f"*--list-gpu-code*) {lines}\n;;\n"
        f'*--dryrun*) echo "#$ _HERE_={top}/bin"; echo "#$ CICC_PATH={top}/nvvm/bin"\n'
        f'echo "#$ NVVMIR_LIBRARY_DIR={top}/nvvm/libdevice"; echo \'#$ INCLUDES="-I{top}/include"\'\n'
        f'echo \'#$ LIBRARIES=  "-L{top}/lib64/stubs" "-L{top}/lib64"\';;\n'
        "*) echo 'nvcc fatal   : this one only answers'; exit 1;;\n"
        "esac",
    )
    if without:
        (top / without).unlink()
    return top / "bin/nvcc"


def chain(environ: dict[str, str] | None = None, system: Path = NOWHERE, search: tuple[str, ...] = ()) -> NvccToolchain:
    return NvccToolchain({"PATH": "/usr/bin:/bin", **(environ or {})}, system, search)


def found(environ: dict[str, str], system: Path = NOWHERE, search: tuple[str, ...] = ()) -> str:
    return find_nvcc({"PATH": "/usr/bin:/bin", **environ}, system, search).command[0]


def why(environ: dict[str, str], system: Path = NOWHERE, search: tuple[str, ...] = ()) -> str:
    return find_nvcc({"PATH": "/usr/bin:/bin", **environ}, system, search).reason


def test_compute_sanitizer_is_found_with_the_toolkit_or_beside_nvcc(tmp_path: Path) -> None:
    home, beside = (toolkit(tmp_path / name).with_name("compute-sanitizer") for name in ("home", "beside"))
    for sanitizer in (home, beside):
        sanitizer.touch(0o755)
    environ = {"PATH": str(tmp_path), "CUDA_HOME": str(tmp_path / "home")}
    assert find_compute_sanitizer(environ) == str(home)
    environ["NVCC"] = str(beside.with_name("nvcc"))
    assert find_compute_sanitizer(environ) == str(beside)
    beside.unlink()
    assert find_compute_sanitizer(environ) == str(home)


def test_the_order_in_which_it_is_looked_for(tmp_path: Path) -> None:
    named, other, home, path, on_path, system = (
        str(toolkit(tmp_path / n)) for n in ("named", "other", "home", "path", "on_path", "system")
    )
    (tmp_path / "site/nvidia").mkdir(parents=True)
    for number in (9, 12, 13):
        toolkit(tmp_path / f"site/nvidia/cu{number}")
    environ = {
        "NVCC": named,
        "CUDACXX": other,
        "CUDA_HOME": str(tmp_path / "home"),
        "CUDA_PATH": str(tmp_path / "path"),
        "PATH": f"{tmp_path}/on_path/bin:/usr/bin:/bin",
    }
    rest = {"system": tmp_path / "system", "search": (str(tmp_path / "empty"), str(tmp_path / "site"))}
    reasons = {
        "NVCC": "NVCC names it",
        "CUDACXX": "CUDACXX names it",
        "CUDA_HOME": "the toolkit that CUDA_HOME names",
        "CUDA_PATH": "the toolkit that CUDA_PATH names",
        "PATH": "the first on PATH",
    }
    for variable, want in zip([*environ], (named, other, home, path, on_path), strict=True):
        assert found(environ, **rest) == want
        assert why(environ, **rest) == reasons[variable]
        environ[variable] = "" if variable != "PATH" else "/usr/bin:/bin"
    assert found(environ, **rest) == system
    assert why(environ, **rest).startswith("the machine's toolkit; ")
    rest["system"] = NOWHERE
    assert found(environ, **rest) == f"{tmp_path}/site/nvidia/cu13/bin/nvcc"
    assert why(environ, **rest).startswith("the wheel nvidia-cuda-nvcc; ")


def test_no_compiler_names_every_way_to_one(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="no CUDA compiler found") as caught:
        chain().identity()
    for words in ("NVCC", "CUDA_HOME", "pip install nvidia-cuda-nvcc", "AOT_TUNE_TARGETS"):
        assert words in caught.value.fix
    for name in ("NVCC", "CUDACXX"):
        with pytest.raises(ToolchainError, match=f"{name}='/nowhere/nvcc' is not a program"):
            chain({name: "/nowhere/nvcc"}).identity()


@pytest.mark.parametrize(
    ("version", "known", "target", "since"),
    [
        ("11.8.89", "sm_80 sm_86 sm_89 sm_90", "cuda-sm_90a", "12.0"),
        ("12.4.131", "sm_80 sm_86 sm_89 sm_90", "cuda-sm_100a", "12.8"),
    ],
)
def test_an_nvcc_older_than_the_target(tmp_path: Path, version: str, known: str, target: str, since: str) -> None:
    old = chain({"NVCC": str(toolkit(tmp_path, version, known))})
    for call in (old.recipe, lambda t: old.compile("", t, tmp_path / "o" / "object.o", 9)):
        with pytest.raises(ToolchainError, match=f"nvcc {version} cannot compile for {target}\n") as caught:
            call(target_by_name(target))
        assert f"CUDA {since} or later" in caught.value.fix
        assert "sm_86" in caught.value.why
    assert old.recipe(target_by_name("cuda-sm_80"))


def test_an_incomplete_toolkit_names_what_it_lacks(tmp_path: Path) -> None:
    for part, words in (
        ("bin/ptxas", "not complete: it has no ptxas"),
        ("nvvm/libdevice/libdevice.10.bc", "not complete: it has no libdevice"),
        ("include/cuda_runtime.h", r"no cuda_runtime\.h"),
    ):
        with pytest.raises(ToolchainError, match=words) as caught:
            chain({"NVCC": str(toolkit(tmp_path / Path(part).name, without=part))}).identity()
    assert "nvidia-cuda-runtime" in caught.value.fix
    with pytest.raises(ToolchainError, match=r"no libcudart_static\.a"):
        chain({"NVCC": str(toolkit(tmp_path / "b", without="lib64/libcudart_static.a"))}).link_arguments()


LEVELS: dict[int, list[str]] = {
    75: [],
    80: ["cuda-sm_80"],
    86: ["cuda-sm_86"],
    87: ["cuda-sm_86"],
    89: ["cuda-sm_89"],
    90: ["cuda-sm_90", "cuda-sm_90a"],
    100: ["cuda-sm_100", "cuda-sm_100a"],
    103: ["cuda-sm_100"],
    110: ["cuda-ptx_80"],
    120: ["cuda-sm_120", "cuda-sm_120a"],
    121: ["cuda-sm_120"],
    130: ["cuda-ptx_80"],
}


def test_the_best_targets_of_a_device() -> None:
    assert {level: [t.name for t in best_targets([level, level])] for level in LEVELS} == LEVELS


@pytest.mark.parametrize(
    ("shared", "threads", "registers", "words"),
    [
        (166912, 256, 0, ""),
        (166913, 256, 0, "166913 bytes of shared memory"),
        (0, 1024, 64, ""),
        (0, 1024, 65, "registers for a block"),
        (0, 384, 168, ""),
        (0, 416, 168, "registers for a block"),
        (0, 32, 256, "256 registers for a thread"),
        (0, 1025, 0, "1025 threads"),
        (0, 0, 0, "0 threads"),
    ],
)
def test_what_fits(shared: int, threads: int, registers: int, words: str) -> None:
    said = fits(target_by_name("cuda-sm_80"), shared, threads, registers)
    assert words in said
    assert bool(said) == bool(words)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("cuda-sm_91", "cuda-sm_90"),
        ("sm_90", "cuda-sm_90"),
        ("9.0a", "cuda-sm_90a"),
        ("8.6+PTX", "cuda-sm_86"),
        ("compute_80", "cuda-sm_80"),
        ("cuda-sm_80 cuda-sm_90a", "cuda-sm_90a"),
    ],
)
def test_names_of_other_tools_are_met_with_ours(name: str, near: str) -> None:
    with pytest.raises(ToolchainError) as caught:
        target_by_name(name)
    assert repr(name) in caught.value.what
    assert f"'{near}'" in caught.value.fix
    assert "semicolons" in caught.value.why
