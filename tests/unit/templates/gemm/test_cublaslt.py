"""Vendor variants that call cuBLASLt: rendered, compiled, and called without the library and with a stand-in for it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from bundled import OPERATORS
from cublaslt_stand_in import RECORDED, TARGET, UNAVAILABLE, build_stub, call, compile_shared

from aot_tune.compile.toolchain import toolchain_for
from aot_tune.link.elf import initialiser_count, symbols_of
from aot_tune.render import Rendered, Renderer, candidate_for, requirements
from aot_tune.spec import problem
from aot_tune.spec.expr import all_of
from aot_tune.spec.load_operators import bundled_templates
from aot_tune.support.errors import RenderError

OPERATOR = OPERATORS["gemm"]
KERNEL = OPERATOR.kernel("cublaslt")


def render(config: dict[str, Any], dtype: str = "f32") -> Rendered:
    candidate = candidate_for(OPERATOR, KERNEL, config, TARGET, None, {"T": dtype})
    return Renderer([bundled_templates()]).render(OPERATOR, candidate, TARGET)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """Compiled candidates by name: the library's own choice, and a recorded algorithm."""
    found = {}
    for name, config in (("own", {"ALGO": -1}), ("recorded", RECORDED)):
        rendered = render(config)
        found[name] = (compile_shared(rendered, tmp_path_factory.mktemp(name)), rendered.symbol)
    return found


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stub(tmp_path_factory.mktemp("stub"))


PLAIN = {"m": 5, "n": 12, "k": 7}


def test_a_recorded_algorithm_needs_its_version() -> None:
    with pytest.raises(RenderError, match="VERSION"):
        render({"ALGO": 66, "TILE": 20})


def test_attributes_that_a_config_lacks_are_left_at_the_librarys_defaults() -> None:
    source = render({"ALGO": 66, "TILE": 20, "VERSION": 130100}).source
    assert "{kTileId, 4, 20}" in source
    for name in ("kStagesId", "kReductionScheme", "kSwizzle", "kCustomOption", "kInnerShapeId", "kClusterShapeId"):
        assert f"{{{name}," not in source


def test_a_variant_is_recognised_by_its_algorithm_alone(tmp_path: Path) -> None:
    configs = ({"ALGO": -1}, RECORDED, RECORDED | {"VERSION": 130200})
    assert len({render(c).symbol for c in configs}) == len({render(c).digest for c in configs}) == 3
    shutil.copytree(bundled_templates(), tmp_path / "templates")
    template = tmp_path / "templates" / "gemm" / "vendor" / "cublaslt_product.h.j2"
    template.write_text(template.read_text().replace("kWays = 4", "kWays = 8"))
    candidate = candidate_for(OPERATOR, KERNEL, RECORDED, TARGET, None, {"T": "f32"})
    changed = Renderer([tmp_path / "templates"]).render(OPERATOR, candidate, TARGET)
    assert changed.source != render(RECORDED).source
    assert changed.digest == render(RECORDED).digest


def test_guards_let_through_what_means_the_same_and_nothing_else() -> None:
    guards = requirements(OPERATOR, candidate_for(OPERATOR, KERNEL, {"ALGO": -1}, TARGET, None, {"T": "bf16"}))

    def allowed(**facts: Any) -> bool:
        made = problem(**{"M": 16, "N": 64, "K": 32, "dtypes": {"T": "bf16"}} | facts)
        return all_of(guards, OPERATOR.facts(made))

    assert allowed()
    assert allowed(order={"b": (1, 0)})
    assert allowed(order={"a": (1, 0)})
    assert allowed(present=("bias", "residual"))
    assert allowed(present=("bias",), attributes={"activation": "gelu_tanh"})
    assert allowed(present=("bias",), attributes={"activation": "relu"})
    assert allowed(strides={"a": (40, 1), "out": (72, 1)})
    assert not allowed(attributes={"activation": "gelu"})
    assert not allowed(attributes={"activation": "silu"})
    assert not allowed(present=("residual",), attributes={"activation": "relu"})
    assert not allowed(strides={"a": (64, 2)})
    assert not allowed(strides={"a": (0, 1)})
    assert not allowed(order={"out": (1, 0)})
    assert not allowed(strides={"bias": (2,)}, present=("bias",))
    assert not allowed(alignment={"b": 8})
    assert not allowed(dtypes={"T": "f16"})


def test_without_the_library_nothing_is_done_and_the_note_says_so(built: dict[str, tuple[Path, str]]) -> None:
    [made, answer] = call(built["own"], None, [{"preload": True}, PLAIN])
    assert made["preload"] == UNAVAILABLE
    assert (answer["workspace"], answer["bytes"], answer["launch"]) == (UNAVAILABLE, 0, UNAVAILABLE)
    assert not answer["touched"]
    assert answer["note"] == "cuBLASLt not found (libcublasLt.so.13, libcublasLt.so.12)"


def test_a_library_that_lacks_a_function_is_none(built: dict[str, tuple[Path, str]], tmp_path: Path) -> None:
    [answer] = call(built["own"], build_stub(tmp_path, "-DLACKS_MATMUL"), [PLAIN])
    assert (answer["workspace"], answer["launch"]) == (UNAVAILABLE, UNAVAILABLE)
    assert answer["note"] == "the cuBLASLt that was found lacks cublasLtMatmul"


def test_a_handle_that_cannot_be_made_is_not_asked_for_again(built: dict[str, tuple[Path, str]], stub: Path) -> None:
    calls = [{"set": ["create_status", 1]}, PLAIN, {"set": ["create_status", 0]}, PLAIN, PLAIN | {"device": 1}]
    first, second, other = call(built["own"], stub, calls)
    assert first["workspace"] == second["workspace"] == UNAVAILABLE
    assert first["note"] == "cuBLASLt 13.1.0: cublasLtCreate failed with 1"
    assert [line.split()[0] for line in first["log"]] == ["create"]
    assert second["log"] == []
    assert other["launch"] == 0


LAYOUTS = [
    {},
    {"a_by_columns": True},
    {"b_by_columns": False},
    {"a_by_columns": True, "b_by_columns": False},
    {"pad": 4},
    {"a_by_columns": True, "pad": 4},
    {"b_by_columns": False, "pad": 4},
    {"bias": True},
    {"residual": True, "pad": 4},
    {"residual": True, "bias": True},
    {"activation": "relu"},
    {"activation": "relu", "bias": True, "pad": 4},
    {"activation": "gelu_tanh"},
    {"activation": "gelu_tanh", "bias": True},
]


def test_products_are_right_in_every_layout_and_epilogue(built: dict[str, tuple[Path, str]], stub: Path) -> None:
    for name in ("own", "recorded"):
        for layout, answer in zip(LAYOUTS, call(built[name], stub, [PLAIN | one for one in LAYOUTS]), strict=True):
            assert (answer["workspace"], answer["launch"]) == (0, 0), layout
            assert answer["error"] < 1e-4, layout


def test_the_recorded_algorithm_runs_with_all_its_attributes(built: dict[str, tuple[Path, str]], stub: Path) -> None:
    [answer] = call(built["recorded"], stub, [PLAIN | {"stream": 48}])
    # In the order of the library's numbers: tile, split, reduction, swizzle, option, stages, inner shape, cluster.
    [matmul] = [line for line in answer["log"] if line.startswith("matmul")]
    assert matmul.startswith("matmul id=66 20 3 2 1 5 36 4 9 ")
    assert "workspace=4096 stream=48" in matmul
    assert answer["bytes"] == 4096
    assert answer["note"] == "cuBLASLt 13.1.0: the recorded algorithm"


def test_another_version_uses_its_own_heuristic(built: dict[str, tuple[Path, str]], tmp_path: Path) -> None:
    [answer] = call(built["recorded"], build_stub(tmp_path, "-DVERSION=130205"), [PLAIN])
    assert answer["launch"] == 0
    assert not [line for line in answer["log"] if line.startswith("check")]
    assert [line for line in answer["log"] if line.startswith("matmul id=900 ")]
    assert answer["note"] == "cuBLASLt 13.2.5, recorded with 13.1.0: its own heuristic"


@pytest.mark.parametrize("fault", [["check_status", 15], ["check_workspace", (32 << 20) + 1]])
def test_a_call_that_the_algorithm_cannot_serve(
    built: dict[str, tuple[Path, str]], stub: Path, fault: list[Any]
) -> None:
    [answer] = call(built["recorded"], stub, [{"set": fault}, PLAIN])
    assert (answer["launch"], answer["bytes"]) == (0, 1024)
    assert [line for line in answer["log"] if line.startswith("matmul id=900 ")]
    assert answer["note"] == "cuBLASLt 13.1.0: its own heuristic, the recorded algorithm does not take this call"


@pytest.mark.parametrize("fault", [["heuristic_status", 15], ["heuristic_count", 0]])
def test_a_call_that_no_algorithm_serves(built: dict[str, tuple[Path, str]], stub: Path, fault: list[Any]) -> None:
    first, second = call(built["own"], stub, [{"set": fault}, PLAIN, {"set": ["heuristic_status", 0]}, PLAIN])
    assert (first["workspace"], first["launch"]) == (UNAVAILABLE, UNAVAILABLE)
    assert not first["touched"]
    assert first["note"] == "cuBLASLt 13.1.0 has no algorithm for this call"
    assert len([line for line in first["log"] if line.startswith("heuristic")]) == 1
    assert second["log"] == []  # remembered


def test_a_plan_is_made_once_and_only_its_first_launch_is_relaxed(
    built: dict[str, tuple[Path, str]], stub: Path
) -> None:
    first, second = call(built["recorded"], stub, [PLAIN, PLAIN])
    assert [line.split()[0] for line in first["log"]] == ["create", "check", "matmul"]
    assert all(line.endswith("mode=2") for line in first["log"])
    assert [line.split()[0] for line in second["log"]] == ["matmul"]
    assert second["log"][0].endswith("mode=0")


def test_plans_are_kept_apart_and_their_number_is_bounded(built: dict[str, tuple[Path, str]], stub: Path) -> None:
    shapes = [PLAIN | {"m": 1 + i} for i in range(150)]
    answers = call(built["own"], stub, [*shapes, *shapes])
    assert all(a["launch"] == 0 and a["error"] < 1e-4 for a in answers)
    assert sum(line.startswith("create") for a in answers for line in a["log"]) == 1


def test_what_the_heuristic_is_asked(built: dict[str, tuple[Path, str]], stub: Path) -> None:
    calls = [PLAIN | {"dtype": "f32"}, PLAIN | {"dtype": "bf16"}, PLAIN | {"dtype": "f16", "math": "tf32"}]
    calls.append(PLAIN | {"dtype": "f32", "math": "tf32"})
    answers = call(built["own"], stub, calls)
    asked = [line for a in answers for line in a["log"] if line.startswith("heuristic")]
    limits = [f"heuristic limit={32 << 20} reduction={r} alignment=16,16,16,16" for r in (7, 2, 2, 7)]
    assert asked == limits
    ran = [line for a in answers for line in a["log"] if line.startswith("matmul")]
    kinds = [line[line.index("type=") : line.index(" epilogue")] for line in ran]
    assert kinds == ["type=0 compute=68", "type=14 compute=68", "type=2 compute=68", "type=0 compute=77"]


def test_too_small_a_workspace_is_refused(built: dict[str, tuple[Path, str]], stub: Path) -> None:
    [answer] = call(built["recorded"], stub, [PLAIN | {"room": 4095}])
    assert (answer["workspace"], answer["launch"]) == (0, 7)
    assert not answer["touched"]


def test_preload_makes_the_handle_of_the_current_device(built: dict[str, tuple[Path, str]], stub: Path) -> None:
    made, again, answer = call(built["own"], stub, [{"preload": True}, {"preload": True}, PLAIN | {"device": 1}])
    assert made["preload"] == again["preload"] == 0
    assert made["log"] == ["create mode=2"]
    assert [line.split()[0] for line in answer["log"]] == ["heuristic", "matmul"]


def test_a_wheel_beside_the_package_is_found(built: dict[str, tuple[Path, str]], tmp_path: Path) -> None:
    build_stub(tmp_path / "nvidia" / "cublas" / "lib", "-DVERSION=120903", name="libcublasLt.so.12", driver=False)
    (tmp_path / "package" / "lib").mkdir(parents=True)
    copy = Path(shutil.copy(built["recorded"][0], tmp_path / "package" / "lib" / "ops.so"))
    [answer] = call((copy, built["recorded"][1]), None, [PLAIN])
    assert answer["launch"] == 0
    assert answer["error"] < 1e-4
    assert answer["note"] == "cuBLASLt 12.9.3, recorded with 13.1.0: its own heuristic"


def test_objects_define_only_their_functions_and_run_nothing_when_loaded(tmp_path: Path) -> None:
    rendered = render(RECORDED, "bf16")
    compile_shared(rendered, tmp_path)
    data = (tmp_path / "candidate.o").read_bytes()
    names = {f"{rendered.symbol}_{f}" for f in ("workspace", "launch", "preload", "note")}
    assert symbols_of(data).defined == names
    assert initialiser_count(data) == 0


def test_the_kernel_compiles_for_every_cuda_target_without_a_cuda_compiler() -> None:
    environ = dict(os.environ) | {"CUDA_HOME": os.devnull, "NVCC": os.devnull}
    toolchain = toolchain_for("cublaslt", environ)
    recipes = [toolchain.recipe(t) for t in toolchain.targets()]
    assert all(r == recipes[0] for r in recipes)
    assert "-march=x86-64" in recipes[0]["flags"]  # type: ignore[operator]
    assert toolchain.identity() == toolchain_for("cxx").identity()
    assert [t.name for t in toolchain.targets()] == [t.name for t in toolchain_for("nvcc").targets()]
