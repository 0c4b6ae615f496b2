"""What is no C++ of ours in a CPU's library: the CBLAS of the process, and a backend of another package, Halide."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
from cuda_project import Made, build
from environments import ROOT, run

EXAMPLE = ROOT / "examples" / "halide_backend"
CUT = """
import dataclasses

from aot_tune.spec import problem

_BIAS = {"present": ["bias"], "attributes": {"activation": "relu"}}
operator = dataclasses.replace(
    operator,
    dtypes={"T": ("f32",)},
    intermediates="",
    baselines=operator.baselines[:1],
    kernels=tuple(
        dataclasses.replace(k, dtypes={}) for k in operator.kernels if k.name == "generic" or k.backend == "cblas"
    ),
    workload={"cpu": (problem(M=96, N=256, K=512), problem(M=96, N=256, K=512, **_BIAS)), "cuda": ()},
)
"""
CALLS = """
import os
os.environ |= dict(OPENBLAS_NUM_THREADS="{threads}", OMP_NUM_THREADS="1")
import numpy, ops
a, b, bias = (numpy.ones(s, "f4") for s in ((96, 512), (512, 256), 256))
for more in dict(), dict(bias=bias, activation="relu"):
    threads = os.listdir("/proc/self/task")
    told, value = ops.explain("gemm", a, b, **more), ops.gemm(a, b, **more)[7, 9]
    assert os.listdir("/proc/self/task") == threads
    print(told["kernel"], float(value), told.get("note", told["rejected"]))
"""
PROGRAM = r"""
#include <stdio.h>
#include <string.h>
#include <my_ops.h>
#include <aot_tune/tensor.h>
static float a[96 * 512] = {2}, b[512 * 256] = {3}, c[96 * 256];
int main(void) {
  int64_t m[2] = {96, 512}, n[2] = {512, 256}, o[2] = {96, 256};
  DLTensor x = aot_tune_tensor(a, AOT_TUNE_F32, aot_tune_cpu(), 2, m, NULL);
  DLTensor y = aot_tune_tensor(b, AOT_TUNE_F32, aot_tune_cpu(), 2, n, NULL);
  DLTensor z = aot_tune_tensor(c, AOT_TUNE_F32, aot_tune_cpu(), 2, o, NULL);
  char text[4096] = "";
  mine_gemm_explain(&x, &y, NULL, NULL, &z, 0, 0, NULL, text, sizeof text);
  int status = mine_gemm(&x, &y, NULL, NULL, &z, 0, 0, NULL);
  printf("%d %g\n%s", status, c[0], text);
  FILE* maps = fopen("/proc/self/maps", "r");
  for (char line[4096]; fgets(line, sizeof line, maps);)
    if (strstr(line, "blas")) puts(line);
  return 0;
}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """gemm with no kernels of ours but the generic one, and the operator of the example, where there is Halide."""
    folder = tmp_path_factory.mktemp("backends")
    for name in ("common", "gemm"):
        shutil.copytree(ROOT / "templates" / name, folder / "templates" / name)
    path = folder / "templates" / "gemm" / "operator.py"
    path.write_text(path.read_text() + CUT)
    operators = ["gemm"]
    if importlib.util.find_spec("halide") is not None:
        shutil.copytree(EXAMPLE / "blur" / "templates" / "blur", folder / "templates" / "blur")
        shutil.copytree(EXAMPLE / "halide_backend", folder / "site" / "halide_backend")
        operators.append("blur")
    info = folder / "site" / "halide_backend-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: halide_backend\nVersion: 1.0\n")
    (_, points) = (EXAMPLE / "pyproject.toml").read_text().split("[project.entry-points.")
    (info / "entry_points.txt").write_text("[" + points.replace('"', ""))
    options = {"MODE": "tune", "TARGETS": "native", "SURVEY": "0", "SANITIZE": "off", "THREADS": "1"}
    place = str(folder / "site")
    return build(folder / "project", templates=[folder / "templates"], operators=operators, first=place, **options)


def test_a_cblas_wins_unless_it_is_beaten(made: Made) -> None:
    told = next(o for o in made.report.operators if o.operator == "gemm")
    assert len(told.problems) == 2
    for row in told.problems:  # beside it there is only a kernel that nobody wrote for speed
        assert row.winner.rpartition("_")[0] == ("cblas_then_epilogue" if "bias" in row.problem else "cblas")
        assert row.remark.startswith("OpenBLAS 0.")
        assert row.paired is not None


def test_it_serves_where_it_has_no_threads_of_its_own(made: Made) -> None:
    said = made.run(CALLS.format(threads=1)).splitlines()
    assert [line.partition(" 0.")[0] for line in said] == ["cblas 512.0 OpenBLAS", "cblas_then_epilogue 513.0 OpenBLAS"]
    for line, value in zip(made.run(CALLS.format(threads=2)).splitlines(), ("512.0", "513.0"), strict=True):
        assert line.startswith(f"generic {value} ")
        assert "the CBLAS has 2 threads of its own: OPENBLAS_NUM_THREADS=1 lets it serve" in line


def test_none_is_loaded_for_a_call(made: Made, tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(PROGRAM)
    includes = [f"-I{made.folder / 'aot_tune/my_ops'}", f"-I{ROOT / 'aot_tune/runtime/include'}"]
    library = [f"-L{made.folder}", "-lmy_ops", f"-Wl,-rpath,{made.folder}"]
    run(["cc", *includes, tmp_path / "main.c", "-o", tmp_path / "main", *library])
    said = run([tmp_path / "main"])
    assert said.startswith("0 6\n")
    assert "no CBLAS is loaded in this process" in said
    assert "generic" in said
    assert "blas" not in said.split("variant:")[1].lower()


BLUR = """
import numpy, ops
x = numpy.random.default_rng(1).random((37, 130), "f4")
wanted = sum(x[i : i + 35, j : j + 128] for i in range(3) for j in range(3)) / 9
numpy.testing.assert_allclose(ops.blur(x), wanted, rtol=1e-5)
print(ops.explain("blur", x)["kernel"])
"""


def test_halide_is_a_backend(made: Made) -> None:
    """It is built, verified, measured and linked, and part of what identifies the library."""
    pytest.importorskip("halide")
    told = next(o for o in made.report.operators if o.operator == "blur")
    assert told.statuses == {"ok": 3}
    assert {row.winner.rpartition("_")[0] for row in told.problems} == {"halide"}
    assert "halide_backend 1.0" in made.manifest["tools"]["halide.plug-in"]
    assert made.run(BLUR) == "halide\n"
