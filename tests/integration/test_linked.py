"""The check after the link: each variant is called through the library itself, and what is wrong ends the build."""

import json
import re
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from project import Project

from aot_tune.link.manifest import check_import
from aot_tune.pipeline.shipping.verify_linked import verify_linked_library
from aot_tune.support.errors import BuildError, ManifestError

CHOICE = """
using Call = Own::Call;
}
}
template <>
int32_t forced(const CallOf<operator_twice::Own>&, int* variant) { return *variant = 0; }
namespace {
namespace operator_twice {
"""
CRASH = "+[](const DLTensor*, const DLTensor*, void*, size_t, void*) -> int32_t { __builtin_trap(); }"
FAULTS = {
    "stride": (
        "int32_t Own::check_legal(const Call& c) {\n",
        "int32_t Own::check_legal(const Call& c) {\n  c.tensor(0)->strides[0] = 1;\n",
        ("generic",),  # the other one has no other stride than 1
        r"wrong-result: y\[\d+\]: got .* \(problem 'N=\d+ x:\(2\)",
    ),
    "crash": (
        "_launch, nullptr",
        f"_launch == nullptr ? nullptr : {CRASH}, nullptr",
        ("generic", "loop"),
        "crashed: SIGILL in a run of problem '",
    ),
    "choice": (
        "using Call = Own::Call;\n",
        CHOICE,
        ("loop",),
        r"failed: tiny_twice answers with generic_\w+, not with loop_\w+",
    ),
}
"""What is changed in the generated source, which variants' kernels it spoils, and what is said of them."""
OTHER = """
#include <cstdint>
#include <cstddef>
struct DLTensor { float* data; int32_t device[2], ndim, dtype; int64_t *shape, *strides; uint64_t byte_offset; };
extern "C" int32_t SYMBOL_workspace(const DLTensor*, const DLTensor*, size_t* size) { *size = 0; return 0; }
extern "C" int32_t SYMBOL_launch(const DLTensor* x, const DLTensor* y, void*, size_t, void*) {
  for (int64_t i = 0; i < x->shape[0]; ++i) y->data[i] = 3 * x->data[i];
  return 0;
}
"""


@pytest.fixture(scope="module")
def project(tuned_once: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Its parameters leave one variant beside the generic one."""
    made = tuned_once.copied(tmp_path_factory.mktemp("linked") / "project")
    made.change("problem(N=20000), problem(N=60000)", "problem(N=20000),")
    made.change("(1, 4, 16, 64, 256)", "(1, 64)")
    made.cmake()
    said = made.make_all()
    assert re.search(r"libtiny\.so\.1: 2 variants verified inside the library in \d", said), said
    return made


def generated(project: Project) -> Path:
    return project.folder / "cmake" / "aot_tune" / "tiny"


@pytest.fixture
def dispatch(project: Project) -> Iterator[Path]:
    """The generated source, as it was again afterwards."""
    path = generated(project) / "dispatch.cpp"
    before = path.read_text()
    yield path
    path.write_text(before)


@pytest.mark.parametrize("fault", FAULTS)
def test_dispatch_that_hands_on_something_else_ends_the_build(project: Project, dispatch: Path, fault: str) -> None:
    old, new, kernels, pattern = FAULTS[fault]
    text = dispatch.read_text()
    assert old in text
    project.make_all()  # after a build that ended, files are made again
    dispatch.write_text(text.replace(old, new))
    said = project.make_all(status=1)
    assert f"libtiny.so.1: {len(kernels)} of 2 variants fail inside the library" in said
    assert {line[1] for line in re.finditer(r"twice: (\w+)_[0-9a-f]{8} \(.*\) on 'N=.*': ", said)} == set(kernels)
    assert re.search(pattern, said), said
    assert "fix: build again from an empty build folder" in said
    command = re.search(r"aot-tune (check-library --directory \S+ --library \S+)", said)
    assert command is not None
    (project.folder / "cmake" / "libtiny.so.1").unlink(missing_ok=True)


def test_an_object_that_was_replaced_is_found_by_its_digest_and_by_what_it_does(project: Project) -> None:
    project.make_all()  # after a build that ended, files are made again
    archive = generated(project) / "variants.a"
    before = archive.read_bytes()
    variant = project.manifest("cmake/aot_tune/tiny")["operators"][0]["variants"][1]
    (project.folder / f"{variant['symbol']}.cpp").write_text(OTHER.replace("SYMBOL", variant["symbol"]))
    compiled = ["g++", "-c", "-fPIC", "-fvisibility=hidden", f"{variant['symbol']}.cpp"]
    subprocess.run(compiled, cwd=project.folder, check=True)
    subprocess.run(["ar", "r", archive, f"{variant['symbol']}.o"], cwd=project.folder, check=True)
    try:
        assert f"variant {variant['name']!r}: its object is not the one that was measured" in project.make_all(status=1)
        with pytest.raises(BuildError, match=r"1 of 2 variants fail") as caught:
            verify_linked_library(generated(project), project.folder / "cmake" / "libtiny.so")
    finally:
        archive.write_bytes(before)
    assert re.search(rf"twice: {variant['name']} .*: wrong-result: y\[\d+\]: got ", caught.value.why)


SETS = """
#include <xmmintrin.h>
static void set(void) { _mm_setcsr(_mm_getcsr() | 0x8000); }
__attribute__((constructor)) static void start(void) { set(); }
"""
MODULE = """
#include <Python.h>
static struct PyModuleDef ops = {PyModuleDef_HEAD_INIT, "ops", NULL, -1, NULL, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_ops(void) { return PyModule_Create(&ops); }
"""


def test_row_62_what_sets_the_floating_point_unit_at_its_start_is_refused(project: Project, tmp_path: Path) -> None:
    """An object in the library, and a library that a module needs, which does so in a function of its own."""
    (tmp_path / "sets.c").write_text(SETS)
    (tmp_path / "ops.c").write_text(MODULE)
    lists = project.folder / "CMakeLists.txt"
    before = lists.read_text()
    subprocess.run(["gcc", "-c", "-O2", "-fPIC", "sets.c"], cwd=tmp_path, check=True)
    lists.write_text(f"{before}target_link_libraries(tiny PRIVATE {tmp_path}/sets.o)\n")
    assert "libtiny.so.1 changes the floating-point unit when it is loaded" in project.make_all(status=1)
    lists.write_text(before)
    document = {**json.loads((generated(project) / "manifest.json").read_bytes()), "module": "ops"}
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    for source, raised in (
        ("", nullcontext()),
        (SETS, pytest.raises(ManifestError, match=r"ops\.so: importing it, or a library that it needs, cha")),
    ):
        (tmp_path / "sets.c").write_text(source)
        subprocess.run(["gcc", "-shared", "-fPIC", "-O0", "sets.c", "-o", "libsets.so"], cwd=tmp_path, check=True)
        argv = ["gcc", "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", "ops.c", "-o", "ops.so"]
        argv += [f"-Wl,--no-as-needed,-rpath,{tmp_path}", "-L.", "-lsets"]
        subprocess.run(argv, cwd=tmp_path, check=True)
        with raised:
            check_import(*(tmp_path / name for name in ("libsets.so", "ops.so", "manifest.json")))
