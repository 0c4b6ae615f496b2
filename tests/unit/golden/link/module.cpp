// The Python module ops of libaot_tune_ops.so. Written by aot_tune.
#include "call.h"
#include "aot_tune/ops.h"

namespace aot_tune::python {
namespace {

// ---- gemm ----

constexpr TensorArgument kTensors_gemm[] = {
    {"a", {"float32", 2, 32}, 2, -1, false, false, false, false, -1, true},
    {"b", {"float32", 2, 32}, 2, -1, false, false},
    {"bias", {"float32", 2, 32}, 1, -1, false, true},
    {"residual", {"float32", 2, 32}, 2, -1, false, true, false, false, -1, true},
    {"out", {"float32", 2, 32}, 2, -1, true, false, false, false, -1, true},
};
constexpr const char* kChoices_gemm_activation[] = {"none", "relu"};
constexpr AttributeArgument kAttributes_gemm[] = {{"activation", kChoices_gemm_activation, 2}};
constexpr const char* kDims_gemm[] = {"M", "N", "K"};

struct Functions_gemm {
  static int32_t call(Tensors t, const Scalar* s, const int32_t* c, const aot_tune_exec* exec) {
    (void)s;
    (void)c;
    return aot_tune_gemm(t[0], t[1], t[2], t[3], t[4], c[0], exec);
  }
  static int32_t explain(Tensors t, const Scalar* s, const int32_t* c, const aot_tune_exec* exec, char* buffer,
                         size_t size) {
    (void)s;
    (void)c;
    return aot_tune_gemm_explain(t[0], t[1], t[2], t[3], t[4], c[0], exec, buffer, size);
  }
  static int32_t is_tuned(Tensors t, const Scalar* s, const int32_t* c, int32_t* tuned) {
    (void)s;
    (void)c;
    return aot_tune_gemm_is_tuned(t[0], t[1], t[2], t[3], t[4], c[0], tuned);
  }
  static bool bind(Tensors t, const Scalar* s, int64_t* dims) {
    if (t[0] == nullptr || t[0]->ndim != 2) return false;
    if (t[1] == nullptr || t[1]->ndim != 2) return false;
    dims[0] = t[0]->shape[0];
    dims[1] = t[1]->shape[1];
    dims[2] = t[0]->shape[1];
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
        extents[1] = dims[2];
        break;
      case 1:
        extents[0] = dims[2];
        extents[1] = dims[1];
        break;
      case 2:
        extents[0] = dims[1];
        break;
      case 3:
        extents[0] = dims[0];
        extents[1] = dims[1];
        break;
      case 4:
        extents[0] = dims[0];
        extents[1] = dims[1];
        break;
      default:
        break;
    }
  }
};

constexpr Operator kOperator_gemm = {"gemm", kTensors_gemm, 5, nullptr, 0, kAttributes_gemm, 1, kDims_gemm, 3, nullptr, 0, Functions_gemm::call, Functions_gemm::explain, Functions_gemm::is_tuned, Functions_gemm::bind, Functions_gemm::shape};

PyObject* call_gemm(PyObject* module, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) {
  return call<kOperator_gemm>(module, 0, arguments, count, keywords);
}

// ---- rms_norm ----

constexpr TensorArgument kTensors_rms_norm[] = {
    {"x", {"float32", 2, 32}, 2, -1, false, false, false, false, -1, true},
    {"weight", {"float32", 2, 32}, 1, -1, false, false},
    {"residual", {"float32", 2, 32}, 2, -1, false, true, false, false, -1, true},
    {"out", {"float32", 2, 32}, 2, -1, true, false, false, false, -1, true},
    {"residual_out", {"float32", 2, 32}, 2, -1, true, true, false, false, -1, true},
};
constexpr ScalarArgument kScalars_rms_norm[] = {{"eps", ScalarArgument::kF32, {static_cast<float>(1e-05)}}};
constexpr const char* kDims_rms_norm[] = {"M", "N"};

struct Functions_rms_norm {
  static int32_t call(Tensors t, const Scalar* s, const int32_t* c, const aot_tune_exec* exec) {
    (void)s;
    (void)c;
    return aot_tune_rms_norm(t[0], t[1], t[2], t[3], t[4], s[0].f32, exec);
  }
  static int32_t explain(Tensors t, const Scalar* s, const int32_t* c, const aot_tune_exec* exec, char* buffer,
                         size_t size) {
    (void)s;
    (void)c;
    return aot_tune_rms_norm_explain(t[0], t[1], t[2], t[3], t[4], s[0].f32, exec, buffer, size);
  }
  static int32_t is_tuned(Tensors t, const Scalar* s, const int32_t* c, int32_t* tuned) {
    (void)s;
    (void)c;
    return aot_tune_rms_norm_is_tuned(t[0], t[1], t[2], t[3], t[4], s[0].f32, tuned);
  }
  static bool bind(Tensors t, const Scalar* s, int64_t* dims) {
    if (t[0] == nullptr || t[0]->ndim != 2) return false;
    dims[0] = t[0]->shape[0];
    dims[1] = t[0]->shape[1];
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
        extents[1] = dims[1];
        break;
      case 1:
        extents[0] = dims[1];
        break;
      case 2:
        extents[0] = dims[0];
        extents[1] = dims[1];
        break;
      case 3:
        extents[0] = dims[0];
        extents[1] = dims[1];
        break;
      case 4:
        extents[0] = dims[0];
        extents[1] = dims[1];
        break;
      default:
        break;
    }
  }
};

constexpr Operator kOperator_rms_norm = {"rms_norm", kTensors_rms_norm, 5, kScalars_rms_norm, 1, nullptr, 0, kDims_rms_norm, 2, nullptr, 0, Functions_rms_norm::call, Functions_rms_norm::explain, Functions_rms_norm::is_tuned, Functions_rms_norm::bind, Functions_rms_norm::shape};

PyObject* call_rms_norm(PyObject* module, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) {
  return call<kOperator_rms_norm>(module, 1, arguments, count, keywords);
}

constexpr Operator kOperators[] = {
    kOperator_gemm,
    kOperator_rms_norm,
};

}  // namespace

const Library kLibrary = {kTablesLayout, "ops", kOperators, 2, aot_tune_last_error,
                          aot_tune_manifest, aot_tune_preload, aot_tune_set_num_threads,
                          aot_tune_get_num_threads, "{\042schema\042:1,\042operators\042:[{\042name\042:\042gemm\042,\042documentation\042:\042out = activation(a @ b + bias) + residual.\042,\042bound\042:[{\042dim\042:\042M\042,\042tensor\042:\042a\042,\042axis\042:0,\042value\042:[\042fact\042,\042.extent\042]},{\042dim\042:\042N\042,\042tensor\042:\042b\042,\042axis\042:1,\042value\042:[\042fact\042,\042.extent\042]},{\042dim\042:\042K\042,\042tensor\042:\042a\042,\042axis\042:1,\042value\042:[\042fact\042,\042.extent\042]}],\042dtypes\042:{},\042tensors\042:[{\042name\042:\042a\042,\042dtype\042:\042f32\042,\042shape\042:[[\042fact\042,\042M\042],[\042fact\042,\042K\042]],\042folds\042:true},{\042name\042:\042b\042,\042dtype\042:\042f32\042,\042shape\042:[[\042fact\042,\042K\042],[\042fact\042,\042N\042]]},{\042name\042:\042bias\042,\042dtype\042:\042f32\042,\042shape\042:[[\042fact\042,\042N\042]],\042optional\042:true},{\042name\042:\042residual\042,\042dtype\042:\042f32\042,\042shape\042:[[\042fact\042,\042M\042],[\042fact\042,\042N\042]],\042optional\042:true,\042folds\042:true},{\042name\042:\042out\042,\042dtype\042:\042f32\042,\042shape\042:[[\042fact\042,\042M\042],[\042fact\042,\042N\042]],\042output\042:true,\042folds\042:true}],\042scalars\042:[],\042attributes\042:[{\042name\042:\042activation\042,\042choices\042:[\042none\042,\042relu\042]}]},{\042name\042:\042rms_norm\042,\042documentation\042:\042out = (x + residual) / rms(x + residual) * weight.\042,\042bound\042:[{\042dim\042:\042M\042,\042tensor\042:\042x\042,\042axis\042:0,\042value\042:[\042fact\042,\042.extent\042]},{\042dim\042:\042N\042,\042tensor\042:\042x\042,\042axis\042:1,\042value\042:[\042fact\042,\042.extent\042]}],\042dtypes\042:{},\042tensors\042:[{\042name\042:\042x\042,\042dtype\042:\042f32\042,\042shape\042:[[\042fact\042,\042M\042],[\042fact\042,\042N\042]],\042folds\042:true},{\042name\042:\042weight\042,\042dtype\042:\042f32\042,\042shape\042:[[\042fact\042,\042N\042]]},{\042name\042:\042residual\042,\042dtype\042:\042f32\042,\042shape\042:[[\042fact\042,\042M\042],[\042fact\042,\042N\042]],\042optional\042:true,\042folds\042:true},{\042name\042:\042out\042,\042dtype\042:\042f32\042,\042shape\042:[[\042fact\042,\042M\042],[\042fact\042,\042N\042]],\042output\042:true,\042folds\042:true},{\042name\042:\042residual_out\042,\042dtype\042:\042f32\042,\042shape\042:[[\042fact\042,\042M\042],[\042fact\042,\042N\042]],\042output\042:true,\042optional\042:true,\042folds\042:true}],\042scalars\042:[{\042name\042:\042eps\042,\042dtype\042:\042f32\042,\042default\042:1e-05}],\042attributes\042:[]}]}"};

}  // namespace aot_tune::python

extern "C" __attribute__((visibility("default"))) PyObject* PyInit_ops(void) {
  using namespace aot_tune::python;
  using Fast = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);
  const auto method = [](Fast function) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
  };
  static PyMethodDef methods[] = {
    {"gemm", method(call_gemm), METH_FASTCALL | METH_KEYWORDS, "gemm($module, a, b, bias=None, residual=None, *, activation='none', out=None, stream=None, workspace=None)\012--\012\012out = activation(a @ b + bias) + residual.\012\012a: f32 [M, K].\012b: f32 [K, N].\012bias: f32 [N], may be left out.\012residual: f32 [M, N], may be left out.\012out: f32 [M, N], made when not passed.\012M: stands for any number of leading dims, the same of a, residual, out.\012activation: one of none, relu.\012stream: of the GPU, as a number or an object of a framework; the framework's current one when not passed.\012workspace: memory of the device for the call, any tensor; the library's own when not passed.\012\012Returns the output."},
    {"rms_norm", method(call_rms_norm), METH_FASTCALL | METH_KEYWORDS, "rms_norm($module, x, weight, residual=None, *, eps=1e-05, out=None, residual_out=None, stream=None, workspace=None)\012--\012\012out = (x + residual) / rms(x + residual) * weight.\012\012x: f32 [M, N].\012weight: f32 [N].\012residual: f32 [M, N], may be left out.\012out: f32 [M, N], made when not passed.\012residual_out: f32 [M, N], written when passed; True makes a new one.\012M: stands for any number of leading dims, the same of x, residual, out, residual_out.\012eps: a number.\012stream: of the GPU, as a number or an object of a framework; the framework's current one when not passed.\012workspace: memory of the device for the call, any tensor; the library's own when not passed.\012\012Returns the output; a tuple when several are written."},
  };
  return make_module("Kernels chosen by measurement when this package was built: gemm, rms_norm.\012\012gemm(a, b, bias=None, residual=None, *, activation='none', out=None, stream=None, workspace=None)\012rms_norm(x, weight, residual=None, *, eps=1e-05, out=None, residual_out=None, stream=None, workspace=None)", methods);
}
