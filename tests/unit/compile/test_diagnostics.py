"""From compiler output to the line that matters."""

from __future__ import annotations

import pytest

from aot_tune.compile.diagnostics import first_error, is_lasting

LINES = [("gemm/packed.cpp.j2", 10), ("common/simd.h.j2", 3), ("gemm/packed.cpp.j2", 12), ("", 0)]


def test_first_error_is_placed_in_its_template() -> None:
    log = (
        "candidate.cpp: In function 'int f()':\n"
        "candidate.cpp:1:5: warning: unused variable 'i'\n"
        "candidate.cpp:2:9: error: 'lane' was not declared in this scope\n"
        "candidate.cpp:3:1: error: expected '}'\n"
    )
    assert first_error(log, LINES) == "common/simd.h.j2:3: error: 'lane' was not declared in this scope"


def test_lines_beyond_the_map_keep_the_name_of_the_source() -> None:
    assert first_error("candidate.cpp:77:1: error: x", LINES) == "candidate.cpp:77: error: x"
    assert first_error("candidate.cpp:4:1: error: x", LINES) == "candidate.cpp:4: error: x"


def test_an_error_in_a_header_names_who_asked() -> None:
    log = (
        "In file included from candidate.cpp:1:\n"
        "candidate.cpp:3:7:   required from here\n"
        "/usr/include/c++/12/array:61:22: error: size of array is too large\n"
    )
    want = "/usr/include/c++/12/array:61: error: size of array is too large (from gemm/packed.cpp.j2:12)"
    assert first_error(log, LINES) == want


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("candidate.cpp:1:10: fatal error: omp.h: No such file or directory", "libgomp"),
        ("g++: fatal error: Killed signal terminated program cc1plus", "AOT_TUNE_JOBS"),
        ("cc1plus: error: bad value ('x86-64-v4') for '-march=' switch", "g++ 11"),
        (
            "as: object.o: No space left on device\ncandidate.cpp: fatal error: error writing: No space left",
            "disk space",
        ),
    ],
)
def test_known_causes_come_with_a_remedy(log: str, words: str) -> None:
    assert words in first_error(log, LINES)


@pytest.mark.parametrize(
    ("log", "want"),
    [
        (
            (
                'candidate.cu(2): error: identifier "lane" is undefined\n  x[0] = lane;\n         ^\n\n'
                '1 error detected in the compilation of "candidate.cu".'
            ),
            'common/simd.h.j2:3: error: identifier "lane" is undefined',
        ),
        ("candidate.cu(3): error #20: no", "gemm/packed.cpp.j2:12: error #20: no"),
        ("candidate.cu(3): catastrophic error: no", "gemm/packed.cpp.j2:12: catastrophic error: no"),
        ("candidate.cu:1:10: fatal error: x.h: No such file", "gemm/packed.cpp.j2:10: fatal error: x.h: No such file"),
        (
            (
                '/a b/include/cute/x.hpp(80): error: static assertion failed with "bad"\n'
                "          detected during:\n"
                '            instantiation of class "A<T> [with T=int]" at line 7\n'
                '            instantiation of class "B<T> [with T=int]" at line 3 of candidate.cu\n'
            ),
            '/a b/include/cute/x.hpp:80: error: static assertion failed with "bad" (from gemm/packed.cpp.j2:12)',
        ),
        (
            (
                "ptxas info    : 0 bytes gmem\n"
                "ptxas candidate.ptx, line 23; error   : Instruction 'wgmma.fence' not supported on .target 'sm_80'\n"
                "ptxas fatal   : Ptx assembly aborted due to errors"
            ),
            "ptxas: error: Instruction 'wgmma.fence' not supported on .target 'sm_80'",
        ),
        (
            f"ptxas error   : Entry function '{'k' * 500}' uses too much shared data (0x13880 bytes, 0xc000 max)",
            f"ptxas: error: Entry function '{'k' * 80}...' uses too much shared data (0x13880 bytes, 0xc000 max)",
        ),
    ],
)
def test_forms_of_nvcc(log: str, want: str) -> None:
    assert first_error(log, LINES) == want
    assert is_lasting(log)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", "AOT_TUNE_JOBS"),
        ("ptxas fatal   : Memory allocation failure", "Memory allocation failure"),
        (
            "/include/crt/host_config.h:143:2: error: #error -- unsupported GNU version! gcc versions later than 15",
            "CUDAHOSTCXX",
        ),
        ("error: no CUTLASS headers found", "nvidia-cutlass"),
    ],
)
def test_failures_of_nvcc_with_a_remedy(log: str, words: str) -> None:
    assert words in first_error(log, LINES)


def test_linker_and_silent_failures() -> None:
    assert "undefined reference to `f'" in first_error("ld: o.o: in function g\nld: undefined reference to `f'\nexit 1")
    assert "said nothing" in first_error("\n  \n")
