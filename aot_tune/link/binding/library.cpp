// The library that has the module's functions: the one that was built with the module, or none.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "binding.h"

namespace aot_tune::python {
namespace {

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

}  // namespace

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
    PyErr_Format(
        PyExc_ImportError,
        "%s needs %s, but this process has loaded another library of that name: %s; a process has one of "
        "each name: give one of them another OUTPUT_NAME in aot_tune_add_library, take the other's folder "
        "off LD_LIBRARY_PATH, or import the two in processes of their own",
        ours.dli_fname, path, loaded.dli_fname);
    return false;
  }
  return true;  // it was moved, for example by a tool that repairs wheels
}

}  // namespace aot_tune::python
