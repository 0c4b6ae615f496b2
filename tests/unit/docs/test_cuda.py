"""docs/cuda.md and its tutorial show the example as it is, and names that the code has."""

from __future__ import annotations

import re

import pytest
from places import ROOT

import aot_tune.spec

EXAMPLE = ROOT / "examples" / "cuda_author"
PAGE = (ROOT / "docs" / "cuda.md").read_text()


def flat(text: str) -> str:
    return "".join(text.split())


def test_the_operator_and_its_source_are_those_of_the_example() -> None:
    operator = (EXAMPLE / "templates" / "convolution" / "operator.py").read_text()
    source = (EXAMPLE / "csrc" / "convolution.cu").read_text()
    shown = re.search(r"convolution = CudaFunction\(.*?\n\)\n", PAGE, re.DOTALL)
    assert shown is not None
    assert shown[0] in operator
    head = re.search(r"__global__ void .*?\) \{", PAGE, re.DOTALL)
    assert head is not None
    assert flat(head[0]) in flat(source)
    launcher = re.search(r'Launcher\("csrc/gemv.cu:launch_gemv", [^)]*\)', PAGE)
    assert launcher is not None
    gemv = (EXAMPLE / "templates" / "gemv" / "operator.py").read_text()
    assert flat(launcher[0]).replace('{"rows":M,"columns":K}', "sizes") in flat(gemv)


@pytest.mark.parametrize("page", [PAGE, (ROOT / "docs" / "tutorials" / "cuda-kernel.md").read_text()])
def test_what_is_written_is_declared(page: str) -> None:
    names = set(re.findall(r"\b(CudaFunction|Launcher|Struct|Code|Stream|Buffer|DTypeOf|CompileOptions)\(", page))
    assert "CudaFunction" in names
    for name in names:
        assert name in aot_tune.spec.__all__, name
