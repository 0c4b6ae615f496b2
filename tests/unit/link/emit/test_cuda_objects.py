"""What is checked before a library for CUDA is linked, and what a real one is: objects by nvcc, the static runtime."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from pathlib import Path

import linked
import linked_cuda
import pytest
from linked_cuda import cuda_runtime, python
from places import SHARED

from aot_tune.link import LibrarySpec, LinkedVariant, check_against_manifest, generate
from aot_tune.link.check.check_tables import check_library
from aot_tune.link.emit.dispatch import render_dispatch
from aot_tune.support.errors import ManifestError

# ---- Checks before linking


def with_variants(cuda_spec: LibrarySpec, *variants: LinkedVariant, **changes: object) -> LibrarySpec:
    scale = dataclasses.replace(cuda_spec.operators[0], variants=variants, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(cuda_spec, operators=(scale, *cuda_spec.operators[1:]))


def test_each_dtype_that_has_variants_has_a_generic_one(cuda_spec: LibrarySpec) -> None:
    variants = cuda_spec.operators[0].variants
    with pytest.raises(ManifestError, match=r"0 generic variants for cuda with T=bf16: \[\]"):
        check_library(with_variants(cuda_spec, *(v for v in variants if v.name != "plain_bf16"), tables=()))


def test_a_variant_of_a_dtype_that_the_operator_does_not_have(cuda_spec: LibrarySpec) -> None:
    first, *others = cuda_spec.operators[0].variants
    with pytest.raises(ManifestError, match="'plain_cpu': T='f64' is no dtype of the operator"):
        check_library(with_variants(cuda_spec, dataclasses.replace(first, dtypes={"T": "f64"}), *others))


def test_a_leaf_whose_code_ends_before_the_table(cuda_spec: LibrarySpec) -> None:
    table = cuda_spec.operators[0]
    sm_90 = dataclasses.replace(table.tables[1], nodes=table.tables[0].nodes)
    with pytest.raises(ManifestError, match="names variant 'even_80' for cuda-sm_80"):
        check_library(with_variants(cuda_spec, *table.variants, tables=(sm_90,)))


def test_an_object_without_its_preload(cuda_spec: LibrarySpec, tmp_path: Path) -> None:
    plain = linked.variant(tmp_path, linked_cuda.HOST.replace("UNAVAILABLE", "0"), "bare", generic=True)
    bare = dataclasses.replace(plain, target="cuda-ptx_80", level=80)
    first, second, *others = cuda_spec.operators[0].variants
    assert second.name == "plain_cuda"
    changed = with_variants(cuda_spec, first, bare, *others)
    with pytest.raises(ManifestError, match="'bare': its object does not define the function 'aot_tune_bare_preload'"):
        generate(changed, tmp_path)


def test_a_generic_variant_for_newer_devices_alone(cuda_spec: LibrarySpec) -> None:
    """As those of f8e4m3 in Triton are: older devices have the others, and a call that needs it is told."""
    variants = cuda_spec.operators[0].variants
    newer = [dataclasses.replace(v, target="cuda-ptx_89", level=89) if v.name == "plain_bf16" else v for v in variants]
    changed = with_variants(cuda_spec, *newer)
    check_library(changed)
    text, before = (render_dispatch(spec, "{}") for spec in (changed, cuda_spec))
    names = [v.name for v in variants]
    plain, special = names.index("plain_cuda"), names.index("plain_bf16")
    for index in (plain, special):
        assert f"wanted[{index}] = runs_on(kInfo[{index}], level);" in text
    assert f"if (!wanted[{plain}] && !wanted[{special}])" in text
    assert "c_.level < kInfo[c_.generic].level)" in text
    assert f"wanted[{plain}] = wanted[{special}] = true;" in " ".join(before.split())


# ---- Real objects


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> linked.Built:
    """The library with kernels by nvcc and the static runtime."""
    includes, libraries = cuda_runtime()
    if not includes:
        pytest.skip("no CUDA compiler is here")
    folder = tmp_path_factory.mktemp("real")
    spec = linked_cuda.library_spec(folder / "objects", device=True)
    return linked.link_library(spec, folder / "out", families=["cuda"], includes=includes, libraries=libraries)


@pytest.mark.slow
def test_import_and_typed_error_without_a_driver(real: linked.Built) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(SHARED)!r})
import linked, linked_cuda, numpy as np
from pathlib import Path
ops = linked.load_module(Path({str(real.module)!r}))
print(ops.scale(np.ones(4, np.float32), factor=2).tolist())
explain = lambda: ops.explain("scale", N=8, device=0)
for ask in (lambda: linked_cuda.call(ops, 8, 0), lambda: ops.preload("cuda:0"), explain):
    try:
        ask()
    except ops.Error as error:
        print(type(error).__name__, error)
"""
    said = python(code, CUDA_VISIBLE_DEVICES="").splitlines()
    assert said[0] == "[2.0, 2.0, 2.0, 2.0]"
    assert len(said) == 4
    for line in said[1:]:  # with a driver here, none of its devices is visible
        assert "there is no CUDA driver here" in line or "sees no device" in line or "no such device" in line


def test_the_manifest_of_a_library_for_cuda(real: linked.Built) -> None:
    made = real.made
    document = check_against_manifest(real.library, real.module, Path(made.manifest), Path(made.archive))
    rows = {v["name"]: v for v in json.loads(Path(made.manifest).read_text())["operators"][0]["variants"]}
    assert rows["fast_bf16"]["dtypes"] == {"T": "bf16"}
    assert (rows["fast_90a"]["last"], rows["plain_cuda"]["last"]) == (90, 0)
    assert document.prefix == "aot_tune"
    symbols = subprocess.run(["nm", "-D", str(real.library)], check=True, capture_output=True, text=True).stdout
    assert "cuda" not in symbols.replace("linked_cuda", "")


def test_a_stripped_library_for_cuda(real: linked.Built, tmp_path: Path) -> None:
    for path in (real.library, real.module):
        shutil.copy(path, tmp_path)
        subprocess.run(["strip", str(tmp_path / path.name)], check=True)
    made = real.made
    names = (tmp_path / real.library.name, tmp_path / real.module.name, Path(made.manifest), Path(made.archive))
    check_against_manifest(*names)


def test_a_library_that_needs_the_driver(standin: linked.Built) -> None:
    made = standin.made
    with pytest.raises(ManifestError) as caught:
        check_against_manifest(standin.library, standin.module, Path(made.manifest), Path(made.archive))
    assert "needs libcuda.so.1, which a machine without a GPU does not have" in caught.value.what + caught.value.why
