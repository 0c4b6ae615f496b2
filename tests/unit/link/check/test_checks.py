"""A library's tables are checked before anything is written."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import linked
import pytest

from aot_tune.link import DecisionNode, LibrarySpec, TargetTable, generate
from aot_tune.link.check.check_tables import check_guard, check_library
from aot_tune.spec import Attribute, Expr, dim, maximum, minimum, next_power_of_2, problem, stride, where
from aot_tune.support.errors import ManifestError

GUARDS = (dim("M") % stride("a", 0) == 0, dim("M") // (dim("N") - 1) == 2, dim("M") % 0 == 0)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> LibrarySpec:
    return linked.library_spec(tmp_path_factory.mktemp("objects"))


def with_gemm(spec: LibrarySpec, **changes: object) -> LibrarySpec:
    gemm = dataclasses.replace(spec.operators[0], **changes)  # type: ignore[arg-type]
    return dataclasses.replace(spec, operators=(gemm, *spec.operators[1:]))


def with_nodes(spec: LibrarySpec, *nodes: DecisionNode, target: str = "cpu-x86-64-v2", level: int = 2) -> LibrarySpec:
    return with_gemm(spec, tables=(TargetTable(target=target, level=level, nodes=nodes),))


def test_the_library_is_fine(spec: LibrarySpec) -> None:
    check_library(spec)


def test_no_generic_variant(spec: LibrarySpec) -> None:
    with pytest.raises(ManifestError, match=r"'gemm' has 0 generic variants for cpu"):
        check_library(with_gemm(spec, variants=spec.operators[0].variants[1:], tables=()))
    with pytest.raises(ManifestError, match=r"'gemm' has 0 generic variants for cpu"):
        check_library(with_gemm(spec, variants=(), tables=()))


def test_two_generic_variants(spec: LibrarySpec) -> None:
    variants = spec.operators[0].variants
    twice = (*variants, dataclasses.replace(variants[0], name="other"))
    with pytest.raises(ManifestError, match=r"2 generic variants for cpu: \['plain', 'other'\]"):
        check_library(with_gemm(spec, variants=twice))


def test_a_leaf_without_its_kernel(spec: LibrarySpec) -> None:
    with pytest.raises(ManifestError, match="node 0 names variant 9, which is not in the library"):
        check_library(with_nodes(spec, DecisionNode(leaf=(9,))))


def test_a_leaf_of_a_higher_level(spec: LibrarySpec) -> None:
    with pytest.raises(ManifestError, match="names variant 'packed_3' for cpu-x86-64-v3"):
        check_library(with_nodes(spec, DecisionNode(leaf=(3,))))


def test_a_tree_that_does_not_end(spec: LibrarySpec) -> None:
    loop = DecisionNode(fact="M", threshold=1, below=0, above=1)
    with pytest.raises(ManifestError, match=r"the path \(0, 0\) does not end"):
        check_library(with_nodes(spec, loop, DecisionNode()))


def test_a_node_that_does_not_exist(spec: LibrarySpec) -> None:
    with pytest.raises(ManifestError, match="node 0 leads to node 7"):
        check_library(with_nodes(spec, DecisionNode(fact="M", threshold=1, below=7, above=0)))


def test_an_unknown_fact(spec: LibrarySpec) -> None:
    with pytest.raises(ManifestError, match=r"'stride.c.0'"):
        check_library(with_nodes(spec, DecisionNode(fact="stride.c.0", below=1, above=1), DecisionNode()))


def test_more_arguments_than_the_binding_holds(spec: LibrarySpec) -> None:
    attributes = tuple(Attribute(f"a{i}", ("x",)) for i in range(9))
    operator = dataclasses.replace(spec.operators[0].operator, attributes=attributes)
    with pytest.raises(ManifestError, match="'gemm' has 9 attributes"):
        check_library(with_gemm(spec, operator=operator))


@pytest.mark.parametrize("guard", GUARDS)
def test_a_guard_that_may_divide_by_zero(spec: LibrarySpec, guard: object) -> None:
    variants = spec.operators[0].variants
    guarded = dataclasses.replace(variants[2], requires=(guard,))  # type: ignore[arg-type]
    with pytest.raises(ManifestError, match="divides by"):
        check_library(with_gemm(spec, variants=(*variants[:2], guarded, *variants[3:])))


@pytest.mark.parametrize(
    "divisor",
    [next_power_of_2(dim("N")), maximum(dim("M") - 3, 1), where(dim("M") == 1, dim("N"), 2), minimum(dim("M"), 8)],
)
def test_a_divisor_that_is_never_zero(spec: LibrarySpec, divisor: Expr) -> None:
    check_guard(8192 // divisor == 2, spec.operators[0].operator, "a guard")


@pytest.mark.parametrize("divisor", [minimum(dim("M"), 0), maximum(dim("M") - 3, 0), where(dim("M") == 1, 0, 2)])
def test_a_divisor_that_may_be_zero_in_one_branch(spec: LibrarySpec, divisor: Expr) -> None:
    with pytest.raises(ManifestError, match="a guard divides by"):
        check_guard(8192 // divisor == 2, spec.operators[0].operator, "a guard")


def test_a_tuned_problem_that_lacks_a_dim(spec: LibrarySpec) -> None:
    table = TargetTable(target="cpu-x86-64-v2", level=2, nodes=(), tuned=(problem(M=1, N=2),))
    with pytest.raises(ManifestError, match="'M=1 N=2' does not state 'K'"):
        check_library(with_gemm(spec, tables=(table,)))


def test_another_object_than_the_measured_one(spec: LibrarySpec, tmp_path: Path) -> None:
    variants = spec.operators[0].variants
    other = dataclasses.replace(variants[0], object_digest="0" * 64)
    with pytest.raises(ManifestError, match="the object of variant 'plain' has digest"):
        generate(with_gemm(spec, variants=(other, *variants[1:])), tmp_path)


def test_an_object_with_a_symbol_that_others_could_use(spec: LibrarySpec, tmp_path: Path) -> None:
    source = linked.GEMM + "float shared_helper(float x) { return x + 1; }\n"
    leaky = linked.variant(tmp_path, source, "leaky", generic=True)
    with pytest.raises(ManifestError, match="'leaky': its object defines the global symbol '_Z13shared_helperf'"):
        generate(with_gemm(spec, variants=(leaky, *spec.operators[0].variants[1:])), tmp_path)


GPU = """
extern "C" __attribute__((visibility("default"))) int32_t SYMBOL_preload() { return 0; }
namespace { int registered() { volatile int x = 3; return x; } }
__attribute__((constructor)) static void register_kernels() { registered(); }
"""


@pytest.mark.parametrize(
    ("source", "allowed"),
    [
        (GPU, True),
        (GPU + "#include <iostream>\nnamespace { std::ostream& out = std::cout; }\n", True),
        (GPU + "namespace { [[gnu::used]] int g = registered(); }\n", False),
    ],
    ids=["registration", "iostream", "another"],
)
def test_what_an_object_for_a_gpu_may_run_at_load(
    spec: LibrarySpec, source: str, allowed: bool, tmp_path: Path
) -> None:
    """nvcc registers kernels by an initialiser, and <iostream> has one before GCC 13."""
    made = linked.variant(tmp_path, linked.GEMM + source, "gpu", target="cuda-ptx_80", level=80, generic=True)
    changed = with_gemm(spec, variants=(*spec.operators[0].variants, made))
    if allowed:
        generate(changed, tmp_path)
    else:
        with pytest.raises(ManifestError, match="'gpu': its object has code that runs when the library is loaded"):
            generate(changed, tmp_path)


def test_an_object_that_runs_at_load(spec: LibrarySpec, tmp_path: Path) -> None:
    source = linked.GEMM + "namespace { int f() { volatile int x = 3; return x; }\n[[gnu::used]] int g = f(); }\n"
    eager = linked.variant(tmp_path, source, "eager", generic=True)
    with pytest.raises(ManifestError, match="'eager': its object has code that runs when the library is loaded"):
        generate(with_gemm(spec, variants=(eager, *spec.operators[0].variants[1:])), tmp_path)
