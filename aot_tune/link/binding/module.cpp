// The extension module: its state, exceptions and functions.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <iterator>

#include "calls.h"

namespace aot_tune::python {
namespace {

constexpr const char* kWords[kWordCount] = {"__dlpack_c_exchange_api__",
                                            "__array_struct__",
                                            "__dlpack__",
                                            "max_version",
                                            "requires_grad",
                                            "is_neg",
                                            "__array_namespace__",
                                            "device",
                                            "dtype",
                                            "empty",
                                            "__dlpack_device__",
                                            "stream",
                                            "workspace",
                                            "__cuda_stream__",
                                            "_current_level"};

// ---- The library: the one that was built with the module, or none

bool is_same_file(const struct stat& one, const char* path) {
  struct stat other;
  return stat(path, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

// Whether a file holds a text.
bool holds(const char* path, const struct stat& about, const char* text) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const auto size = static_cast<size_t>(about.st_size);
  void* bytes = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  if (bytes == MAP_FAILED) return false;
  const bool found = memmem(bytes, size, text, std::strlen(text)) != nullptr;
  munmap(bytes, size);
  return found;
}

// Whether the loaded library is the one that the module was built with. False with ImportError set.
bool check_library() {
  const char* manifest = kLibrary.manifest();
  Dl_info ours, loaded;
  if (dladdr(&kLibrary, &ours) == 0 || dladdr(manifest, &loaded) == 0) return true;
  const char* slash = std::strrchr(ours.dli_fname, '/');
  const int folder = slash != nullptr ? static_cast<int>(slash - ours.dli_fname) + 1 : 0;
  slash = std::strrchr(loaded.dli_fname, '/');
  const char* name = slash != nullptr ? slash + 1 : loaded.dli_fname;
  for (const char* below : {"", "lib/"}) {  // the module looks for it here
    char path[PATH_MAX];
    const int length = std::snprintf(path, sizeof path, "%.*s%s%s", folder, ours.dli_fname, below, name);
    struct stat about;
    if (length >= static_cast<int>(sizeof path) || stat(path, &about) != 0) continue;
    if (is_same_file(about, loaded.dli_fname) || holds(path, about, manifest)) return true;
    return refuse(
        PyExc_ImportError,
        "%s needs %s, but this process has loaded another library of that name: %s; a process has one of "
        "each name: give one of them another OUTPUT_NAME in aot_tune_add_library, take the other's folder "
        "off LD_LIBRARY_PATH, or import the two in processes of their own",
        ours.dli_fname, path, loaded.dli_fname);
  }
  return true;  // it was moved, for example by a tool that repairs wheels
}

// ---- What the module holds

// Calls `visit` for each name of an operator, in the order of its tables, and then for all choices.
template <typename Visit>
void each_name(const Operator& op, Visit visit) {
  for (int i = 0; i < op.tensor_count; ++i) visit(op.tensors[i].name);
  for (int i = 0; i < op.scalar_count; ++i) visit(op.scalars[i].name);
  for (int i = 0; i < op.attribute_count; ++i) visit(op.attributes[i].name);
  for (int i = 0; i < op.dim_count; ++i) visit(op.dims[i]);
  for (int i = 0; i < op.variable_count; ++i) visit(op.variables[i].name);
  for (int i = 0; i < op.attribute_count; ++i) {
    for (int32_t k = 0; k < op.attributes[i].count; ++k) visit(op.attributes[i].choices[k]);
  }
  for (int i = 0; i < op.variable_count; ++i) {
    for (int32_t k = 0; k < op.variables[i].count; ++k) visit(op.variables[i].choices[k]);
  }
}

template <typename Type>
bool make_array(int count, Type** made) {
  *made = static_cast<Type*>(PyMem_Calloc(static_cast<size_t>(count), sizeof(Type)));
  return *made != nullptr;
}

bool make_names(State* state) {
  int total = 0;
  for (int i = 0; i < kLibrary.operator_count; ++i) {
    each_name(kLibrary.operators[i], [&](const char*) { ++total; });
  }
  if (!make_array(total, &state->names) || !make_array(kLibrary.operator_count, &state->first_name) ||
      !make_array(kLibrary.operator_count, &state->keywords))
    return false;
  bool made = true;
  for (int i = 0; i < kLibrary.operator_count; ++i) {
    state->first_name[i] = state->name_count;
    each_name(kLibrary.operators[i], [&](const char* name) {
      PyObject* const interned = state->names[state->name_count++] = PyUnicode_InternFromString(name);
      made &= interned != nullptr;
    });
  }
  return made;
}

PyObject* make_error(PyObject* module, const char* name, const char* doc, PyObject* base, PyObject* builtin) {
  char full[256];
  const char* scope = PyModule_GetName(module);
  PyOS_snprintf(full, sizeof full, "%s.%s", scope != nullptr ? scope : kLibrary.name, name);
  const Ref bases = builtin != nullptr ? PyTuple_Pack(2, base, builtin) : PyTuple_Pack(1, base);
  PyObject* error = bases != nullptr ? PyErr_NewExceptionWithDoc(full, doc, bases, nullptr) : nullptr;
  if (error != nullptr && PyModule_AddObjectRef(module, name, error) != 0) Py_CLEAR(error);
  return error;
}

bool make_errors(PyObject* module, State* state) {
  state->error = make_error(module, "Error", "Base of the errors of this module.", PyExc_Exception, nullptr);
  if (state->error == nullptr) return false;
  state->type_error =
      make_error(module, "ArgumentTypeError", "An argument is missing, or of a wrong type or dtype.",
                 state->error, PyExc_TypeError);
  state->value_error = make_error(module, "ArgumentValueError",
                                  "An argument has a wrong rank, shape, device, layout or value.",
                                  state->error, PyExc_ValueError);
  state->runtime_error =
      make_error(module, "CallError", "A call could not be carried out.", state->error, PyExc_RuntimeError);
  return state->type_error != nullptr && state->value_error != nullptr && state->runtime_error != nullptr;
}

int execute(PyObject* module) {
  if (!check_library()) return -1;
  State* state = state_of(module);
  for (int i = 0; i < kWordCount; ++i) {
    state->words[i] = PyUnicode_InternFromString(kWords[i]);
    if (state->words[i] == nullptr) return -1;
  }
  state->no_arguments = PyTuple_New(0);
  state->version_arguments = Py_BuildValue("{s:(ii)}", "max_version", 1, 0);
  if (state->no_arguments == nullptr || state->version_arguments == nullptr) return -1;
  if (!make_names(state) || !make_errors(module, state)) return -1;
  const Ref operators = operator_names();
  const Ref tables = PyCapsule_New(const_cast<Library*>(&kLibrary), kTablesCapsule, nullptr);
  if (operators == nullptr || tables == nullptr) return -1;
  if (PyModule_AddObjectRef(module, "operators", operators) != 0) return -1;
  return PyModule_AddObjectRef(module, "__tables__", tables);
}

template <typename Visit>
void each_object(State* state, Visit visit) {
  for (PyObject*& word : state->words) visit(word);
  for (int i = 0; i < state->name_count; ++i) visit(state->names[i]);
  for (int i = 0; state->keywords != nullptr && i < kLibrary.operator_count; ++i)
    visit(state->keywords[i].names);
  for (TypeEntry& entry : state->types) {
    visit(entry.type);
    visit(entry.gradient);
  }
  for (ArrayType& known : state->array_types) visit(known.dtype);
  for (PyObject** object : {&state->array_type, &state->array_empty, &state->version_arguments,
                            &state->no_arguments, &state->current_stream, &state->is_grad_enabled,
                            &state->error, &state->type_error, &state->value_error, &state->runtime_error}) {
    visit(*object);
  }
}

int traverse(PyObject* module, visitproc visit, void* arg) {
  auto* state = static_cast<State*>(PyModule_GetState(module));
  if (state == nullptr) return 0;
  int result = 0;
  each_object(state, [&](PyObject* object) {
    if (object != nullptr && result == 0) result = visit(object, arg);
  });
  return result;
}

int clear(PyObject* module) {
  auto* state = static_cast<State*>(PyModule_GetState(module));
  if (state != nullptr) each_object(state, [](PyObject*& object) { Py_CLEAR(object); });
  return 0;
}

void destroy(void* module) {
  clear(static_cast<PyObject*>(module));
  auto* state = static_cast<State*>(PyModule_GetState(static_cast<PyObject*>(module)));
  if (state == nullptr) return;
  PyMem_Free(state->names);
  PyMem_Free(state->first_name);
  PyMem_Free(state->keywords);
}

PyObject* from_json(const char* text) {
  const Ref json = PyImport_ImportModule("json");
  return json != nullptr ? PyObject_CallMethod(json, "loads", "s", text) : nullptr;
}

PyObject* manifest(PyObject*, PyObject*) { return from_json(kLibrary.manifest()); }

PyObject* signatures(PyObject*, PyObject*) { return from_json(kLibrary.signatures); }

PyObject* set_num_threads(PyObject* module, PyObject* value) {
  const long threads = PyLong_AsLong(value);
  if (threads == -1 && PyErr_Occurred() != nullptr) return nullptr;
  const bool fits = threads >= INT32_MIN && threads <= INT32_MAX;
  const int32_t status = kLibrary.set_num_threads(fits ? static_cast<int32_t>(threads) : -1);
  if (status != AOT_TUNE_OK) return raise_status(state_of(module), status);
  Py_RETURN_NONE;
}

PyObject* get_num_threads(PyObject*, PyObject*) { return PyLong_FromLong(kLibrary.get_num_threads()); }

template <typename Function>
PyCFunction as_method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

constexpr int kFast = METH_FASTCALL | METH_KEYWORDS;
constexpr int kMaxMethods = 256;

// What every module has.
const PyMethodDef kCommon[] = {
    {"is_tuned", as_method(is_tuned), kFast,
     "is_tuned(operator, /, *tensors, **tensors_or_dims)\n--\n\nWhether exactly this problem was measured "
     "for the target that a call gets here: is_tuned('gemm', a, b) or is_tuned('gemm', M=1, N=2, K=3)."},
    {"explain", as_method(explain), kFast,
     "explain(operator, /, *tensors, **tensors_or_dims)\n--\n\nA dict on the variant that a call gets here "
     "and why; arguments as of is_tuned, optional tensors of a stated problem as name=True, its dtypes as "
     "T='bf16', its device as device='cuda:0'; workspace is a tensor or a number of bytes. With "
     "AOT_TUNE_OVERRIDE=FILE, 'override' is the rule that the call meets; 'threads' or 'processors' is there "
     "where it was tuned with more or fewer."},
    {"manifest", manifest, METH_NOARGS,
     "manifest()\n--\n\nWhat the library holds: operators, variants with the digests of their objects, "
     "decision tables, tools."},
    {"preload", preload, METH_O,
     "preload($module, device, /)\n--\n\nLoads what the library has for a device ('cuda:0', 0, a "
     "torch.device), so that no later call does."},
    {"signatures", signatures, METH_NOARGS,
     "signatures($module)\n--\n\nWhat each operator takes and returns, for bindings of frameworks: a dict of "
     "its tensors with their shapes and dtypes, dims, scalars and attributes."},
    {"set_num_threads", set_num_threads, METH_O,
     "set_num_threads($module, threads, /)\n--\n\nThreads that calls on a CPU get from now on, in all "
     "threads of the process; 0: OpenMP's number of the thread that calls, as at the beginning."},
    {"get_num_threads", get_num_threads, METH_NOARGS,
     "get_num_threads($module)\n--\n\nThreads that a call of this thread on a CPU gets."},
    {nullptr, nullptr, 0, nullptr}};

PyMethodDef methods[kMaxMethods + std::size(kCommon)];
PyModuleDef_Slot slots[] = {{Py_mod_exec, reinterpret_cast<void*>(execute)}, {0, nullptr}};
PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, nullptr, nullptr, sizeof(State), methods, slots, traverse, clear, destroy};

}  // namespace

State* state_of(PyObject* module) { return static_cast<State*>(PyModule_GetState(module)); }

const char* signature_of(int index) {
  static char text[1024];  // the interpreter's lock is held
  const char* doc = methods[index].ml_doc;
  while (*doc != '(') ++doc;
  size_t length = 0;
  for (const char* c = doc; *c != '\n' && *c != '\0' && length + 1 < sizeof text; ++c) {
    if (std::strncmp(c, "$module, ", 9) == 0) c += 9;
    text[length++] = *c;
  }
  text[length] = '\0';
  return text;
}

PyObject* raise_status(State* state, int32_t status, PyObject* more) {
  PyObject* type = state->value_error;
  if (status == AOT_TUNE_ERROR_NULL || status == AOT_TUNE_ERROR_DTYPE) type = state->type_error;
  if (status >= AOT_TUNE_ERROR_WORKSPACE && status != AOT_TUNE_ERROR_VALUE) type = state->runtime_error;
  const char* text = kLibrary.last_error();  // it may quote the environment, and be cut off within a letter
  Ref message = PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(std::strlen(text)), "replace");
  if (message != nullptr && more != nullptr) message = PyUnicode_Concat(message, more);
  if (message != nullptr) PyErr_SetObject(type, message);
  return nullptr;
}

PyObject* operator_names() {
  return make_tuple(kLibrary.operator_count,
                    [](Py_ssize_t i) { return PyUnicode_FromString(kLibrary.operators[i].name); });
}

PyObject* make_module(const char* doc, PyMethodDef* operators) {
  int count = kLibrary.operator_count;
  if (count > kMaxMethods) {
    PyErr_SetString(PyExc_ImportError, "the library has too many operators");
    return nullptr;
  }
  for (int i = 0; i < count; ++i) methods[i] = operators[i];
  for (const PyMethodDef& method : kCommon) methods[count++] = method;
  definition.m_name = kLibrary.name;
  definition.m_doc = doc;
  return PyModuleDef_Init(&definition);
}

}  // namespace aot_tune::python
