// The Python module ops of libaot_tune_ops.so. Written by aot_tune.
#include "call.h"
#include "operator_tables.h"

namespace aot_tune::python {
namespace {

PyObject* call_gemm(PyObject* module, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) {
  return call<operator_gemm::kCalls>(module, 0, arguments, count, keywords);
}

PyObject* call_rms_norm(PyObject* module, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) {
  return call<operator_rms_norm::kCalls>(module, 1, arguments, count, keywords);
}

constexpr Operator kOperators[] = {
    operator_gemm::kCalls,
    operator_rms_norm::kCalls,
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
