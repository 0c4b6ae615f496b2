"""Libraries for 64-bit Arm by a cross compiler: built and not measured. They are not run here."""

import shutil
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from project import Project

CXX = "aarch64-linux-gnu-g++"
pytestmark = pytest.mark.skipif(not shutil.which(CXX), reason=f"no {CXX}: Debian's package g++-aarch64-linux-gnu")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project.make(tmp_path_factory.mktemp("arm"), AOT_TUNE_TARGETS="cpu-aarch64", CXX=CXX)


def machine(path: Path) -> str:
    with path.open("rb") as file:
        return str(ELFFile(file)["e_machine"])


def test_a_library_has_its_generic_variant_and_says_that_nothing_was_measured(project: Project) -> None:
    said = project.cmake() + project.make_all()
    assert "note: aarch64 targets: nothing is measured on such CPUs, and no variant is verified" in said
    assert "twice: NOT TUNED for cpu-aarch64, the generic variant serves" in said
    assert "1 variant for cpu-aarch64 not verified inside the library: no such device here" in said
    assert machine(project.folder / "cmake" / "libtiny.so") == "EM_AARCH64"


def test_to_tune_and_to_replay_without_records_are_refused(project: Project) -> None:
    assert "nothing is measured on aarch64" in project.cmake(build="tune", status=1, AOT_TUNE_MODE="tune")
    assert "the database is empty" in project.cmake(build="replay", status=1, AOT_TUNE_MODE="replay")


def test_every_candidate_compiles_with_the_compiler_that_is_found(project: Project) -> None:
    said = project.ask("compile", "--templates", project.templates, "--target", "cpu-aarch64", CXX="")
    assert "2 kernels, 6 candidates: 6 fit, 0 fail" in said
