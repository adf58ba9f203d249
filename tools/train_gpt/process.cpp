// SPDX-License-Identifier: Apache-2.0
// process.cpp: /proc/self, malloc's thresholds, limits.
#include "process.hpp"

#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "failures.hpp"
#include "platform/proc_files.hpp"

namespace train_gpt {
void reset_peak() noexcept {
  const int file = ::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  [[maybe_unused]] const ssize_t done = ::write(file, "5", 1);
  ::close(file);
}

KernelTransfers kernel_transfers() {
  const std::string io = headrace::platform::read_text("/proc/self/io").value_or("");
  const auto number = [&](const char* name) {
    return headrace::platform::named_number(io, name).value_or(0);
  };
  return {number("read_bytes"), number("write_bytes")};
}

void return_freed_memory() noexcept {
  constexpr int kThreshold = 1 << 20;
  ::mallopt(M_MMAP_THRESHOLD, kThreshold);
  ::mallopt(M_TRIM_THRESHOLD, kThreshold);
}

void check_address_space() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  constexpr std::size_t kNeeded = 64 << 20;  // heaps and stacks of the first threads
  void* const room = ::mmap(nullptr, kNeeded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room != MAP_FAILED) {
    ::munmap(room, kNeeded);
    return;
  }
  fail(headrace::Code::kOutOfBudget,
       "the limit on address space (ulimit -v) of " + std::to_string(limit.rlim_cur >> 20) +
           " MiB leaves less than the " + std::to_string(kNeeded >> 20) +
           " MiB that LibTorch needs to start its threads; it would end the process without a "
           "message, so the run was not started. Raise the limit, or use a cgroup's memory.max, "
           "which counts memory in use.",
       ENOMEM);
}

void check_file_size(const std::string& path, std::uint64_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      limit.rlim_cur >= bytes)
    return;
  fail(headrace::Code::kNoSpace,
       "'" + path + "' would take " + std::to_string(bytes) +
           " bytes, the limit on the size of files (ulimit -f) is " +
           std::to_string(limit.rlim_cur) +
           " bytes; the run was not started, since it could not be saved. Raise the limit "
           "(ulimit -f counts in blocks, of 1024 bytes in bash), or leave out --save.",
       EFBIG);
}

namespace {
std::string& speaker() {
  static auto& of_this_process = *new std::string;
  return of_this_process;
}

// Torch and Gloo report it by the words of their error only.
bool is_lack_of_files(const std::string& text) {
  return text.find("Too many open files") != std::string::npos;
}
}  // namespace

void speak_as(const std::string& prefix) { speaker() = prefix; }

void install_terminate_handler() noexcept {
  speaker();
  std::set_terminate([] {
    std::string text = "an exception left a thread";
    const char* cure =
        "It was thrown where nothing can catch it, in a thread or a destructor of a library. Run "
        "it with --plain: if it fails there too, report this line to that library, else to "
        "Headrace.";
    constexpr const char* kMoreMemory =
        "Raise the limit on memory (ulimit -v, the cgroup's memory.max) or on threads (ulimit -u), "
        "or make the run smaller.";
    try {
      if (const std::exception_ptr current = std::current_exception())
        std::rethrow_exception(current);
    } catch (const std::bad_alloc&) {
      text = "the system gives no more memory to a thread of a library";
      cure = kMoreMemory;
    } catch (const std::system_error& error) {
      text = error.what();
      if (error.code() == std::errc::resource_unavailable_try_again ||
          error.code() == std::errc::not_enough_memory)
        cure = kMoreMemory;
    } catch (const std::exception& error) {
      text = first_line(error);
    } catch (...) {
    }
    if (is_lack_of_files(text)) cure = "Raise the limit on open files (ulimit -n).";
    std::fprintf(
        stderr,
        "train_gpt: %serror: %s; the process ends at once, nothing was saved, and swap files "
        "stay until the next run on their path removes them. %s\n",
        speaker().c_str(), text.c_str(), cure);
    std::_Exit(kFailed);
  });
}
}  // namespace train_gpt
