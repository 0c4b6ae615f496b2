"""A library of operators with all that few have, built by CMake and used from outside: in place, fragments, dims of
expressions and integers, drawn inputs, element types, calls of a CBLAS, kernels of Halide. Wrong kernels are not in it.
Operators are in the folder `odd`, and that of Halide in an example.
"""

import importlib.util
import json
import os
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from element_types import NAMES, write_operators
from environments import ROOT, run
from module_files import load_module
from project import Project

torch: Any = pytest.importorskip("torch")
OWN = ("add_rms_norm", "gated", "mixture", "paged", "product", "top")
EXAMPLE = ROOT / "examples" / "halide_backend"
HALIDE = ("blur",) if importlib.util.find_spec("halide") else ()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The library, with the module `ops`; what its build said is in `said.txt`."""
    arguments = f"bundled OPERATORS {' '.join((*OWN, *HALIDE, *NAMES))} MODULE ops"
    made = Project.make(tmp_path_factory.mktemp("odd") / "project", arguments=arguments)
    lists = made.folder / "CMakeLists.txt"
    lists.write_text(lists.read_text().replace("tiny", "odd"))  # this process may have loaded a libodd.so
    made.env |= {"AOT_TUNE_EFFORT": "quick", "AOT_TUNE_TARGETS": "native"}
    made.env["AOT_TUNE_THREADS"] = "1"  # the races of threads that wait for busy cores say nothing
    made.env["PYTHONPATH"] = os.pathsep.join((str(ROOT), install_example(made.folder / "site")))
    if HALIDE:
        shutil.copytree(EXAMPLE / "blur" / "templates" / "blur", made.templates / "blur")
    shutil.copytree(Path(__file__).with_name("odd"), made.folder, dirs_exist_ok=True)
    write_operators(made.templates)
    made.cmake()
    (made.folder / "said.txt").write_text(made.make_all())
    return made


@pytest.fixture(scope="module")
def said(project: Project) -> str:
    return (project.folder / "said.txt").read_text()


@pytest.fixture(scope="module")
def variants(project: Project) -> dict[str, list[Any]]:
    """The variants of each operator."""
    return {o["name"]: o["variants"] for o in project.manifest("cmake/aot_tune/odd")["operators"]}


@pytest.fixture(scope="module")
def module(project: Project) -> ModuleType:
    return load_module(project.folder / "cmake" / "ops.abi3.so", "ops")


def called(project: Project, code: str) -> str:
    """What a program says that calls the module, in a process of its own."""
    return run([sys.executable, "-B", "-c", code], env=project.environment(PYTHONPATH=str(project.folder / "cmake")))


def test_wrong_kernels_are_dropped_and_right_ones_are_verified_in_the_library(
    project: Project, said: str, variants: dict[str, list[Any]]
) -> None:
    report = project.report("cmake/aot_tune/odd")
    for name, words in (
        ("wrong WRONG=idle", r"(x|residual)\[\d+, \d+\]: got .* elements are wrong"),
        ("wrong WRONG=twice", r"(x|residual)\[\d+, \d+\]: got .* elements are wrong"),
        ("rows LATE=1", r"total\[\d+\]: got .*\(problem 'R=\d+ D=\d+', 'out' in the memory of 'gate'\)"),
        ("forgets_epilogue .*", "out"),
        ("forgets_fragment .*", "out"),
    ):
        assert re.search(rf"dropped {name}: wrong-result( on 2 problems)?: {words}", report), (name, report)
    gap = r"dropped wrong WRONG=gap: wrong-result( on 2 problems)?: oob: 4 bytes between the rows of 'x' were written"
    assert re.search(gap, report), report
    assert re.search(r"libodd\.so\.1: \d+ variants verified inside the library", said)
    kernels = {name: {v["kernel"] for v in some} for name, some in variants.items()}
    assert kernels["add_rms_norm"] <= {"generic", "dense", "own"}
    assert "add_rms_norm 3 of 6 (wrong-result)" in said
    assert "tried 6 (3 ok, 3 wrong-result)" in report  # a function of a source that works in place is one of the three
    assert "generic" in kernels["add_rms_norm"] & kernels["gated"]
    assert kernels["mixture"] == {"generic", "whole"}
    assert kernels["paged"] == {"generic"}  # its inputs depend on each other, and are drawn for every check
    assert any(v["dtypes"] == {"T": "f8e5m2"} for v in variants["rescale"])
    assert "numpy" in report  # the baseline was right and took part


IN_PLACE = """
import numpy as np
import ops

rng = np.random.default_rng(0)


def near(got, want, most=1e-5):
    assert np.abs(np.asarray(got, "f8") - want).max() <= most


def refused(words, call, *arguments, **given):
    try:
        call(*arguments, **given)
    except ops.ArgumentValueError as error:
        assert words in str(error), error
    else:
        raise SystemExit("not refused: " + words)


class Foreign:
    # an array whose export does not say whether it may be written

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **_):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def norm(x, residual, w):
    residual = residual.astype("f8") + x
    return residual / np.sqrt((residual**2).mean(-1, keepdims=True) + 1e-5) * w, residual


for shape in ((16, 1024), (5, 77), (1, 1)):
    x, residual, w = (rng.standard_normal(s).astype("f4") for s in (shape, shape, shape[1:]))
    new_x, new_residual = norm(x, residual, w)
    for _ in range(3):  # the same call again is remembered
        a, b = x.copy(), residual.copy()
        assert ops.add_rms_norm(a, b, w) is None
        near(a, new_x)
        near(b, new_residual)
    a, b, count = x.copy(), residual.copy(), np.arange(shape[0], dtype="i4")
    assert ops.add_rms_norm(a, b, w, count) is None
    assert ops.add_rms_norm(a, b, w, calls=count) is None
    assert (count == np.arange(shape[0]) + 2).all()
    b = residual.copy()
    b.flags.writeable = False
    a = x.copy()
    refused("tensor 'residual' is read-only; wanted a tensor that can be written", ops.add_rms_norm, a, b, w)
    refused("tensor 'x' is read-only", ops.add_rms_norm, np.broadcast_to(x[:1], shape), x.copy(), w)
    refused("'residual' is passed by a DLPack capsule without a version", ops.add_rms_norm, a, Foreign(x.copy()), w)
    assert (a == x).all()
    ops.add_rms_norm(x.copy(), residual.copy(), Foreign(w))
    refused("tensor 'residual' overlaps tensor 'x' in memory; wanted separate memory", ops.add_rms_norm, a, a, w)

    gate, up = x, residual
    out = gate.astype("f8") ** 2 + up
    made, total = ops.gated(gate, up)
    near(np.from_dlpack(made), out)
    near(np.from_dlpack(total), gate.astype("f8").sum(1), 1e-4)
    for name in ("gate", "up"):
        for _ in range(3):
            given = {"gate": gate.copy(), "up": up.copy()}
            found, total = ops.gated(**given, out=given[name])
            assert found is given[name]
            near(found, out)
            near(np.from_dlpack(total), gate.astype("f8").sum(1), 1e-4)
    flat = np.zeros(gate.size + 1, "f4")
    partly, shifted = flat[:-1].reshape(shape), flat[1:].reshape(shape)
    partial = "output 'out' overlaps input 'gate' in memory; wanted separate memory, or the very same tensor"
    if shape[0] > 1:
        refused(partial, ops.gated, partly, up, out=shifted)
        square = np.zeros((shape[0],) * 2, "f4")
        refused(partial, ops.gated, square, np.ones_like(square), out=square.T)
        refused("output 'total' overlaps output 'out'", ops.gated, gate, up, out=partly, total=flat[: shape[0]])

print("all is right")
"""


def test_calls_change_their_arguments_in_place(project: Project) -> None:
    assert called(project, IN_PLACE) == "all is right\n"


FRAGMENTS = """
import ops, numpy as np
draws = np.random.default_rng(3)
for m, n, k in ((32, 256, 16), (5, 37, 3), (1, 1, 1)):
    a, b, slopes, bias = (draws.normal(size=s).astype("f4") for s in ((m, k), (k, n), (m,), (n,)))
    for given, alpha in ((bias, 0.75), (bias, -2.5), (None, 0.75)):
        x = a.astype("f8") @ b + slopes[:, None] * (np.arange(n) % 5)
        wanted = x / (1 + np.exp(-x)) + (0 if given is None else given * np.float64(np.float32(alpha)))
        got = np.from_dlpack(ops.mixture(a, b, slopes, bias=given, alpha=alpha))
        assert np.abs(got - wanted).max() < 1e-4, (m, n, k)
        turned = np.from_dlpack(ops.mixture(a.T.copy().T, b.T.copy().T, slopes, bias=given, alpha=alpha))
        assert np.abs(turned - wanted).max() < 1e-4, (m, n, k)
print("right")
"""
DIMS = """
import numpy as np
import ops

x = np.random.default_rng(1).standard_normal((5, 64), np.float32)
out = ops.top(x, count=16)
assert np.array_equal(out, x[:, :16])
assert np.array_equal(ops.top(x, count=7), x[:, :7])
print(ops.explain("top", x, count=16)["kernel"], ops.explain("top", x, count=7)["kernel"])
print(ops.explain("top", x, count=7)["rejected"][0].partition(": ")[2])
for wrong in (lambda: ops.top(x, count=33), lambda: ops.top(x[:, :63].copy(), count=3), lambda: ops.top(x, count=-1)):
    try:
        wrong()
    except ops.ArgumentValueError as error:
        print(error)
"""


def test_calls_of_an_epilogue_and_a_fragment(project: Project) -> None:
    assert called(project, FRAGMENTS) == "right\n"


def test_dims_of_expressions_and_integers(project: Project, variants: dict[str, list[Any]]) -> None:
    guards = {v["config"].get("U"): v["requires"] for v in variants["top"] if v["kernel"] == "unrolled"}
    assert guards
    assert all(f"((K % {u}) == 0)" in requires for u, requires in guards.items())
    used, refused, *errors = called(project, DIMS).splitlines()
    assert used == "unrolled generic"
    assert refused in ("((K % 4) == 0)", "((K % 8) == 0)")
    assert errors == [
        "top: not a call that it takes: (K <= N) must hold, and K is 33, N is 32",
        "top: tensor 'x': axis 1 has extent 63, which is (2 * N) for no N, as in [M, (2 * N)]",
        "top: 'count' is -1, wanted an extent of the dim K: 0 or more",
    ]


def test_quantised_to_eight_bits(module: ModuleType) -> None:
    x = torch.randn(4099) * 100
    x[:5] = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -1e9])
    q = module.quantise(x, scale=0.5)
    assert q.dtype == torch.float8_e4m3fn
    want = (x / 0.5).clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(q.view(torch.uint8), want.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.float8_e4m3fn])
def test_eight_bits_in_and_out(module: ModuleType, dtype: Any) -> None:
    patterns = torch.arange(256, dtype=torch.uint8).view(dtype)
    y = module.rescale(patterns, factor=0.75)
    largest = torch.finfo(dtype).max
    want = (patterns.float() * 0.75).clamp(-largest, largest).to(dtype)
    assert y.dtype == dtype
    assert torch.equal(y.float(), want.float()) or _same_but_nan(y, want)
    assert module.explain("rescale", patterns, factor=1.0)["dtypes"] == {
        "T": {torch.float8_e5m2: "f8e5m2", torch.float8_e4m3fn: "f8e4m3"}[dtype]
    }


def _same_but_nan(got: Any, want: Any) -> bool:
    got, want = got.float(), want.float()
    return bool(((got == want) | (got.isnan() & want.isnan())).all())


def test_numpy_passes_what_it_has_and_takes_results_elsewhere(module: ModuleType) -> None:
    x = np.linspace(-300, 300, 257, dtype=np.float32)
    q = torch.empty(257, dtype=torch.float8_e4m3fn)
    assert module.quantise(x, scale=1, q=q) is q
    assert _same_but_nan(q, torch.from_numpy(x).to(torch.float8_e4m3fn))
    with pytest.raises(module.ArgumentTypeError, match="output 'q' of float8_e4m3fn cannot be made for arrays"):
        module.quantise(x)
    with pytest.raises(module.ArgumentTypeError, match="tensor 'q' has dtype u8, wanted f8e4m3"):
        module.quantise(x, q=np.empty(257, np.uint8))
    with pytest.raises(module.ArgumentTypeError, match="tensor 'x' has dtype f8e4m3, wanted f32"):
        module.quantise(q, q=q)


@pytest.mark.parametrize("mixes", [True, False])
def test_integers_of_64_bits_are_whole(module: ModuleType, mixes: bool) -> None:
    draw = np.random.default_rng(3)
    keys = draw.integers(0, 2**64, 1001, dtype=np.uint64)
    added = draw.integers(-(2**15), 2**15, 1001).astype(np.int16)
    mixed = (keys ^ (keys >> 33)) * np.uint64(0xFF51AFD7ED558CCD) if mixes else keys
    want = mixed + added.astype(np.uint64) + np.uint64(7)
    out, low = module.mix(keys, added, mixes=mixes, seed=7)
    assert (out.dtype, low.dtype) == (np.uint64, np.uint16)
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(low, (mixed >> np.uint64(7)).astype(np.uint16))
    theirs, _ = module.mix(torch.from_numpy(keys), torch.from_numpy(added), mixes=mixes, seed=7)
    assert theirs.dtype == torch.uint64
    np.testing.assert_array_equal(theirs.numpy(), want)


def install_example(place: Path) -> str:
    """Install the package of the example, as pip would. Returns the folder to import it from."""
    info = place / "halide_backend-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: halide_backend\nVersion: 1.0\n")
    (_, points) = (EXAMPLE / "pyproject.toml").read_text().split("[project.entry-points.")
    (info / "entry_points.txt").write_text("[" + points.replace('"', ""))
    shutil.copytree(EXAMPLE / "halide_backend", place / "halide_backend")
    return str(place)


CALLS = """
import os
os.environ |= dict(OPENBLAS_NUM_THREADS="{threads}", OMP_NUM_THREADS="1")
os.sched_setaffinity(0, range(os.cpu_count()))  # OpenBLAS has no more threads than cores
import numpy, ops
a, b, bias = (numpy.ones(s, "f4") for s in ((96, 512), (512, 256), 256))
for more in dict(), dict(bias=bias):
    threads = os.listdir("/proc/self/task")
    told, value = ops.explain("product", a, b, **more), ops.product(a, b, **more)[7, 9]
    assert os.listdir("/proc/self/task") == threads
    print(told["kernel"], float(value), told.get("note", told["rejected"]))
"""
PROGRAM = r"""
#include <stdio.h>
#include <string.h>
#include <odd.h>
#include <aot_tune/tensor.h>
static float a[96 * 512] = {2}, b[512 * 256] = {3}, c[96 * 256];
int main(void) {
  int64_t m[2] = {96, 512}, n[2] = {512, 256}, o[2] = {96, 256};
  DLTensor x = aot_tune_tensor(a, AOT_TUNE_F32, aot_tune_cpu(), 2, m, NULL);
  DLTensor y = aot_tune_tensor(b, AOT_TUNE_F32, aot_tune_cpu(), 2, n, NULL);
  DLTensor z = aot_tune_tensor(c, AOT_TUNE_F32, aot_tune_cpu(), 2, o, NULL);
  char text[4096] = "";
  odd_product_explain(&x, &y, NULL, &z, NULL, text, sizeof text);
  int status = odd_product(&x, &y, NULL, &z, NULL);
  printf("%d %g\n%s", status, c[0], text);
  FILE* maps = fopen("/proc/self/maps", "r");
  for (char line[4096]; fgets(line, sizeof line, maps);)
    if (strstr(line, "blas")) puts(line);
  return 0;
}
"""


def reported(project: Project, name: str) -> Any:
    """What the build reports of an operator."""
    report = json.loads((project.folder / "cmake/aot_tune/odd/report.json").read_bytes())
    return next(o for o in report["operators"] if o["operator"] == name)


def test_a_cblas_wins_unless_it_is_beaten(project: Project) -> None:
    rows = reported(project, "product")["problems"]
    assert len(rows) == 2
    for row in rows:  # beside it there is only a kernel that nobody wrote for speed
        assert row["winner"].rpartition("_")[0] == ("cblas_then_epilogue" if "bias" in row["problem"] else "cblas")
        assert row["remark"].startswith("OpenBLAS 0.")
        assert row["paired"] is not None


def test_a_cblas_serves_where_it_has_no_threads_of_its_own(project: Project) -> None:
    said = called(project, CALLS.format(threads=1)).splitlines()
    assert [line.partition(" 0.")[0] for line in said] == ["cblas 512.0 OpenBLAS", "cblas_then_epilogue 513.0 OpenBLAS"]
    for line, value in zip(called(project, CALLS.format(threads=2)).splitlines(), ("512.0", "513.0"), strict=True):
        assert line.startswith(f"generic {value} ")
        assert "the CBLAS has 2 threads of its own: OPENBLAS_NUM_THREADS=1 lets it serve" in line


def test_a_call_loads_no_library(project: Project, tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(PROGRAM)
    built = project.folder / "cmake"
    includes = [f"-I{built / 'aot_tune/odd'}", f"-I{ROOT / 'aot_tune/runtime/include'}"]
    library = [f"-L{built}", "-lodd", f"-Wl,-rpath,{built}"]
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


def test_halide_is_a_backend(project: Project) -> None:
    """It is built, verified, measured and linked, and part of what identifies the library."""
    pytest.importorskip("halide")
    told = reported(project, "blur")
    assert told["statuses"] == {"ok": 3}
    assert {row["winner"].rpartition("_")[0] for row in told["problems"]} == {"halide"}
    assert "halide_backend 1.0" in project.manifest("cmake/aot_tune/odd")["tools"]["halide.plug-in"]
    assert called(project, BLUR) == "halide\n"
