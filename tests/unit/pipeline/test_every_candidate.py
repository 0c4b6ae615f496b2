"""All candidates rendered and compiled without a device: by a command, and in the build of a package."""

from __future__ import annotations

import importlib.util
import io
import json
import re
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
from compiled_project import GENERIC, SOME_FAIL, planned, project
from elftools.elf.elffile import ELFFile
from nvcc_sources import MISSING
from triton_installed import VERSIONS

from aot_tune.build import build_wheel
from aot_tune.cli.main import main
from aot_tune.pipeline.build_library import build
from aot_tune.plan import library_plan
from aot_tune.report import read_report
from aot_tune.report.report_records import Report
from aot_tune.report.report_text import format_report
from aot_tune.support.errors import AotTuneError, BuildError, RenderError

needs_nvcc = pytest.mark.skipif(bool(MISSING), reason=MISSING)
TORCH = importlib.util.find_spec("torch")
needs_triton = pytest.mark.skipif(not VERSIONS, reason="no Triton")


def compiled(capsys: pytest.CaptureFixture[str], templates: Path, *more: str) -> tuple[int, list[str]]:
    """The exit status of the command, and what it says of kernels."""
    status = main(["compile", "--templates", str(templates), "--cache-dir", str(templates.parent / "cache"), *more])
    said = capsys.readouterr()
    lines = [line.removeprefix("aot_tune: ") for line in (said.out + said.err).splitlines()]
    first = next((i for i, line in enumerate(lines) if line.startswith("twice")), len(lines))
    return status, [line for line in lines[first:] if ": compile: " not in f": {line}"]


def test_what_fails_is_told_by_kernel_and_by_kind_with_the_templates_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kernel that is not for a target is no failure; one of which nothing is left is one."""
    many = 'parameters=(Parameter("K", (1, 2, 4, 5, 6, 7)),)'
    listed, wide = "parameters=(K,)", 'constraints=(target("vector_bytes") >= 64,)'
    kernels = (
        f'Kernel("some", "twice/some.cpp.j2", {listed}), Kernel("none", "twice/none.cpp.j2", {many}), '
        f'Kernel("wide", "twice/generic.cpp.j2", {wide}, {listed}), '
        f'Kernel("empty", "twice/generic.cpp.j2", constraints=(parameter("K") > 5,), {listed})'
    )
    templates = project(tmp_path, kernels, some=SOME_FAIL, none=SOME_FAIL.replace("K == 2", "K != 0"))
    line = SOME_FAIL.splitlines().index('  return "no number";') + 1
    target = ("--target", "cpu-x86-64-v3")
    status, said = compiled(capsys, templates, *target)
    assert status == 1
    assert said[:2] == [
        "twice/generic for cpu-x86-64: 1 candidate, 1 fit",
        "twice/some for cpu-x86-64-v3: 3 candidates, 1 fit, 2 fail",
    ]
    assert said[2].startswith(f"  render-failed: twice/some.cpp.j2:{line + 2}: 'nothing_of_that_name' is undefined")
    assert re.search(r"\(some K=3, some_[0-9a-f]{8}\)$", said[2])
    assert said[3].startswith(f"  compile-failed: twice/some.cpp.j2:{line}: ")
    assert re.search(r"\(some K=2, some_[0-9a-f]{8}\)$", said[3])
    left_out = "2 more are left out, because these fail alike"
    assert said[4] == f"twice/none for cpu-x86-64-v3: 4 candidates, 0 fit, 4 fail, {left_out}"
    assert said[5].startswith("  compile-failed 4 times: twice/none.cpp.j2:")
    told = "\n".join(said)
    assert "twice/wide for cpu-x86-64-v3: no candidate: its constraints say that it is not for cpu-x86-64-v3" in told
    assert "  no-candidate: its constraints leave no config (empty)" in told
    assert "NONE COMPILES of twice/none for cpu-x86-64-v3" in told
    status, said = compiled(capsys, templates, *target, "--filter", "twice/some")
    assert (status, said[-1]) == (0, "1 kernel, 3 candidates: 1 fit, 2 fail")
    assert compiled(capsys, templates, *target, "--filter", "twice/some", "--strict")[0] == 1
    said = compiled(capsys, templates, *target, "--filter", "twice/some", "--configs", "1")[1]
    assert said == ["twice/some for cpu-x86-64-v3: 1 candidate, 1 fit", "1 kernel, 1 candidate: 1 fit, 0 fail"]
    said = compiled(capsys, templates, *target, "--filter", "twice/generic")[1]
    assert said[0] == "twice/generic for cpu-x86-64: 1 candidate, 1 fit"
    cache = ("--cache-dir", str(templates.parent / "cache"))
    main(["compile", "twice", "--templates", str(templates), *target, *cache, "--json"])
    found = {k["kernel"]: k for k in json.loads(capsys.readouterr().out)}
    assert (found["generic"]["target"], found["generic"]["fit"], found["some"]["fit"]) == ("cpu-x86-64", 1, 1)
    kinds = {(f["status"], f["count"]) for f in found["some"]["failures"]}
    assert kinds == {("render-failed", 1), ("compile-failed", 1)}


def test_sources_are_compiled_with_what_cmake_would_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = '#include "theirs.h"\n#if WIDTH != 4 || !defined(THEIRS)\n#error "other ones"\n#endif\n'
    templates = project(tmp_path, 'Kernel("some", "twice/some.cpp.j2")', some=needs + GENERIC)
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "theirs.h").write_text("#define THEIRS\n")
    monkeypatch.chdir(tmp_path)
    target = ("--target", "cpu-x86-64-v3")
    status, said = compiled(capsys, templates, *target)
    assert status == 1
    assert "theirs.h: No such file or directory" in said[2]
    status, said = compiled(
        capsys, templates, *target, "--include-directory", "include", "--compile-definition", "WIDTH=4"
    )
    assert (status, said[1]) == (0, "twice/some for cpu-x86-64-v3: 1 candidate, 1 fit")
    assert compiled(capsys, templates, *target, "--include-directory", "include", "--compile-option=-DWIDTH=4")[0] == 1


CUDA = """{{ prelude() }}
namespace {
__global__ void __launch_bounds__({{ THREADS }}) twice(const float* x, float* y) {
  float held[{{ HELD }}];
#pragma unroll
  for (int i = 0; i < {{ HELD }}; ++i) held[i] = x[i * blockDim.x + threadIdx.x];
#pragma unroll
  for (int i = 0; i < {{ HELD }}; ++i) held[i] += held[({{ HELD }} - i) % {{ HELD }}] * held[i * 7 % {{ HELD }}];
#pragma unroll
  for (int i = 0; i < {{ HELD }}; ++i) y[i * blockDim.x + threadIdx.x] = held[i];
}
}
{{ no_workspace() }}
{{ kernel_signature("launch") }} {
  const Arguments args = {{ pack() }};
  twice<<<1, {{ THREADS }}>>>({{ ptr("x") }}, {{ ptr("y") }});
  return cudaGetLastError();
}
{{ kernel_signature("preload") }} { return cudaSuccess; }
"""


@needs_nvcc
def test_kernels_for_a_gpu_compile_without_one_and_spills_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = """Kernel("gpu", "twice/gpu.cu.j2", backend="nvcc",
        listed=({"THREADS": 64, "HELD": 4}, {"THREADS": 1024, "HELD": 128})),
        Kernel("gpu_generic", "twice/gpu_generic.cu.j2", backend="nvcc", generic=True)"""
    templates = project(tmp_path, kernel)
    operator = templates / "twice" / "operator.py"
    operator.write_text(operator.read_text().replace("2.0 * call.x", "2.0 * call.x.repeat(2, axis=0)[::2]"))
    (templates / "twice" / "gpu.cu.j2").write_text(CUDA)
    generic = CUDA.replace("{{ THREADS }}", "64").replace("{{ HELD }}", "4")
    (templates / "twice" / "gpu_generic.cu.j2").write_text(generic)
    status, said = compiled(capsys, templates, "--target", "cuda-sm_90a")
    assert status == bool(TORCH), said
    if TORCH:
        assert said.pop(0).startswith("twice: its reference fails on torch's tensors, which a build for a GPU gives it")
        assert said[-1] == "FAILS: the reference of twice on torch"
    assert said[1].startswith("twice/gpu_generic for cuda-ptx_80: 1 candidate, 1 fit; at most ")
    assert said[2].startswith("twice/gpu for cuda-sm_90a: 2 candidates, 2 fit, 1 of them spill, ")
    assert " bytes at most (gpu THREADS=1024 HELD=128); at most 64 registers" in said[2]


TRITON = """*(
        Kernel(name, backend="triton", parameters=(Parameter("BLOCK", (16,)),),
            triton=TritonFunction(f"functions.py:{name}", {}, grid))
        for name in ("wrong", "past_the_end", "assembly")
    ),
    Kernel("on_gpu", backend="triton", generic=True, listed=tuple({"BLOCK": 16, "num_warps": w} for w in (64, 2, 1)),
        triton=(
            TritonFunction("functions.py:right", {"y": PARTS}, grid),
            TritonFunction("functions.py:moved", {"x": PARTS}, grid),
        ))
"""


@needs_triton
def test_triton_functions_run_in_the_interpreter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From any folder, with a path of the templates that is relative to it, and without torch.

    Functions may be above the templates, in a package, and ask for the device. What is compiled for bf16 runs in
    another dtype. Several functions run one after the other. A generic kernel's config is the first that fits.
    """
    operator = project(tmp_path, TRITON) / "twice" / "operator.py"
    text = operator.read_text().replace('dims=("N",),', 'dims=("N",), dtypes={"T": ("bf16", "f32")},')
    operator.write_text(text.replace('"x", (N,)', '"x", (N,), "T"').replace('"y", (N,)', '"y", (N,), "T"'))
    (tmp_path / "templates" / "functions.py").rename(tmp_path / "helpers.py")
    (tmp_path / "pyproject.toml").touch()
    package = tmp_path / "vendor" / "pack"
    package.mkdir(parents=True)
    asks = "import triton\nassert triton.runtime.driver.active.get_current_target().arch >= 80\n"
    imports = "import assembly, moved, past_the_end, right, wrong\n"
    (package / "__init__.py").touch()
    (package / "inner.py").write_text(f"from helpers {imports}")
    (package / "kernels.py").write_text(f"{asks}from pack.inner {imports}")
    operator.write_text(operator.read_text().replace("functions.py", "vendor/pack/kernels.py"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "without" / "torch").mkdir(parents=True)
    (tmp_path / "without" / "torch" / "__init__.py").write_text('raise ImportError("not here")')
    monkeypatch.syspath_prepend(str(tmp_path / "without"))
    status, said = compiled(capsys, Path("templates"), "--target", "cuda-sm_80")
    told = {said[i - 1].partition(" ")[0]: line for i, line in enumerate(said) if "interpreter " in line and i}
    assert status == 0
    assert told["twice/on_gpu"].startswith("  in Triton's interpreter right on 'N=")
    assert "BLOCK=16 num_warps=2" in told["twice/on_gpu"]
    assert told["twice/wrong"].startswith("  in Triton's interpreter wrong on 'N=")
    assert "]: got " in told["twice/wrong"]
    assert told["twice/past_the_end"].endswith(": it writes before or behind 'y'")
    assert told["twice/assembly"].startswith("  in Triton's interpreter not runnable on 'N=")
    assert [line for line in said if line.startswith("WRONG")] == [
        f"WRONG in Triton's interpreter: twice/{name} for cuda-sm_80" for name in ("wrong", "past_the_end")
    ]


KERNEL = 'Kernel("some", "twice/some.cpp.j2", parameters=(K,))'


def of_mode(templates: Path, mode: str, **options: str) -> Path:
    folder = templates.parent / f"planned-{mode}"
    return planned(templates, folder, AOT_TUNE_MODE=mode, AOT_TUNE_TARGETS="cpu-x86-64-v3", **options)


def test_everything_is_compiled_then_the_library_is_that_of_generic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    templates = project(tmp_path, KERNEL, some=SOME_FAIL)
    folder = of_mode(templates, "compile")
    build(folder)
    assert "twice/some for cpu-x86-64-v3: 3 candidates, 1 fit, 2 fail" in capsys.readouterr().out
    manifest = msgspec.json.decode((folder / "manifest.json").read_bytes())
    assert [v["kernel"] for v in manifest["operators"][0]["variants"]] == ["generic"]
    assert read_report(folder / "report.json").mode == "compile"
    with pytest.raises(BuildError, match=r"kernel 'some' has candidates that fail for cpu-x86-64-v3") as caught:
        build(of_mode(templates, "compile", AOT_TUNE_STRICT="1"))
    assert "compile-failed: twice/some.cpp.j2:" in caught.value.why


def test_what_cannot_be_rendered_or_read_fails_a_generic_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would else be found by who builds on a device."""
    monkeypatch.setattr(library_plan, "read_functions", Mock(side_effect=BuildError("it cannot be imported")))
    with pytest.raises(BuildError, match="it cannot be imported"):
        planned(project(tmp_path / "read", TRITON), tmp_path, AOT_TUNE_MODE="generic", AOT_TUNE_TARGETS="cuda-sm_80")
    monkeypatch.undo()
    templates = project(tmp_path, KERNEL, some=GENERIC.replace("return 0;", "{{ nothing_of_that_name }}"))
    for mode in ("generic", "auto"):
        with pytest.raises(RenderError, match=r"twice/some\.cpp\.j2:5: .*\(kernel twice/some K=1\)"):
            of_mode(templates, mode)


def test_texts_of_kept_variants_are_kept_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    templates = project(tmp_path, KERNEL, some=GENERIC)
    folder = of_mode(templates, "generic", AOT_TUNE_KEEP=str(tmp_path / "kept"), AOT_TUNE_WORKSPACE_MAX="4096")
    build(folder)
    (variant,) = msgspec.json.decode((folder / "manifest.json").read_bytes())["operators"][0]["variants"]
    held = {p.name: p.read_text() for p in (tmp_path / "kept" / "ops" / "twice").iterdir()}
    assert set(held) == {f"{variant['name']}.cpp", f"{variant['name']}.s"}
    assert f"{variant['symbol']}_launch(" in held[f"{variant['name']}.cpp"]
    assert f"{variant['symbol']}_launch:" in held[f"{variant['name']}.s"]
    assert "kept 2 files of 1 variants below" in capsys.readouterr().out
    report = msgspec.json.decode((folder / "report.json").read_bytes(), type=Report)
    assert report.kept == tuple(sorted(f"ops/twice/{name}" for name in held))
    assert f"kept      2 files (AOT_TUNE_KEEP), such as {report.kept[0]}" in format_report(report)
    (tmp_path / "file").write_text("")
    build(of_mode(templates, "generic", AOT_TUNE_KEEP=str(tmp_path / "file" / "kept")))  # which costs no library
    assert "AOT_TUNE_KEEP: NOTHING KEPT below" in capsys.readouterr().out
    with pytest.raises(AotTuneError, match="AOT_TUNE_KEEP='kept' is not an absolute path"):
        of_mode(templates, "generic", AOT_TUNE_KEEP="kept")


def test_debuggers_show_the_templates_lines_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is compiled once more, without optimisation."""
    templates = project(tmp_path, KERNEL, some=GENERIC)
    template = templates / "twice" / "generic.cpp.j2"
    template.write_text(template.read_text() + "#define TWICE(x) \\\n{# no line of the source #}\n  (2 * (x))\n")
    debug = of_mode(templates, "generic", AOT_TUNE_DEBUG="1")
    build(debug)
    assert read_report(debug / "report.json").notes == ("its kernels are not optimised (AOT_TUNE_DEBUG)",)
    archive = (debug / "variants.a").read_bytes()
    dwarf = ELFFile(io.BytesIO(archive[archive.index(b"\x7fELF") :])).get_dwarf_info()
    (unit,) = dwarf.iter_CUs()
    assert unit.get_top_DIE().attributes["DW_AT_producer"].value.decode().rpartition("-O")[2].split()[0] == "0"
    program = dwarf.line_program_for_CU(unit)
    base = int(program.header["version"] < 5)
    states = [entry.state for entry in program.get_entries() if entry.state]
    places = {(program["file_entry"][state.file - base].name.decode(), state.line) for state in states}
    lines = template.read_text().splitlines()
    loop = next(n for n, line in enumerate(lines, 1) if "for (" in line)
    assert ("generic.cpp.j2", loop) in places
    assert max(line for name, line in places if name == "generic.cpp.j2") <= len(lines)
    monkeypatch.setenv("AOT_TUNE_IMPORT_PATH", "")  # it is put back
    monkeypatch.setattr("scikit_build_core.build.build_wheel", lambda _folder, settings, _metadata: settings)
    for given, strip in (("1", {"install.strip": "false"}), ("0", {})):
        settings = {"cmake.define.AOT_TUNE_DEBUG": given}
        assert build_wheel("wheels", settings) == {**settings, **strip}  # type: ignore[comparison-overlap]
