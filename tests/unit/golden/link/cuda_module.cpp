// The Python module cuda_ops of libaot_tune_ops.so. Written by aot_tune.
#include "call.h"
#include "aot_tune/cuda_ops.h"

namespace aot_tune::python {
namespace {

// ---- scale ----

constexpr DTypeChoice kDTypes_scale_T[] = {{"f32", {"float32", 2, 32}}, {"bf16", {"bfloat16", 4, 16}}};
constexpr DTypeVariable kVariables_scale[] = {{"T", kDTypes_scale_T, 2}};
constexpr TensorArgument kTensors_scale[] = {
    {"x", {"float32", 2, 32}, 1, 0, false, false},
    {"bias", {"float32", 2, 32}, 1, 0, false, true},
    {"out", {"float32", 2, 32}, 1, 0, true, false},
};
constexpr ScalarArgument kScalars_scale[] = {{"factor", ScalarArgument::kF32, {static_cast<float>(1.0)}}};
constexpr const char* kDims_scale[] = {"N"};

struct Functions_scale {
  static int32_t call(Tensors t, const Scalar* s, const int32_t* c, const aot_tune_exec* exec) {
    (void)s;
    (void)c;
    return aot_tune_scale(t[0], t[1], t[2], s[0].f32, exec);
  }
  static int32_t explain(Tensors t, const Scalar* s, const int32_t* c, const aot_tune_exec* exec, char* buffer,
                         size_t size) {
    (void)s;
    (void)c;
    return aot_tune_scale_explain(t[0], t[1], t[2], s[0].f32, exec, buffer, size);
  }
  static int32_t is_tuned(Tensors t, const Scalar* s, const int32_t* c, int32_t* tuned) {
    (void)s;
    (void)c;
    return aot_tune_scale_is_tuned(t[0], t[1], t[2], s[0].f32, tuned);
  }
  static bool bind(Tensors t, const Scalar* s, int64_t* dims) {
    if (t[0] == nullptr || t[0]->ndim != 1) return false;
    dims[0] = t[0]->shape[0];
    (void)t;
    (void)s;
    (void)dims;
    return true;
  }
  static void shape(int tensor, const int64_t* dims, int64_t* extents) {
    (void)dims;
    switch (tensor) {
      case 0:
        extents[0] = dims[0];
        break;
      case 1:
        extents[0] = dims[0];
        break;
      case 2:
        extents[0] = dims[0];
        break;
      default:
        break;
    }
  }
};

constexpr Operator kOperator_scale = {"scale", kTensors_scale, 3, kScalars_scale, 1, nullptr, 0, kDims_scale, 1, kVariables_scale, 1, Functions_scale::call, Functions_scale::explain, Functions_scale::is_tuned, Functions_scale::bind, Functions_scale::shape};

PyObject* call_scale(PyObject* module, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) {
  return call<kOperator_scale>(module, 0, arguments, count, keywords);
}

constexpr Operator kOperators[] = {
    kOperator_scale,
};

}  // namespace

const Library kLibrary = {kTablesLayout, "cuda_ops", kOperators, 1, aot_tune_last_error,
                          aot_tune_manifest, aot_tune_preload, aot_tune_set_num_threads,
                          aot_tune_get_num_threads, "{\042schema\042:1,\042operators\042:[{\042name\042:\042scale\042,\042documentation\042:\042out = x * factor.\042,\042bound\042:[{\042dim\042:\042N\042,\042tensor\042:\042x\042,\042axis\042:0,\042value\042:[\042fact\042,\042.extent\042]}],\042dtypes\042:{\042T\042:[\042f32\042,\042bf16\042]},\042tensors\042:[{\042name\042:\042x\042,\042dtype\042:\042T\042,\042shape\042:[[\042fact\042,\042N\042]]},{\042name\042:\042bias\042,\042dtype\042:\042T\042,\042shape\042:[[\042fact\042,\042N\042]],\042optional\042:true},{\042name\042:\042out\042,\042dtype\042:\042T\042,\042shape\042:[[\042fact\042,\042N\042]],\042output\042:true}],\042scalars\042:[{\042name\042:\042factor\042,\042dtype\042:\042f32\042,\042default\042:1.0}],\042attributes\042:[]}]}"};

}  // namespace aot_tune::python

extern "C" __attribute__((visibility("default"))) PyObject* PyInit_cuda_ops(void) {
  using namespace aot_tune::python;
  using Fast = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);
  const auto method = [](Fast function) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
  };
  static PyMethodDef methods[] = {
    {"scale", method(call_scale), METH_FASTCALL | METH_KEYWORDS, "scale($module, x, bias=None, *, factor=1.0, out=None, stream=None, workspace=None)\012--\012\012out = x * factor.\012\012x: T [N].\012bias: T [N], may be left out.\012out: T [N], made when not passed.\012T: f32 or bf16, the same for all.\012factor: a number.\012stream: of the GPU, as a number or an object of a framework; the framework's current one when not passed.\012workspace: memory of the device for the call, any tensor; the library's own when not passed.\012\012Returns the output."},
  };
  return make_module("Kernels chosen by measurement when this package was built: scale.\012\012scale(x, bias=None, *, factor=1.0, out=None, stream=None, workspace=None)", methods);
}
