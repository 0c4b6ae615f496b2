"""C and C++ programs built against the installed wheel with nothing but CMake and a compiler."""

import re
import shutil
import sys
from pathlib import Path

import pytest
from environments import ROOT, Compiler, Venv, copy_source, environment, front_end, obeying_modes, run

from aot_tune.link.elf import SharedLibrary

CONSUMER = ROOT / "examples" / "cpp_consumer"
CONSUMERS = [CONSUMER, ROOT / "examples" / "c_consumer"]


def without_python(tmp_path: Path) -> dict[str, str]:
    """An environment whose path holds CMake, a generator and a compiler, and no Python."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("cmake", "ninja", "g++", "gcc", "c++", "cc", "as", "ld", "ar", "ranlib", "nm", "pkg-config"):
        found = shutil.which(name)
        if found:
            (tools / name).symlink_to(found)
    return {"PATH": str(tools), "HOME": str(tmp_path)}


def check_consumer(program: Path) -> None:
    said = run([program], env={})
    assert ("greatest error" if "cpp" in str(program) else "\n0.2500 0.2500 0.2500 0.2500\n0.8700 0.0433 ") in said
    assert "variant" in said
    assert f"refused: {'gemm' if 'cpp' in str(program) else 'softmax'}: " in said


@pytest.mark.parametrize(("how", "example"), [("aot_tune_DIR", CONSUMERS[0]), ("CMAKE_PREFIX_PATH", CONSUMERS[1])])
def test_the_consumer_examples(venv: Venv, tmp_path: Path, how: str, example: Path) -> None:
    """`aot_tune_DIR` points into site-packages; an environment's root on the prefix path leads there too."""
    env = without_python(tmp_path)
    place = venv.run("aot-tune", "--cmake-dir").strip() if how == "aot_tune_DIR" else venv.folder
    build = tmp_path / example.name
    cmake = ["cmake", "-G", "Ninja", "-S", example, "-B", build, f"-D{how}={place}", "-DCMAKE_BUILD_TYPE=Release"]
    run(obeying_modes(cmake), env=env)
    run(["cmake", "--build", build], env=env)
    check_consumer(build / "consumer")


def test_a_consumer_example_without_cmake(venv: Venv, tmp_path: Path) -> None:
    tool = shutil.which("pkg-config")
    if tool is None or shutil.which("make") is None:
        pytest.skip("there is no pkg-config or no make on this machine")
    folder = tmp_path / CONSUMER.name
    shutil.copytree(CONSUMER, folder)
    place = Path(venv.run("aot-tune", "--include-dir").strip()).parent / "lib" / "pkgconfig"
    env = environment(PKG_CONFIG_PATH=str(place))
    run(["make", "-C", folder], env=env)
    check_consumer(folder / "consumer")
    assert run([tool, "--modversion", "aot_tune_ops"], env=env) == project_version() + "\n"


def project_version() -> str:
    (found,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    return str(found)


def test_an_environment_that_is_active_is_found_by_itself_and_another_version_is_not(
    venv: Venv, tmp_path: Path
) -> None:
    env = without_python(tmp_path)
    env["PATH"] = f"{venv.folder / 'bin'}:{env['PATH']}"
    run(["cmake", "-G", "Ninja", "-S", CONSUMER, "-B", tmp_path / "active"], env=env)
    lists = "cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES CXX)\nfind_package(aot_tune 99 REQUIRED)\n"
    (tmp_path / "CMakeLists.txt").write_text(lists)
    argv = ["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={venv.folder}"]
    said = run(argv, env=environment(), status=1)
    assert "aot_tune" in said
    assert "99" in said


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, compiler: Compiler) -> Path:
    """An operator, without pip, as C++ developers build and install; `cmake --install` may hold links."""
    folder = tmp_path_factory.mktemp("installed")
    source = copy_source(folder / "source", operators=("softmax",))
    env = environment(CXX=str(compiler.path), AOT_TUNE_MODE="generic", AOT_TUNE_CACHE_DIR=str(folder / "cache"))
    argv = ["cmake", "-G", "Ninja", "-S", source, "-B", folder / "build", f"-DPython_EXECUTABLE={front_end()}"]
    run([*argv, f"-DCMAKE_INSTALL_PREFIX={folder / 'prefix'}", "-DAOT_TUNE_TARGETS=cpu"], env=env)
    run(["cmake", "--build", folder / "build"], env=env)
    run(["cmake", "--install", folder / "build"], env=env)
    return folder / "prefix"


def test_cmake_alone_installs_a_versioned_library(installed: Path, tmp_path: Path) -> None:
    """`find_package(aot_tune 0.2)` asks for the version; programs need the library by its SONAME."""
    version = project_version()
    for name in ("libaot_tune_ops.so", "libaot_tune_ops.so.1"):
        assert (installed / "lib" / name).resolve().name == f"libaot_tune_ops.so.{version}"
    build = tmp_path / CONSUMERS[1].name
    env = without_python(tmp_path)
    run(["cmake", "-G", "Ninja", "-S", CONSUMERS[1], "-B", build, f"-DCMAKE_PREFIX_PATH={installed}"], env=env)
    run(["cmake", "--build", build], env=env)
    check_consumer(build / "consumer")
    needed = SharedLibrary((build / "consumer").read_bytes()).dynamic("DT_NEEDED")
    assert [name for name in needed if "aot_tune" in name] == ["libaot_tune_ops.so.1"]
    code = "import numpy, ops; print(numpy.from_dlpack(ops.softmax(numpy.zeros((1, 4), 'f4')))[0, 3])"
    assert run([sys.executable, "-c", code], env=environment(PYTHONPATH=str(installed))) == "0.25\n"


def test_the_stub_of_the_bundled_operators_is_of_their_module(venv: Venv, tmp_path: Path) -> None:
    package = venv.packages / "aot_tune"
    for file in ("ops.abi3.so", "ops.pyi"):
        shutil.copy(package / file, tmp_path)
    shutil.copytree(package / "lib", tmp_path / "lib")
    env = environment(MYPYPATH=str(tmp_path), PYTHONPATH=str(tmp_path))
    assert "Success" in run([sys.executable, "-m", "mypy.stubtest", "ops"], env=env)
