"""A library's tables are checked before anything is written."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import linked
import msgspec
import pytest

from aot_tune.link import LibrarySpec, TargetTable, generate
from aot_tune.link.generate import check_guard, check_library
from aot_tune.spec import dim, maximum, minimum, next_power_of_2, problem, stride, where
from aot_tune.support.errors import ManifestError

SHAPE = problem(M=8, N=8, K=8)


@pytest.fixture
def spec(built: linked.Built) -> LibrarySpec:
    return built.spec


def with_first(spec: LibrarySpec, **changes: object) -> LibrarySpec:
    first = dataclasses.replace(spec.operators[0], **changes)  # type: ignore[arg-type]
    return dataclasses.replace(spec, operators=(first, *spec.operators[1:]))


def renamed(variants: tuple[linked.NamedVariant, ...]) -> linked.NamedVariant:
    return msgspec.structs.replace(variants[0], name="other")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v[1:], r"'gemm' has 0 generic variants for cpu"),
        (lambda v: (), r"'gemm' has 0 generic variants for cpu"),
        (lambda v: (*v, renamed(v)), r"2 generic variants for cpu: \['plain', 'other'\]"),
    ],
)
def test_there_is_one_generic_variant(spec: LibrarySpec, change: Callable[..., Any], message: str) -> None:
    check_library(spec)
    with pytest.raises(ManifestError, match=message):
        check_library(with_first(spec, variants=change(spec.operators[0].variants), tables=()))


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"rest": (9,)}, "'cpu-x86-64-v2' names variant 9, which is not in the library"),
        ({"rest": (3,)}, "names variant 'packed_3' for cpu-x86-64-v3"),
        ({"tuned": (SHAPE,), "exact": ((3,),)}, "names variant 'packed_3' for cpu-x86-64-v3"),
        ({"surveyed": ((SHAPE, (1, 3)),)}, "names variant 'packed_3' for cpu-x86-64-v3"),
        ({"surveyed": ((problem(M=8, N=8), (1,)),)}, "problem 'M=8 N=8' does not state 'K'"),
    ],
)
def test_tables_name_variants_of_their_level(spec: LibrarySpec, named: dict[str, Any], message: str) -> None:
    table = TargetTable(target="cpu-x86-64-v2", level=2, **named)
    with pytest.raises(ManifestError, match=message):
        check_library(with_first(spec, tables=(table,)))


def test_a_guard_that_may_divide_by_zero(spec: LibrarySpec) -> None:
    m, n, gemm = dim("M"), dim("N"), spec.operators[0]
    for guard in (m % stride("a", 0) == 0, m // (n - 1) == 2, m % 0 == 0):
        two = gemm.variants[2]
        guarded = msgspec.structs.replace(two, rendered=msgspec.structs.replace(two.rendered, requires=(guard,)))
        with pytest.raises(ManifestError, match="divides by"):
            check_library(with_first(spec, variants=(*gemm.variants[:2], guarded, *gemm.variants[3:])))
    for divisor in (next_power_of_2(n), maximum(m - 3, 1), where(m == 1, n, 2), minimum(m, 8)):
        check_guard(8192 // divisor == 2, gemm.operator, "a guard")
    for divisor in (minimum(m, 0), maximum(m - 3, 0), where(m == 1, 0, 2)):
        with pytest.raises(ManifestError, match="a guard divides by"):
            check_guard(8192 // divisor == 2, gemm.operator, "a guard")


GPU = """
EXPORT int32_t SYMBOL_preload() { return 0; }
namespace { int registered() { volatile int x = 3; return x; } }
__attribute__((constructor)) static void register_kernels() { registered(); }
"""
RUNS = "namespace { int f() { volatile int x = 3; return x; }\n[[gnu::used]] int g = f(); }\n"
AT_LOAD = "its object has code that runs when the library is loaded"


@pytest.mark.parametrize(
    ("target", "more", "message"),
    [
        # nvcc registers kernels by an initialiser, and <iostream> has one before GCC 13
        ("cuda-ptx_80", GPU, ""),
        ("cuda-ptx_80", GPU + "#include <iostream>\nnamespace { std::ostream& out = std::cout; }\n", ""),
        ("cuda-ptx_80", GPU + RUNS, AT_LOAD),
        ("cuda-ptx_80", "", "its object does not define the function 'aot_tune_odd_preload'"),
        ("cpu-x86-64", "float f(float x) { return x + 1; }\n", "its object defines the global symbol '_Z1ff'"),
        ("cpu-x86-64", RUNS, AT_LOAD),
    ],
)
def test_an_object_shows_and_runs_nothing_else(
    spec: LibrarySpec, target: str, more: str, message: str, tmp_path: Path
) -> None:
    level = 80 if target.startswith("cuda") else 1
    made = linked.variant(tmp_path, linked.GEMM + more, "odd", target=target, level=level, generic=True)
    variants = spec.operators[0].variants
    changed = with_first(spec, variants=(*variants, made) if level == 80 else (made, *variants[1:]))
    if not message:
        generate(changed, tmp_path)
        return
    with pytest.raises(ManifestError, match=f"'odd': {message}"):
        generate(changed, tmp_path)


def test_variants_of_a_family_fit_its_dtypes_and_levels(cuda_spec: LibrarySpec) -> None:
    first, *others = cuda_spec.operators[0].variants
    tables = cuda_spec.operators[0].tables
    with pytest.raises(ManifestError, match=r"0 generic variants for cuda with T=bf16: \[\]"):
        check_library(
            with_first(cuda_spec, variants=(first, *(v for v in others if v.name != "plain_bf16")), tables=())
        )
    with pytest.raises(ManifestError, match="'plain_cpu': T='f64' is no dtype of the operator"):
        check_library(with_first(cuda_spec, variants=(linked.changed(first, dtypes={"T": "f64"}), *others)))
    sm_90 = dataclasses.replace(tables[1], rest=tables[0].rest)  # whose code ends before
    with pytest.raises(ManifestError, match="names variant 'even_80' for cuda-sm_80"):
        check_library(with_first(cuda_spec, tables=(sm_90,)))
