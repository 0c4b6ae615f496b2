"""What is read of C++ and CUDA sources before any compiler sees them."""

from __future__ import annotations

from aot_tune.spec.native_function import SourceFunction, source_functions


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
