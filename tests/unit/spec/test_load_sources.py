"""Functions of sources as kernels: what is wrong with a declaration is named before anything is compiled."""

from __future__ import annotations

from pathlib import Path

import pytest
from authors import project

from aot_tune.spec import CompileOptions, CudaFunction, Kernel, Launcher, Parameter, Stream, package_folder
from aot_tune.spec.load_operators import load_operator
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


def refused(folder: Path, old: str, new: str) -> str:
    """What the right declaration with a change is refused for."""
    assert old in RIGHT
    with pytest.raises(SpecError) as caught:
        load(folder, RIGHT.replace(old, new))
    return str(caught.value)


def test_a_function_is_found_below_the_project_with_its_namespace(tmp_path: Path) -> None:
    kernel = load(tmp_path, RIGHT)
    (function,) = kernel.functions
    assert kernel.backend == "nvcc"
    assert function.declared is not None
    assert function.declared.name == "ops::scale"
    assert function.place == "csrc/own.cu"
    assert function.text == SOURCE


def test_a_function_that_is_not_in_the_file(tmp_path: Path) -> None:
    said = refused(tmp_path, "cu:scale", "cu:scales")
    assert "there is no function 'scales' in csrc/own.cu" in said
    assert "ops::scale" in said


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    said = refused(tmp_path, "csrc/own.cu", "own.cu")
    assert "there is no file 'own.cu'" in said
    assert "write 'csrc/own.cu'" in said


def test_an_argument_without_a_mapping(tmp_path: Path) -> None:
    said = refused(tmp_path, '"width": D', '"factor": 2.0')
    assert "nothing is passed as parameter 'width'" in said
    assert "add 'width' to the arguments" in said


def test_an_argument_that_the_function_lacks(tmp_path: Path) -> None:
    assert "has no parameter 'widths'" in refused(tmp_path, '"width": D', '"widths": D, "width": D')


def test_an_argument_that_is_passed_twice(tmp_path: Path) -> None:
    said = refused(tmp_path, 'table("UNROLL THREADS", (1, 32))', 'table("UNROLL THREADS width", (1, 32, 4))')
    assert "'width' is passed twice, as a macro and as an argument" in said


def test_a_macro_that_the_source_never_uses(tmp_path: Path) -> None:
    said = refused(tmp_path, 'table("UNROLL THREADS", (1, 32))', 'table("UNROLL THREADZ", (1, 32))')
    assert "csrc/own.cu never uses the macro 'THREADZ'" in said
    assert "'THREADS'" in said


def test_a_header_beside_the_file_may_use_it(tmp_path: Path) -> None:
    load(tmp_path, RIGHT.replace('table("UNROLL THREADS", (1, 32))', 'table("UNROLL THREADS DEEP", (1, 32, 3))'))


def test_a_parameter_of_the_launch_alone_is_no_macro(tmp_path: Path) -> None:
    wanted = 'table("UNROLL THREADS ROWS", (1, 32, 2))'
    changed = RIGHT.replace('table("UNROLL THREADS", (1, 32))', wanted).replace(
        "grid=R", 'grid=ceildiv(R, parameter("ROWS"))'
    )
    load(tmp_path, changed)


def test_what_a_template_of_the_source_declares_is_no_macro(tmp_path: Path) -> None:
    other = "template <int ROWS> __global__ void other(float* out) {}\n"
    other += "struct Tree { template <typename T, int DEEPER = 2> static T run(T x); };\n"
    wanted = RIGHT.replace('table("UNROLL THREADS", (1, 32))', 'table("UNROLL THREADS ROWS", (1, 32, 2))')
    changed = wanted.replace("grid=R", 'grid=ceildiv(R, parameter("ROWS"))')
    own = project(tmp_path, changed, {**SOURCES, "csrc/own.cu": SOURCE + other})
    (function,) = load_operator(own).kernel("generic").functions
    assert "THREADS" in function.seen
    assert not {"ROWS", "DEEPER"} & set(function.seen)


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


def test_a_launch_with_an_unknown_dim(tmp_path: Path) -> None:
    said = refused(tmp_path, "grid=R", 'grid=dim("Q")')
    assert "csrc/own.cu:scale': grid uses 'Q', which is no dim here" in said


def test_a_parameter_of_the_template_without_a_value(tmp_path: Path) -> None:
    said = refused(tmp_path, 'template={"T": DTypeOf("x")}', "template={}")
    assert "nothing is given for 'T' of its template" in said


@pytest.mark.parametrize("name", ["T", "UNROLL"])
def test_a_tensor_that_is_not_there(tmp_path: Path, name: str) -> None:
    assert "there is no tensor 'y'" in refused(
        tmp_path, '"T": DTypeOf("x")', f'"T": DTypeOf("x"), "{name}": DTypeOf("y")'
    )


def test_a_text_that_is_no_argument(tmp_path: Path) -> None:
    assert "for an expression of C++ write Code('N * 2')" in refused(tmp_path, '"width": D', '"width": "N * 2"')


def test_what_is_filled_into_a_text_of_cpp(tmp_path: Path) -> None:
    def said(code: str) -> str:
        return refused(tmp_path, 'DTypeOf("x")', code)

    load(tmp_path, RIGHT.replace('DTypeOf("x")', 'Code("Type<{T}>", {"T": DTypeOf("x")})'))
    assert "there is no tensor 'y'" in said('Code("Type<{T}>", {"T": DTypeOf("y")})')
    assert "'Type<T>' has no placeholder for 'T'" in said('Code("Type<T>", {"T": 1})')
    assert "uses 'parameter.DEEP'" in said('Code("Type<{N}>", {"N": parameter("DEEP")})')


def test_a_function_of_the_host_is_no_kernel(tmp_path: Path) -> None:
    said = refused(tmp_path, "cu:scale", "cu:on_host")
    assert "'ops::on_host' in csrc/own.cu is no __global__ function" in said
    assert "Launcher" in said


def test_a_kernel_is_no_launcher(tmp_path: Path) -> None:
    kernels = '(Kernel("generic", function=Launcher("csrc/own.cu:scale", {}), generic=True),)'
    with pytest.raises(SpecError, match="is a __global__ function"):
        load(tmp_path, kernels)


def test_a_stream_is_passed_by_its_name(tmp_path: Path) -> None:
    load(
        tmp_path,
        '(Kernel("generic", function=Launcher("csrc/own.cu:on_host", {"width": D}, macros={}), generic=True),)',
    )


def test_too_few_arguments_in_order(tmp_path: Path) -> None:
    said = refused(tmp_path, '{"stride": stride("x", 0), "width": D}', '("out", "x", D)')
    assert "has 5 parameters, and 3 arguments are listed" in said


def test_an_include_folder_that_is_not_there(tmp_path: Path) -> None:
    said = refused(tmp_path, "generic=True", 'generic=True, compile=CompileOptions(include_directories=("nowhere",))')
    assert "there is no include folder 'nowhere'" in said


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


@pytest.mark.parametrize(
    ("source", "backend"),
    [({"template": "k/k.cpp.j2"}, "nvcc"), ({"function": Launcher("a.cu:f", ())}, "cxx")],
)
def test_a_suffix_for_another_backend(source: dict[str, object], backend: str) -> None:
    with pytest.raises(SpecError, match=f"is not for the backend '{backend}'"):
        Kernel("k", backend=backend, **source)  # type: ignore[arg-type]


def test_a_kernel_has_one_source() -> None:
    with pytest.raises(SpecError, match="has a template and a function"):
        Kernel("k", "k/k.cu.j2", function=Launcher("a.cu:f", ()))


@pytest.mark.parametrize("reference", ["a.cu", "a.cu:", "a.cu:1f", "a.txt:f", "a.cu:f g", 7])
def test_what_is_no_reference(reference: str) -> None:
    with pytest.raises(SpecError):
        Launcher(reference, ())


def test_a_global_function_is_in_no_file_of_cpp() -> None:
    with pytest.raises(SpecError, match="cannot be in a file of plain C"):
        CudaFunction("a.cpp:f", ())


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("-march=native", "each target"),
        ("-arch=sm_90", "each target"),
        ("-gencode=arch=compute_90,code=sm_90", "each target"),
        ("-Xcompiler=-march=native", "each target"),
        ("-fabi-version=2", "changes the ABI"),
        ("-Xcompiler=-O2,-fpack-struct", "changes the ABI"),
        ("-fshort-enums", "changes the ABI"),
        ("-rdc=true", "no further step"),
        ("-shared", "no further step"),
        ("-DN=2", "definitions"),
        ("-Ifolder", "include_directories"),
        ("-lm", "libraries"),
        ("O3", "begins with -"),
    ],
)
def test_options_that_may_not_be_given(option: str, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        CompileOptions(options=(option,))


@pytest.mark.parametrize(
    "option", ["-std=c++20", "--use_fast_math", "-Xptxas=-O1", "-maxrregcount=64", "-fopenmp", "-O2"]
)
def test_options_that_may_be_given(option: str) -> None:
    assert CompileOptions(options=(option,)).options == (option,)


def test_a_package_that_is_not_installed() -> None:
    with pytest.raises(SpecError, match="there is no installed package 'no_such_package'"):
        package_folder("no_such_package")
    assert (package_folder("numpy") / "__init__.py").is_file()


def test_parameters_may_be_named_as_they_are() -> None:
    assert Kernel("k", function=Launcher("a.cu:f", (Stream(),)), parameters=(Parameter("N", (1, 2)),)).functions


@pytest.mark.parametrize("name", ["device", "target"])
def test_what_a_device_alone_has_is_no_constant_of_a_template(tmp_path: Path, name: str) -> None:
    load(tmp_path, RIGHT.replace("grid=R", f'grid=(R, {name}("multiprocessors"))'))
    said = refused(
        tmp_path / "other", '"T": DTypeOf("x")}', f'"T": DTypeOf("x"), "UNROLL": {name}("multiprocessors")}}'
    )
    assert 'uses device("multiprocessors")' in said
    assert "a target is an architecture" in said
