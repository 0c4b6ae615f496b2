// Devices and streams as Python callers name them, and loading ahead.
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "binding.h"

namespace aot_tune::python {
namespace {

struct DeviceName {
  const char* text;
  DLDeviceType type;
};

constexpr DeviceName kDeviceNames[] = {
    {"cpu", kDLCPU}, {"cuda", kDLCUDA}, {"rocm", kDLROCM}, {"hip", kDLROCM}};

// The device that torch uses if none is stated. 0 without torch.
long current_device() {
  PyObject* cuda = imported("torch.cuda");
  const Ref id = cuda != nullptr ? PyObject_CallMethod(cuda, "current_device", nullptr) : nullptr;
  const long found = id != nullptr ? PyLong_AsLong(id) : 0;
  PyErr_Clear();
  return found >= 0 ? found : 0;
}

// The device type that "cuda" means. In a torch for ROCm, AMD's devices have that name too.
DLDeviceType cuda_type() {
  const Ref hip = attribute_of(imported("torch.version"), "hip");
  return hip != nullptr && hip != Py_None ? kDLROCM : kDLCUDA;
}

// "cuda:1" as a device. False without an exception if it is no such text.
bool read_device(const char* text, DLDevice* device) {
  for (const DeviceName& name : kDeviceNames) {
    const size_t length = std::strlen(name.text);
    if (std::strncmp(text, name.text, length) != 0) continue;
    const char* rest = text + length;
    char* end = nullptr;
    long id = 0;
    if (*rest == ':' && rest[1] >= '0' && rest[1] <= '9') {
      id = std::strtol(rest + 1, &end, 10);
      if (*end != '\0' || id > INT32_MAX) return false;
    } else if (*rest != '\0') {
      return false;
    } else if (name.type != kDLCPU) {
      id = current_device();
    }
    *device = {name.type == kDLCUDA ? cuda_type() : name.type, static_cast<int32_t>(id)};
    return true;
  }
  return false;
}

bool is_torch_tensor(PyObject* object) {
  const Ref type = attribute_of(imported("torch"), "Tensor");
  const bool is = type != nullptr && PyObject_IsInstance(object, type) == 1;
  PyErr_Clear();
  return is;
}

// The stream that a torch without the exchange interface works on.
bool torch_stream(State* state, const DLDevice& device, Stream* stream) {
  if (state->current_stream == nullptr) {
    PyObject* cuda = imported("torch.cuda");
    state->current_stream = cuda != nullptr ? PyObject_GetAttrString(cuda, "current_stream") : nullptr;
    if (state->current_stream == nullptr) return false;
  }
  const Ref found = PyObject_CallFunction(state->current_stream, "i", static_cast<int>(device.device_id));
  return found != nullptr && parse_stream(state, "torch.cuda.current_stream", found, stream);
}

// The number that an attribute of a stream object holds, or NULL without an exception.
Ref stream_number(State* state, PyObject* value) {
  // cuda.core: () -> (version, handle)
  Ref pair = PyObject_GetAttr(value, state->words[kWordCudaStream]);
  if (pair != nullptr && PyCallable_Check(pair)) pair = PyObject_CallObject(pair, nullptr);
  Ref number = pair != nullptr ? PySequence_GetItem(pair, 1) : nullptr;
  PyErr_Clear();
  for (const char* attribute : {"cuda_stream", "ptr"}) {  // torch, cupy
    if (number == nullptr) number = attribute_of(value, attribute);
  }
  return number;
}

}  // namespace

bool parse_device(State* state, PyObject* value, DLDevice* device) {
  if (PyLong_Check(value)) {  // as torch takes it: the number of a GPU
    const long id = PyLong_AsLong(value);
    *device = {cuda_type(), static_cast<int32_t>(id)};
    if (id >= 0 && id <= INT32_MAX) return true;
    PyErr_Clear();
  }
  const Ref text = PyObject_Str(value);  // for a torch.device: "cuda:0"
  const Ref bytes = text != nullptr ? PyUnicode_AsUTF8String(text) : nullptr;
  const bool read = bytes != nullptr && read_device(PyBytes_AsString(bytes), device);
  if (!read && PyErr_Occurred() == nullptr) {
    PyErr_Format(state->value_error,
                 "device %R is not known; wanted 'cpu', 'cuda', 'cuda:1', 'rocm:1', 1 or a torch.device",
                 value);
  }
  return read;
}

bool parse_stream(State* state, const char* who, PyObject* value, Stream* stream) {
  if (value == Py_None) return true;
  const Ref number = PyLong_Check(value) ? Ref(Py_NewRef(value)) : stream_number(state, value);
  if (number == nullptr || !PyLong_Check(number))
    return refuse(state->type_error,
                  "%s: stream is %R, wanted a number or an object with cuda_stream, ptr or __cuda_stream__",
                  who, value);
  stream->handle = PyLong_AsVoidPtr(number);
  stream->known = true;
  return PyErr_Occurred() == nullptr;
}

PyObject* stream_argument(State* state, PyObject* object, const DLDevice& device, Stream* stream) {
  if (!stream->known && is_torch_tensor(object)) {
    if (!torch_stream(state, device, stream)) return nullptr;
    return PyLong_FromLong(-1);  // this is work on the producer's own stream, which waits for nothing
  }
  stream->known = true;  // if nothing better is known, it is the default stream
  if (stream->handle != nullptr) return PyLong_FromVoidPtr(stream->handle);
  return PyLong_FromLong(device.device_type == kDLCUDA ? 1 : 0);  // DLPack's numbers of the default stream
}

PyObject* preload(PyObject* module, PyObject* value) {
  State* state = state_of(module);
  DLDevice device;
  if (!parse_device(state, value, &device)) return nullptr;
  PyThreadState* thread = PyEval_SaveThread();
  const int32_t status = kLibrary.preload(static_cast<int32_t>(device.device_type), device.device_id);
  PyEval_RestoreThread(thread);
  if (status != AOT_TUNE_OK) return raise_status(state, status);
  Py_RETURN_NONE;
}

}  // namespace aot_tune::python
