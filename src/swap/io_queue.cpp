// SPDX-License-Identifier: Apache-2.0
// Which queue serves: io_uring if it really moves data here, else threads, with the reason.
#include "swap/io_queue.hpp"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "base/error_text.hpp"
#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "swap/io_buffer.hpp"
#include "swap/never_freed.hpp"

namespace headrace::swap {
namespace {
constexpr std::uint32_t kProbeBytes = 4096;
constexpr std::chrono::seconds kProbePatience{5};

std::string first_word_after(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  if (key.empty()) {
    file >> word;
    return word;
  }
  while (file >> word) {
    if (word == key) {
      file >> word;
      return word;
    }
  }
  return "";
}

std::string policy_text() {
  const std::string disabled = first_word_after("/proc/sys/kernel/io_uring_disabled", "");
  if (disabled == "1" || disabled == "2") {
    return "kernel.io_uring_disabled is " + disabled +
           "; 'sysctl kernel.io_uring_disabled=0' allows it";
  }
  if (first_word_after("/proc/self/status", "Seccomp:") == "2") {
    return "a seccomp filter is active, as containers have it; a profile that allows "
           "io_uring_setup, "
           "io_uring_enter and io_uring_register lets it in";
  }
  return "a security policy forbids it";
}

std::string memlock_text() {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string value =
      limit.rlim_cur == RLIM_INFINITY ? "unlimited" : base::format_bytes(limit.rlim_cur);
  return "the limit on locked memory is " + value +
         "; 'ulimit -l' or --ulimit memlock=-1 raises it";
}

std::string meaning(int sys_errno) {
  switch (sys_errno) {
    case EPERM:
    case EACCES:
      return policy_text();
    case ENOSYS:
      return "this kernel or sandbox has no io_uring; kernels from 5.6 on have what is needed";
    case ENOMEM:
      return memlock_text();
    case EMFILE:
    case ENFILE:
      return "too many files are open; 'ulimit -n' raises the limit";
    default:
      return "this kernel does not set up the ring as asked";
  }
}

Error probe_failed(const std::string& what) {
  return Error(Code::kUnsupported, "io_uring was set up, but its first block of 4 KiB " + what);
}

// What the kernel may still use if the block never arrives: freed together or not at all.
struct Probe {
  IoBuffer memory = make_io_buffer(kProbeBytes);
  IoRequest request;
  std::unique_ptr<IoQueue> queue;
};

// The caller's first file if it holds a block, else one in memory with a pattern.
int probe_file(const IoQueueOptions& options, base::UniqueFd& own) {
  struct stat status {};
  if (!options.files.empty() && ::fstat(options.files[0], &status) == 0 &&
      status.st_size >= kProbeBytes) {
    return options.files[0];
  }
  own = base::UniqueFd(::memfd_create("headrace-probe", MFD_CLOEXEC));
  std::array<unsigned char, kProbeBytes> pattern;
  for (std::size_t i = 0; i < pattern.size(); ++i)
    pattern[i] = static_cast<unsigned char>(i * 31 + 7);
  if (!own || ::pwrite(own.get(), pattern.data(), pattern.size(), 0) != kProbeBytes) {
    throw probe_failed("could not be tried: " + base::errno_text(errno));
  }
  return own.get();
}

bool transient(std::int64_t result) {
  return result == -EAGAIN || result == -EINTR || result == -EBUSY;
}

// Returns what the kernel said, or nothing within the time.
bool reap_probe(IoQueue& queue) {
  IoRequest* done = nullptr;
  const auto until = std::chrono::steady_clock::now() + kProbePatience;
  while (std::chrono::steady_clock::now() < until) {
    queue.flush();  // what it could not take is found missing below
    if (queue.reap({&done, 1}, std::chrono::milliseconds(100)) == 1) return true;
  }
  return false;
}

// Moves one real block and compares it with what pread brings: a ring that can be set up is not yet
// one that works.
std::unique_ptr<IoQueue> proven(std::unique_ptr<IoQueue> queue, const IoQueueOptions& options) {
  base::UniqueFd own;
  const int fd = probe_file(options, own);
  const IoBuffer by_pread = make_io_buffer(kProbeBytes);
  auto probe = std::make_unique<Probe>();
  probe->queue = std::move(queue);
  IoRequest& request = probe->request;
  for (int attempt = 0; attempt < 8; ++attempt) {
    request = {.fd = fd, .data = probe->memory.get(), .size_bytes = kProbeBytes};
    if (!probe->queue->submit(request)) throw probe_failed("was not taken");
    if (!reap_probe(*probe->queue)) {
      never_free(std::move(probe));
      throw probe_failed("did not arrive within 5 s");
    }
    if (!transient(request.result)) break;
  }
  if (request.result < 0) {
    throw probe_failed("failed: " + base::errno_text(static_cast<int>(-request.result)));
  }
  if (request.result != kProbeBytes) {
    throw probe_failed("came short: got " + std::to_string(request.result) + " bytes");
  }
  if (::pread(fd, by_pread.get(), kProbeBytes, 0) != kProbeBytes ||
      std::memcmp(probe->memory.get(), by_pread.get(), kProbeBytes) != 0) {
    throw probe_failed("held other bytes than pread finds there");
  }
  return std::move(probe->queue);
}
}  // namespace

Error uring_refused(const char* call, int sys_errno) {
  return Error(Code::kUnsupported,
               std::string(call) + " was refused: " + base::errno_text(sys_errno) + ": " +
                   meaning(sys_errno),
               sys_errno);
}

ChosenIoQueue choose_io_queue(IoQueueKind kind, const IoQueueOptions& options,
                              const UringMaker& make_uring) {
  if (kind == IoQueueKind::kThreads) return {make_io_queue_threads(options), ""};
  if (kind == IoQueueKind::kUring) return {proven(make_uring(options), options), ""};
  std::string reason;
  try {
    return {proven(make_uring(options), options), ""};
  } catch (const Error& error) {
    reason = error.what();
  }
  try {
    return {make_io_queue_threads(options), reason + "; threads do the I/O instead"};
  } catch (const Error& error) {
    throw Error(error.code(), std::string(error.what()) + "; before that, " + reason,
                error.sys_errno());
  }
}

ChosenIoQueue choose_io_queue(IoQueueKind kind, const IoQueueOptions& options) {
  return choose_io_queue(kind, options, make_io_queue_uring);
}
}  // namespace headrace::swap
