// SPDX-License-Identifier: Apache-2.0
// failing_drive.cpp: a library for LD_PRELOAD: a drive that fails. From the moment that the file
// FAILING_DRIVE_TRIGGER exists, FAILING_DRIVE_AFTER more calls of one kind on swap files succeed,
// and every one after that ends with FAILING_DRIVE_ERRNO, or where that is 0 the process does, with
// exit code 0 and without a word.
//   FAILING_DRIVE_CALL   "pread" or "pwrite"
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace {
using Read = ssize_t (*)(int, void*, size_t, off_t);
using Write = ssize_t (*)(int, const void*, size_t, off_t);
std::atomic<long> calls{0};

bool is_swap_file(int file) {
  char link[64], path[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t size = ::readlink(link, path, sizeof path);
  return size > 0 && std::string_view(path, static_cast<size_t>(size)).ends_with(".swap");
}

// Sets errno where the call is to fail.
bool fails(std::string_view call, int file) {
  const char* const wanted = std::getenv("FAILING_DRIVE_CALL");
  const char* const trigger = std::getenv("FAILING_DRIVE_TRIGGER");
  if (wanted == nullptr || trigger == nullptr || call != wanted || !is_swap_file(file) ||
      ::access(trigger, F_OK) != 0 || calls++ < std::atol(std::getenv("FAILING_DRIVE_AFTER"))) {
    return false;
  }
  errno = std::atoi(std::getenv("FAILING_DRIVE_ERRNO"));
  if (errno == 0) ::_exit(0);
  return true;
}

template <class Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}
}  // namespace

extern "C" {
ssize_t pread(int file, void* to, size_t size, off_t at) {
  static const auto next = real<Read>("pread");
  return fails("pread", file) ? -1 : next(file, to, size, at);
}
ssize_t pread64(int file, void* to, size_t size, off_t at) { return pread(file, to, size, at); }
ssize_t pwrite(int file, const void* from, size_t size, off_t at) {
  static const auto next = real<Write>("pwrite");
  return fails("pwrite", file) ? -1 : next(file, from, size, at);
}
ssize_t pwrite64(int file, const void* from, size_t size, off_t at) {
  return pwrite(file, from, size, at);
}
}
