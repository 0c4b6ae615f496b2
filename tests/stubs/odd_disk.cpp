// A file system on which some calls fail: LD_PRELOAD it, with folders in ODD_DISK and calls with their errno
// in ODD_CALLS, such as "fsync=22 rename=18". What lies elsewhere is as it is.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

int error_of(const char* call) {
  const char* calls = getenv("ODD_CALLS");
  const size_t length = strlen(call);
  for (const char* at = calls; at != nullptr && (at = strstr(at, call)) != nullptr; at += length) {
    if ((at == calls || at[-1] == ' ') && at[length] == '=') return atoi(at + length + 1);
  }
  return 0;
}

bool is_odd(int folder, const char* path) {
  const char* disk = getenv("ODD_DISK");
  if (disk == nullptr) return false;
  char whole[4096] = "";
  if (path == nullptr || path[0] != '/') {
    char link[64];
    snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
    const ssize_t read = readlink(link, whole, sizeof whole - 1);
    whole[read < 0 ? 0 : read] = 0;
  } else {
    snprintf(whole, sizeof whole, "%s", path);
  }
  for (const char* end = disk; *disk != 0; disk = *end != 0 ? end + 1 : end) {
    end = strchrnul(disk, ':');
    if (strncmp(whole, disk, end - disk) == 0) return true;
  }
  return false;
}

bool fails(const char* call, int folder, const char* path) {
  const int error = error_of(call);
  if (error == 0 || !is_odd(folder, path)) return false;
  errno = error;
  return true;
}

template <class F>
F real(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

}  // namespace

#define AS_IT_IS(NAME, PARAMETERS, ...) return real<int(*) PARAMETERS>(#NAME)(__VA_ARGS__)

extern "C" {

int fsync(int fd) {
  struct stat about;
  const bool folder = fstat(fd, &about) == 0 && S_ISDIR(about.st_mode);
  if (fails(folder ? "fsync_folder" : "fsync", fd, nullptr)) return -1;
  AS_IT_IS(fsync, (int), fd);
}

int flock(int fd, int operation) {
  if (fails("flock", fd, nullptr)) return -1;
  AS_IT_IS(flock, (int, int), fd, operation);
}

int fchmod(int fd, mode_t mode) {
  if (fails("chmod", fd, nullptr)) return -1;
  AS_IT_IS(fchmod, (int, mode_t), fd, mode);
}

int chmod(const char* path, mode_t mode) {
  if (fails("chmod", AT_FDCWD, path)) return -1;
  AS_IT_IS(chmod, (const char*, mode_t), path, mode);
}

int rename(const char* from, const char* to) {
  if (fails("rename", AT_FDCWD, to)) return -1;
  AS_IT_IS(rename, (const char*, const char*), from, to);
}

int unlink(const char* path) {
  if (fails("unlink", AT_FDCWD, path)) return -1;
  AS_IT_IS(unlink, (const char*), path);
}

int unlinkat(int folder, const char* path, int flags) {
  if (fails("unlink", folder, path)) return -1;
  AS_IT_IS(unlinkat, (int, const char*, int), folder, path, flags);
}

int ftruncate64(int fd, off64_t size) {
  if (fails("ftruncate", fd, nullptr)) return -1;
  AS_IT_IS(ftruncate64, (int, off64_t), fd, size);
}

int mkdir(const char* path, mode_t mode) {
  if (fails("mkdir", AT_FDCWD, path)) return -1;
  AS_IT_IS(mkdir, (const char*, mode_t), path, mode);
}

ssize_t write(int fd, const void* data, size_t size) {
  if (fails("write", fd, nullptr)) return -1;
  return real<ssize_t (*)(int, const void*, size_t)>("write")(fd, data, size);
}

int utimensat(int folder, const char* path, const struct timespec* times, int flags) {
  if (fails("utime", folder, path)) return -1;
  AS_IT_IS(utimensat, (int, const char*, const struct timespec*, int), folder, path, times, flags);
}
}
