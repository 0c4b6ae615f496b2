"""CUTLASS is asked for only where a kernel of the wanted libraries includes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot_tune.plan.requirements import uses_cutlass

INCLUDES = "{{ prelude() }}\n#include <cutlass/cutlass.h>\n"


@pytest.fixture
def bundled(tmp_path: Path) -> Path:
    """Bundled templates of which one operator's kernel includes CUTLASS."""
    root = tmp_path / "bundled"
    add(root, "gemm", INCLUDES)
    add(root, "softmax", "{{ prelude() }}\n")
    return root


def add(root: Path, operator: str, text: str, name: str = "kernel.cu.j2") -> None:
    """An operator with a kernel's source."""
    folder = root / operator
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "operator.py").write_text("")
    (folder / name).write_text(text)


def library(project: Path, *arguments: str, name: str = "CMakeLists.txt") -> Path:
    """A project of one library."""
    project.mkdir(exist_ok=True)
    (project / name).write_text(f"project(p)\naot_tune_add_library(\n  ops {' '.join(arguments)} # a comment (\n)\n")
    return project


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("", True),
        ("OPERATORS softmax", False),
        ("OPERATORS gemm softmax MODULE ops", True),
        ('OPERATORS "softmax" TEMPLATES bundled', False),
        ("TEMPLATES templates", False),
        ('TEMPLATES "${CMAKE_CURRENT_SOURCE_DIR}/templates"', False),
        ("TEMPLATES templates bundled", True),
        ("TEMPLATES templates bundled OPERATORS softmax", False),
        ("TEMPLATES ${ROOTS}", True),
        ("OPERATORS ${ALL}", True),
        ("${ARGUMENTS} OPERATORS softmax", True),
    ],
)
def test_of_bundled_operators(tmp_path: Path, bundled: Path, arguments: str, wanted: bool) -> None:
    project = library(tmp_path / "project", arguments)
    add(project / "templates", "own", "{{ prelude() }}\n// like cutlass/gemm\n")
    assert uses_cutlass(project, bundled) == wanted


@pytest.mark.parametrize(
    ("text", "name", "wanted"),
    [
        (INCLUDES, "kernel.cu.j2", True),
        ('#  include "cute/tensor.hpp"\n', "shared.cuh", True),
        ("// #include <cutlass/cutlass.h>\n", "kernel.cu.j2", False),
        (INCLUDES, "notes.md", False),
    ],
)
def test_of_a_projects_own_kernels(tmp_path: Path, bundled: Path, text: str, name: str, wanted: bool) -> None:
    project = library(tmp_path / "project", "TEMPLATES templates")
    add(project / "templates", "own", text, name)
    assert uses_cutlass(project, bundled) == wanted
    library(project, "TEMPLATES templates OPERATORS another")
    assert not uses_cutlass(project, bundled)
    (project / "templates" / "common").mkdir()  # no operator's own: any of them may include it
    (project / "templates" / "common" / name).write_text(text)
    assert uses_cutlass(project, bundled) == wanted
