"""Names, defaults and texts of an operator that would not be ones in generated code: refused early, or written so."""

import dataclasses
import inspect
import math
import subprocess
import sysconfig
from pathlib import Path

import linked
import pytest

from aot_tune.link import LibrarySpec, OperatorTable
from aot_tune.link.interfaces import python_signature, render_header, render_module, render_tables
from aot_tune.spec import Attribute, Operator, Scalar, Tensor, dims
from aot_tune.spec.operator import check_unique_operators
from aot_tune.support.errors import SpecError
from aot_tune.support.installed_paths import BINDING, RUNTIME

(N,) = dims("N")
EXTREMES = (
    Scalar("most", "f32", math.inf),
    Scalar("least", "f64", -math.inf),
    Scalar("nothing", "f32", math.nan),
    Scalar("lowest", "i64", -(2**63)),
    Scalar("low", "i32", -(2**31)),
)


def test_names_of_the_librarys_own() -> None:
    for name in ("manifest", "preload", "last_error", "is_tuned", "explain", "operators", "CallError"):
        with pytest.raises(SpecError, match=f"operator '{name}' has a reserved name"):
            dataclasses.replace(linked.norm_operator(), name=name)
    for name in ("size", "buffer", "tuned", "workspace", "made", "taken"):
        for make in (lambda n: Tensor(n, (N,)), Scalar, lambda n: Attribute(n, ("x",))):
            with pytest.raises(SpecError, match=f"'{name}' is a reserved name"):
                make(name)
    check_unique_operators(["gemm", "gemm_work", "norm"])
    with pytest.raises(SpecError, match="'gemm_workspace' has the name of a function of operator 'gemm'"):
        check_unique_operators(["gemm_workspace", "norm", "gemm"])


def extreme_library() -> LibrarySpec:
    operator = dataclasses.replace(linked.norm_operator(), scalars=EXTREMES, documentation="x /* of *.txt */ \\")
    return LibrarySpec(output="extremes", operators=(OperatorTable(operator=operator, variants=()),))


def compiled(text: str, folder: Path, *flags: str, name: str = "source.cpp") -> None:
    (folder / name).write_text(text)
    run = ["gcc" if name.endswith(".c") else "g++", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    subprocess.run([*run, f"-I{RUNTIME / 'include'}", f"-I{folder}", *flags, name], check=True, cwd=folder)


def test_defaults_that_have_no_literal(tmp_path: Path) -> None:
    spec = extreme_library()
    (tmp_path / spec.header).parent.mkdir(exist_ok=True)
    (tmp_path / spec.header).write_text(render_header(spec))
    (tmp_path / "operator_tables.h").write_text(render_tables(spec))
    includes = [BINDING, RUNTIME, sysconfig.get_paths()["include"]]
    compiled(render_module(spec), tmp_path, "-std=c++17", *(f"-I{folder}" for folder in includes))
    for name, standard in (("a.cpp", "c++20"), ("a.c", "c11")):
        compiled(f'#include "{spec.header}"\n#include "{spec.header}"\n', tmp_path, f"-std={standard}", name=name)
    operator: Operator = spec.operators[0].operator
    signature = inspect._signature_fromstr(inspect.Signature, len, f"({python_signature(operator)})")  # type: ignore[attr-defined]
    defaults = {s.name: signature.parameters[s.name].default for s in EXTREMES}
    assert math.isnan(defaults.pop("nothing"))
    assert defaults == {s.name: s.default for s in EXTREMES if s.name != "nothing"}
