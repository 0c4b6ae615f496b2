"""Candidates that do not compile, compile for ever, flood the log, or crash the compiler."""

import os
import time
from pathlib import Path

import pytest
from processes import program

from aot_tune.compile import ObjectCache, compile_all, programs, target_by_name, toolchain_for
from aot_tune.support.errors import ToolchainError

pytestmark = pytest.mark.slow

TARGET = target_by_name("cpu-x86-64")
ENDLESS = (
    "template <unsigned long N, bool B> struct F { static const unsigned long v = F<N / 2, !B>::v + F<N / 2 + 1, B>::v"
    " + F<N / 3, B>::v; };\ntemplate <bool B> struct F<0, B> { static const unsigned long v = 1; };\n"
    "constexpr unsigned long work(unsigned long n) { unsigned long s = 0;"
    " for (unsigned long i = 0; i < n; ++i) s += i * i; return s; }\n"
    "static_assert(work(20000000) != 1);\nint SYMBOL_launch;\n"
)


@pytest.fixture
def compiler(tmp_path: Path):
    """A compiler of a test's own making: `compiler(script)` gives its toolchain; the script ends in the real one."""

    def make(script: str, limit: str = ""):
        first = f'case " $* " in *" -c "*)\necho run >> "{tmp_path}/runs"\n{script}\n;; esac'
        path = program(tmp_path / "fake-g++", f'{first}\nexec g++ {limit} "$@"')
        return toolchain_for("cxx", {"PATH": os.environ["PATH"], "CXX": str(path)})

    return make


def runs(tmp_path: Path) -> int:
    return len((tmp_path / "runs").read_text().splitlines())


def test_a_bad_candidate_costs_only_itself(tmp_path: Path, make_rendered) -> None:
    bad = make_rendered(1, "int SYMBOL_launch() {\n    return missing;\n}\n")
    good = make_rendered(2)
    objects = compile_all(ObjectCache(tmp_path / "c", toolchain_for("cxx")), [bad, good], 2)
    assert objects[good.candidate.id].status == "ok"
    failed = objects[bad.candidate.id]
    assert failed.status == "compile-failed"
    assert failed.error == "test/kernel.cpp.j2:102: error: 'missing' was not declared in this scope"


LAUNCH = 'extern "C" __attribute__((visibility("default"))) int SYMBOL_launch(float* x) {{ {} return 0; }}\n'
BESIDE_OTHERS = (
    ("float helper(float x) { return x; }", "", "defines the global symbol '_Z6helperf': put the template's helpers"),
    ("template <class T> T f(T x) { return x; }\ntemplate int f(int);", "", "defines the global symbol '_Z1fIiET_S0_'"),
    ("static int f() { volatile int v = 3; return v; }\nstatic int g = f();", "x[0] = g;", "has code that runs when"),
    (
        "__attribute__((destructor)) static void f() { volatile int v = 3; }",
        "",
        "has code that runs when the library is",
    ),
    ("", 'asm volatile("vpxord %zmm0, %zmm0, %zmm0");', "`vpxord %zmm0,%zmm0,%zmm0` is above cpu-x86-64: kernels for"),
    (
        '__attribute__((target("avx2"))) static void f(float* x) { for (int k = 0; k < 8; ++k) x[k] += 1; }',
        "f(x);",
        "` is above cpu-x86-64",
    ),
    ("", 'int v = 1; asm volatile("popcnt %0, %0" : "+r"(v));', "`popcnt %eax,%eax` is above cpu-x86-64"),
    ('// asm, target("avx2"): y', 'asm volatile("" ::: "memory"); x[0] = __builtin_ctz((int)x[1]);', ""),
)


def test_row_85_what_no_library_may_have_costs_its_candidate_when_it_is_compiled(tmp_path: Path, make_rendered) -> None:
    """Names and code of one candidate in place of another's, and instructions that a CPU of its target may lack."""
    made = [make_rendered(n, f"{head}\n{LAUNCH.format(body)}") for n, (head, body, _) in enumerate(BESIDE_OTHERS)]
    objects = compile_all(ObjectCache(tmp_path / "c", toolchain_for("cxx")), made, 2)
    for one, (_, _, told) in zip(made, BESIDE_OTHERS, strict=True):
        found = objects[one.candidate.id]
        assert (found.status, found.lasting) == ("compile-failed" if told else "ok", True), found.error
        assert told in found.error


def test_a_flood_of_warnings_is_cut_and_the_error_found(tmp_path: Path, make_rendered) -> None:
    source = "".join(f"#warning number {n} {'x' * 80}\n" for n in range(3000)) + "int f() { return missing; }\n"
    found = ObjectCache(tmp_path / "c", toolchain_for("cxx")).get(make_rendered(1, source), TARGET)
    assert found.error == "test/kernel.cpp.j2:3101: error: 'missing' was not declared in this scope"
    assert len(found.log) < 70_000


def test_a_compile_that_takes_for_ever(tmp_path: Path, compiler, make_rendered, monkeypatch) -> None:
    """It computes all the time: its own fault, remembered with the limit it had."""
    monkeypatch.setattr(programs, "BUSY_SHARE", 0.05)  # the machine that runs the tests may be busy
    chain = compiler("", "-fconstexpr-loop-limit=2147483647 -fconstexpr-ops-limit=2147483647")
    cache = ObjectCache(tmp_path / "c", chain, timeout=1.5)
    began = time.monotonic()
    found = cache.get(make_rendered(1, ENDLESS), TARGET)
    assert time.monotonic() - began < 20
    assert found.status == "timeout"
    assert "longer than 1.5 s" in found.error
    assert ObjectCache(tmp_path / "c", chain, timeout=1.5).get(make_rendered(1, ENDLESS), TARGET).cached
    assert runs(tmp_path) == 1
    assert not ObjectCache(tmp_path / "c", chain, timeout=2.0).get(make_rendered(1, ENDLESS), TARGET).cached
    assert runs(tmp_path) == 2


def test_a_compile_that_was_held_up_is_tried_again(tmp_path: Path, compiler, make_rendered) -> None:
    """It waits all the time, as on a machine under load: nothing is remembered."""
    chain = compiler(f'if [ ! -e "{tmp_path}/second" ]; then touch "{tmp_path}/second"; sleep 60; fi')
    cache = ObjectCache(tmp_path / "c", chain, timeout=1.0)
    assert cache.get(make_rendered(1), TARGET).status == "timeout"
    assert not list((tmp_path / "c" / "objects").glob("*/*"))
    assert ObjectCache(tmp_path / "c", chain, timeout=30).get(make_rendered(1), TARGET).status == "ok"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("kill -SEGV $$", "signal 11"),
        ("echo 'candidate.cpp:1:1: internal compiler error: Segmentation fault'; exit 1", "internal compiler error"),
        ("echo 'g++: fatal error: Killed signal terminated program cc1plus'; exit 1", "AOT_TUNE_JOBS"),
        ("exit 1", "said nothing"),
    ],
)
def test_a_compiler_that_dies_is_a_status_and_not_remembered(
    tmp_path: Path, compiler, make_rendered, script: str, words: str
) -> None:
    chain = compiler(script)
    for _ in range(2):
        found = ObjectCache(tmp_path / "c", chain).get(make_rendered(1), TARGET)
        assert found.status == "compile-failed"
        assert words in found.error
        assert not found.cached
    assert runs(tmp_path) == 2


def test_a_compile_that_eats_memory_is_stopped(tmp_path: Path, compiler, make_rendered) -> None:
    eater = "import time; time.sleep(0.3); x = bytearray(6 << 30)"
    chain = compiler(f'python3 -c "{eater}" || {{ echo "cc1plus: out of memory allocating 6 GiB"; exit 1; }}; exit 3')
    found = ObjectCache(tmp_path / "c", chain).get(make_rendered(1), TARGET)
    assert found.status == "compile-failed"
    assert "out of memory" in found.log
    assert not list((tmp_path / "c" / "objects").glob("*/*"))


def test_a_compiler_that_cannot_be_started(tmp_path: Path, make_rendered) -> None:
    path = tmp_path / "not-for-this-machine"
    path.write_bytes(b"\x7fELF nonsense")
    path.chmod(0o755)
    chain = toolchain_for("cxx", {"PATH": os.environ["PATH"], "CXX": str(path)})
    with pytest.raises(ToolchainError, match="cannot be started") as caught:
        compile_all(ObjectCache(tmp_path / "c", chain), [make_rendered(1)], 1)
    assert "CXX" in caught.value.fix


@pytest.mark.parametrize("script", ["exit 0", "echo 'int f;' > object.o; : > candidate.d; exit 0", "{cut}"])
def test_a_compiler_that_hides_its_failure_costs_the_candidate_alone(
    tmp_path: Path, compiler, make_rendered, script: str
) -> None:
    cut = 'g++ "$@" && head -c 700 object.o > cut && mv cut object.o; exit 0'  # as on a disk that ran full
    chain = compiler(f"if grep -q hidden candidate.cpp; then {script.format(cut=cut)}; fi")
    bad = make_rendered(1, 'extern "C" int SYMBOL_launch() { return 1; }  // hidden\n')
    good = make_rendered(2)
    cache = ObjectCache(tmp_path / "c", chain)
    objects = compile_all(cache, [bad, good], 1)
    assert objects[good.candidate.id].status == "ok"
    assert objects[bad.candidate.id].status == "compile-failed"
    assert "made no whole object" in objects[bad.candidate.id].error
    compile_all(cache, [bad, good], 1)
    assert cache.counters.compiled == 3  # what failed is tried again


def test_folders_that_a_killed_compiler_leaves_are_not_kept(tmp_path: Path, compiler, make_rendered) -> None:
    chain = compiler("mkdir left; : > left/file; while :; do :; done")
    found = ObjectCache(tmp_path / "c", chain, timeout=0.5).get(make_rendered(1), TARGET)
    assert found.status == "timeout"
    assert list((tmp_path / "c").rglob("left")) == []
