"""Functions of sources as kernels: what is read of C++ and CUDA, and what of a declaration contradicts it."""

from pathlib import Path

import pytest
from authors import project

from aot_tune.spec import CudaFunction, Kernel, Launcher, package_folder
from aot_tune.spec.load_operators import load_operator
from aot_tune.spec.native_function import SourceFunction, source_functions
from aot_tune.support.errors import SpecError

SOURCE = """
#include "part.h"
namespace ops {
template <typename T, int UNROLL>
__global__ void scale(T* out, const T* x, long stride, int width, float factor) { static_assert(THREADS > 0); }
void on_host(float* out, const float* x, int width, cudaStream_t stream) {}
}
"""
SOURCES = {"csrc/own.cu": SOURCE, "csrc/part.h": "inline int part() { return DEEP; }"}
RIGHT = """(Kernel("generic", function=CudaFunction(
    "csrc/own.cu:scale", {"stride": stride("x", 0), "width": D}, grid=R, block=32,
    template={"T": DTypeOf("x")}), listed=table("UNROLL THREADS", (1, 32)), generic=True),)"""


def load(folder: Path, kernels: str) -> Kernel:
    return load_operator(project(folder, kernels, SOURCES)).kernel("generic")


LISTED = 'table("UNROLL THREADS", (1, 32))'
ARGUMENTS = '{"stride": stride("x", 0), "width": D}'
TYPE = 'DTypeOf("x")'
REFUSED = [
    ("cu:scale", "cu:scales", ["there is no function 'scales' in csrc/own.cu", "ops::scale"]),
    ("csrc/own.cu", "own.cu", ["there is no file 'own.cu'", "write 'csrc/own.cu'"]),
    ('"width": D', '"factor": 2.0', ["nothing is passed as parameter 'width'", "add 'width' to the arguments"]),
    ('"width": D', '"widths": D, "width": D', ["has no parameter 'widths'"]),
    (LISTED, LISTED.replace("THREADS", "THREADS width").replace("32", "32, 4"),
     ["'width' is passed twice, as a macro and as an argument"]),
    (LISTED, LISTED.replace("THREADS", "THREADZ"), ["csrc/own.cu never uses the macro 'THREADZ'", "'THREADS'"]),
    ("grid=R", 'grid=dim("Q")', ["csrc/own.cu:scale': grid uses 'Q', which is no dim here"]),
    (f'template={{"T": {TYPE}}}', "template={}", ["nothing is given for 'T' of its template"]),
    (TYPE, 'DTypeOf("y")', ["there is no tensor 'y'"]),
    (f'"T": {TYPE}', f'"T": {TYPE}, "UNROLL": DTypeOf("y")', ["there is no tensor 'y'"]),
    ('"width": D', '"width": "N * 2"', ["for an expression of C++ write Code('N * 2')"]),
    (TYPE, 'Code("Type<{T}>", {"T": DTypeOf("y")})', ["there is no tensor 'y'"]),
    (TYPE, 'Code("Type<T>", {"T": 1})', ["'Type<T>' has no placeholder for 'T'"]),
    (TYPE, 'Code("Type<{N}>", {"N": parameter("DEEP")})', ["uses 'parameter.DEEP'"]),
    ("cu:scale", "cu:on_host", ["'ops::on_host' in csrc/own.cu is no __global__ function", "Launcher"]),
    (ARGUMENTS, '("out", "x", D)', ["has 5 parameters, and 3 arguments are listed"]),
    ("generic=True", 'generic=True, compile=CompileOptions(include_directories=("nowhere",))',
     ["there is no include folder 'nowhere'"]),
    (f'"T": {TYPE}}}', f'"T": {TYPE}, "UNROLL": D}}', ["template argument 'UNROLL' is D, which only a call knows"]),
    *((f'"T": {TYPE}}}', f'"T": {TYPE}, "UNROLL": {name}("multiprocessors")}}',
       ['uses device("multiprocessors")', "a target is an architecture"]) for name in ("device", "target")),
]  # fmt: skip
TAKEN = [
    (LISTED, 'table("UNROLL THREADS DEEP", (1, 32, 3))'),  # a header beside the file uses it
    (TYPE, 'Code("Type<{T}>", {"T": DTypeOf("x")})'),
    ("grid=R", 'grid=(R, device("multiprocessors"))'),
    ("grid=R", 'grid=(R, target("multiprocessors"))'),
]


def test_what_contradicts_the_source_is_refused(tmp_path: Path) -> None:
    for number, (old, new, told) in enumerate(REFUSED):
        assert old in RIGHT, old
        with pytest.raises(SpecError) as caught:
            load(tmp_path / str(number), RIGHT.replace(old, new))
        assert [part for part in told if part not in str(caught.value)] == [], new


def test_what_is_taken(tmp_path: Path) -> None:
    for number, (old, new) in enumerate(TAKEN):
        assert old in RIGHT, old
        load(tmp_path / str(number), RIGHT.replace(old, new))


def test_of_overloads_the_one_that_takes_what_is_passed(tmp_path: Path) -> None:
    other = "namespace ops { template <typename T> __global__ void scale(T* out, const T* x) {} }\n"
    own = project(tmp_path, RIGHT, {**SOURCES, "csrc/own.cu": other + SOURCE})
    (function,) = load_operator(own).kernel("generic").functions
    assert function.declared is not None
    assert function.declared.template == ("T", "UNROLL")


def test_defaults_of_a_declaration_in_a_header(tmp_path: Path) -> None:
    head = "namespace ops { void on_host(float* out, const float* x, int width = 7, cudaStream_t stream = nullptr); }\n"
    function = 'Launcher("csrc/own.cu:on_host", {}, macros={})'
    sources = {**SOURCES, "csrc/part.h": head}
    own = project(tmp_path, f'(Kernel("generic", function={function}, generic=True),)', sources)
    (loaded,) = load_operator(own).kernel("generic").functions
    assert loaded.declared is not None
    assert loaded.declared.defaults == {"width": "7", "stream": "nullptr"}


LAUNCHED = """
#include "nowhere.h"
__global__ void doubled(float* out, const float* x) { out[0] = 2 * x[0] + A; }
void launch(float* out, const float* x) { doubled<<<1, 1>>>(out, x); }
"""


def test_launchers_without_a_stream_macros_of_two_values_and_pins(tmp_path: Path) -> None:
    """A kernel may be in a header. All arguments may be found by their names."""
    kernel = 'CudaFunction("csrc/part.h:doubled", grid=R, macros={"A": %s})'
    generic = f'Kernel("generic", function={kernel % 1}, generic=True)'
    pinned = f'Kernel("k", function={kernel % "D"}, parameters=(Parameter("P", (True,)),), pins={{"P": ("D",)}})'
    for number, (other, told) in enumerate(
        (
            (pinned, ""),
            (pinned.replace("Parameter(", 'Parameter("Q", (1,)), Parameter('), "never uses the macro 'Q'"),
            (f'Kernel("k", function=({kernel % 1}, {kernel % 2}))', "have different values for the macro 'A'"),
            ('Kernel("k", backend="nvcc", function=Launcher("csrc/part.h:launch"))', "gets no stream"),
            (f'Kernel("k", function={(kernel % 1).replace(":d", ":x")})', "NOT FOUND of these: nowhere.h"),
        )
    ):
        own = project(tmp_path / str(number), f"({generic}, {other})", {"csrc/part.h": LAUNCHED})
        if told:
            with pytest.raises(SpecError, match=told):
                load_operator(own)
        else:
            assert load_operator(own).kernel("k").backend == "nvcc"


def test_a_macro_of_a_header_that_is_included_in_angles(tmp_path: Path) -> None:
    sources = {
        **SOURCES,
        "csrc/own.cu": "#include <deep/arch.h>\n" + SOURCE,
        "more/deep/arch.h": "#if LEVEL > 2\n#endif",
    }
    flags = 'generic=True, compile=CompileOptions(include_directories=("more",))'
    wanted = RIGHT.replace('template={"T"', 'macros={"THREADS": parameter("THREADS"), "LEVEL": 3}, template={"T"')
    load_operator(project(tmp_path, wanted.replace("generic=True", flags), sources))
    with pytest.raises(SpecError, match="never uses the macro 'LEVEL'") as caught:
        load_operator(project(tmp_path, wanted, sources))
    assert "leave it out" in str(caught.value)  # none is near


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    other = RIGHT.replace("(Kernel(", "Kernel(", 1).rstrip(")").rstrip(",") + ")"
    other = (
        other.replace('"generic"', '"second"').replace("generic=True", "generic=False").replace("cu:scale", "cu:none")
    )
    kernels = RIGHT[:-1].replace('"width": D', '"factor": 1.0') + f" {other[:-1] if other.endswith('))') else other},)"
    with pytest.raises(SpecError) as caught:
        load(tmp_path, kernels)
    assert len(caught.value.several) == 2


def test_the_suffix_decides_the_backend() -> None:
    assert Kernel("k", function=Launcher("a.cpp:f", ())).backend == "cxx"
    assert Kernel("k", function=Launcher("a.cu:f", ())).backend == "nvcc"
    assert Kernel("k", "k/k.cu.j2").backend == "nvcc"
    assert Kernel("k", "k/k.cpp.j2").backend == "cxx"
    assert Kernel("k", function=Launcher("a.h:f", ()), backend="nvcc").backend == "nvcc"


def test_sources_that_contradict_themselves() -> None:
    for make, message in (
        (lambda: Kernel("k", "k/k.cpp.j2", backend="nvcc"), "is not for the backend 'nvcc'"),
        (lambda: Kernel("k", function=Launcher("a.cu:f", ()), backend="cxx"), "is not for the backend 'cxx'"),
        (lambda: Kernel("k", "k/k.cu.j2", function=Launcher("a.cu:f", ())), "has a template and a function"),
        (lambda: CudaFunction("a.cpp:f", ()), "cannot be in a file of plain C"),
    ):
        with pytest.raises(SpecError, match=message):
            make()
    for reference in ("a.cu", "a.cu:", "a.cu:1f", "a.txt:f", "a.cu:f g", 7):
        with pytest.raises(SpecError):
            Launcher(reference, ())  # type: ignore[arg-type]


def test_a_package_that_is_not_installed() -> None:
    with pytest.raises(SpecError, match="there is no installed package 'no_such_package'"):
        package_folder("no_such_package")
    assert (package_folder("numpy") / "__init__.py").is_file()


def one(text: str) -> SourceFunction:
    (found,) = source_functions(text)
    return found


def test_parameters_have_their_names() -> None:
    for text, parameters in (
        ("void f() {}", ()),
        ("void f(void) {}", ()),
        ("void f(int n);", ("n",)),
        ("void f(const float *__restrict__ x, float* y, unsigned long long n) {}", ("x", "y", "n")),
        ("void f(std::pair<int, float> p, const int (&a)[4], float (*q)[8], int r[]) {}", ("p", "a", "q", "r")),
        ("void f(float eps = 1e-5f, int n = max(1, 2)) {}", ("eps", "n")),
        ("void f(int, const float*);", ("", "")),
        ("static inline auto f(ns::Params const p) -> int { return 0; }", ("p",)),
        ("int32_t f(int a) noexcept { return a; }", ("a",)),
        # a definition gives names to what was declared without
        ('extern "C" { void f(float*, int); }\nvoid f(float* x, int n) {}', ("x", "n")),
    ):
        assert one(text).parameters == parameters


def test_a_kernel_is_known_with_its_template_and_its_namespace() -> None:
    found = one(
        """
        #define WEIRD(x) \\
          void not_this(int x) {
        namespace ops { namespace {
        // void nor(this) {}
        template <typename T, int BLOCK = 32, bool VEC = (1 < 2)>
        __global__ void __launch_bounds__(BLOCK) scale(T* __restrict__ out, const T* x /* , int y */, int n) {
          auto f = [](int a) { return a; };
          const char* s = "void g(int) {";
        }
        }}
        """
    )
    assert found.name == "ops::scale"
    assert found.is_kernel
    assert found.parameters == ("out", "x", "n")
    assert found.template == ("T", "BLOCK", "VEC")
    assert found.defaulted == {"BLOCK", "VEC"}
    assert found.line == 7


def test_defaults_of_parameters() -> None:
    text = """
    int f(int n, float eps = 1e-5f, bool on = false, ops::Kind kind = ops::Kind::kOne, cudaStream_t stream = nullptr,
          unsigned long many = sizeof(unsigned long), const char* name = "none", float left = -.5f);
    """
    (found,) = source_functions(text)
    assert found.defaults == {
        "eps": "1e-5f",
        "on": "false",
        "kind": "ops::Kind::kOne",
        "stream": "nullptr",
        "many": "sizeof(unsigned long)",
        "left": "-.5f",
    }
