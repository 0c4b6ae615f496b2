"""From compiler output to the line that matters."""

import pytest

from aot_tune.compile.diagnostics import first_error, is_lasting

LINES = [("gemm/packed.cpp.j2", 10), ("common/simd.h.j2", 3), ("gemm/packed.cpp.j2", 12), ("", 0)]
GCC = """\
candidate.cpp: In function 'int f()':
candidate.cpp:1:5: warning: unused variable 'i'
candidate.cpp:2:9: error: 'lane' was not declared in this scope
candidate.cpp:3:1: error: expected '}'
"""
HEADER = """\
In file included from candidate.cpp:1:
candidate.cpp:3:7:   required from here
/usr/include/c++/12/array:61:22: error: size of array is too large
"""
NVCC = """\
candidate.cu(2): error: identifier "lane" is undefined
  x[0] = lane;
         ^

1 error detected in the compilation of "candidate.cu".
"""
CUTLASS = """\
/a b/include/cute/x.hpp(80): error: static assertion failed with "bad"
          detected during:
            instantiation of class "A<T> [with T=int]" at line 7
            instantiation of class "B<T> [with T=int]" at line 3 of candidate.cu
"""
PTXAS = """\
ptxas info    : 0 bytes gmem
ptxas candidate.ptx, line 23; error   : Instruction 'wgmma.fence' not supported on .target 'sm_80'
ptxas fatal   : Ptx assembly aborted due to errors
"""


@pytest.mark.parametrize(
    ("log", "want"),
    [
        (GCC, "common/simd.h.j2:3: error: 'lane' was not declared in this scope"),
        ("candidate.cpp:77:1: error: x", "candidate.cpp:77: error: x"),  # beyond the map
        ("candidate.cpp:4:1: error: x", "candidate.cpp:4: error: x"),
        (HEADER, "/usr/include/c++/12/array:61: error: size of array is too large (from gemm/packed.cpp.j2:12)"),
        (NVCC, 'common/simd.h.j2:3: error: identifier "lane" is undefined'),
        ("candidate.cu(3): error #20: no", "gemm/packed.cpp.j2:12: error #20: no"),
        ("candidate.cu(3): catastrophic error: no", "gemm/packed.cpp.j2:12: catastrophic error: no"),
        ("candidate.cu:1:10: fatal error: x.h: No such file", "gemm/packed.cpp.j2:10: fatal error: x.h: No such file"),
        (CUTLASS, '/a b/include/cute/x.hpp:80: error: static assertion failed with "bad" (from gemm/packed.cpp.j2:12)'),
        (PTXAS, "ptxas: error: Instruction 'wgmma.fence' not supported on .target 'sm_80'"),
        (
            f"ptxas error   : Entry function '{'k' * 500}' uses too much shared data (0x13880 bytes, 0xc000 max)",
            f"ptxas: error: Entry function '{'k' * 80}...' uses too much shared data (0x13880 bytes, 0xc000 max)",
        ),
    ],
)
def test_the_first_error_is_placed_in_its_template(log: str, want: str) -> None:
    assert first_error(log, LINES) == want
    assert is_lasting(log)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("candidate.cpp:1:10: fatal error: omp.h: No such file or directory", "libgomp"),
        ("g++: fatal error: Killed signal terminated program cc1plus", "AOT_TUNE_JOBS"),
        ("cc1plus: error: bad value ('x86-64-v4') for '-march=' switch", "g++ 11"),
        ("as: o.o: No space left on device\ncandidate.cpp: fatal error: error writing: No space left", "disk space"),
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", "AOT_TUNE_JOBS"),
        ("ptxas fatal   : Memory allocation failure", "Memory allocation failure"),
        ("/include/crt/host_config.h:143:2: error: #error -- unsupported GNU version!", "CUDAHOSTCXX"),
        ("error: no CUTLASS headers found", "nvidia-cutlass"),
        ("ld: o.o: in function g\nld: undefined reference to `f'\nexit 1", "undefined reference to `f'"),
        ("\n  \n", "said nothing"),
    ],
)
def test_known_causes_come_with_a_remedy(log: str, words: str) -> None:
    assert words in first_error(log, LINES)
