// SPDX-License-Identifier: Apache-2.0
// Which queue serves: the first of io_uring, Linux AIO and threads that really moves data here, and
// why those before it do not.
#include "swap/io_queue.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
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

std::string policy_text(const char* calls) {
  if (first_word_after("/proc/self/status", "Seccomp:") == "2") {
    return std::string(
               "a seccomp filter is active, as containers have it; a profile that allows ") +
           calls + " lets it in";
  }
  return "a security policy forbids it";
}

std::string uring_policy_text() {
  const std::string disabled = first_word_after("/proc/sys/kernel/io_uring_disabled", "");
  if (disabled == "1" || disabled == "2") {
    return "kernel.io_uring_disabled is " + disabled +
           "; 'sysctl kernel.io_uring_disabled=0' allows it";
  }
  return policy_text("io_uring_setup, io_uring_enter and io_uring_register");
}

constexpr const char* kDescriptorsText = "too many files are open; 'ulimit -n' raises the limit";

std::string aio_limit_text() {
  return "of the machine's " + first_word_after("/proc/sys/fs/aio-max-nr", "") + " requests " +
         first_word_after("/proc/sys/fs/aio-nr", "") +
         " are taken; 'sysctl fs.aio-max-nr=1048576' raises the limit";
}

std::string memlock_text() {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string value =
      limit.rlim_cur == RLIM_INFINITY ? "unlimited" : base::format_bytes(limit.rlim_cur);
  return "the limit on locked memory is " + value +
         "; 'ulimit -l' or --ulimit memlock=-1 raises it";
}

std::string uring_meaning(int sys_errno) {
  switch (sys_errno) {
    case EPERM:
    case EACCES:
      return uring_policy_text();
    case ENOSYS:
      return "this kernel or sandbox has no io_uring; kernels from 5.6 on have what is needed";
    case ENOMEM:
      return memlock_text();
    case EMFILE:
    case ENFILE:
      return kDescriptorsText;
    default:
      return "this kernel does not set up the ring as asked";
  }
}

std::string aio_meaning(int sys_errno) {
  switch (sys_errno) {
    case EPERM:
    case EACCES:
      return policy_text("io_setup, io_submit, io_getevents and io_destroy");
    case ENOSYS:
      return "this kernel or sandbox has no asynchronous I/O";
    case EAGAIN:
      return aio_limit_text();
    case EINVAL:
      return "kernels from 4.18 on have what is needed";
    case EMFILE:
    case ENFILE:
      return kDescriptorsText;
    default:
      return "this kernel does not set up asynchronous I/O as asked";
  }
}

Error refused(const char* call, int sys_errno, const std::string& meaning) {
  return Error(Code::kUnsupported,
               std::string(call) + " was refused: " + base::errno_text(sys_errno) + ": " + meaning,
               sys_errno);
}

// The block that shows whether a queue works did not come as it should.
struct ProbeFailed {
  std::string what;
  int refused = 0;  // the errno with which the kernel takes nothing at all
};
ProbeFailed probe_failed(std::string what) { return {std::move(what)}; }

// The resources that the kernel may still use if the block never arrives: freed together, or not at
// all.
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

// True when the block came back, false when it did not within the time. Throws where the kernel
// does not take it: a filter may allow a ring's set-up and forbid its use.
bool reap_probe(IoQueue& queue) {
  IoRequest* done = nullptr;
  const auto until = std::chrono::steady_clock::now() + kProbePatience;
  while (std::chrono::steady_clock::now() < until) {
    const int error = queue.flush();
    if (error != 0 && !transient(-error))
      throw ProbeFailed{"was not taken: " + base::errno_text(error), error};
    if (queue.reap({&done, 1}, std::chrono::milliseconds(100)) == 1) return true;
  }
  return false;
}

// Moves one real block and compares it with what pread brings: a ring that can be set up is not yet
// one that works.
std::unique_ptr<IoQueue> try_block(std::unique_ptr<IoQueue> queue, const IoQueueOptions& options) {
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

std::unique_ptr<IoQueue> proven(const char* name, const IoQueueFactory& make,
                                std::string (*meaning)(int), const IoQueueOptions& options) {
  try {
    return try_block(make(options), options);
  } catch (const ProbeFailed& failed) {
    std::string text =
        std::string(name) + " was set up, but its first block of 4 KiB " + failed.what;
    if (failed.refused != 0) text += ": " + meaning(failed.refused);
    throw Error(Code::kUnsupported, text, failed.refused);
  }
}

// Linux AIO reads and writes in the calling thread where the file is cached.
bool all_direct(std::span<const int> files) {
  return std::ranges::all_of(files, [](int fd) {
    const int flags = ::fcntl(fd, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) != 0;
  });
}
}  // namespace

Error uring_refused(const char* call, int sys_errno) {
  return refused(call, sys_errno, uring_meaning(sys_errno));
}
Error aio_refused(const char* call, int sys_errno) {
  return refused(call, sys_errno, aio_meaning(sys_errno));
}

std::string not_registered(const char* what, int sys_errno) {
  const bool policy = sys_errno == EPERM || sys_errno == EACCES;
  return "io_uring registers no " + std::string(what) + ": " + base::errno_text(sys_errno) +
         ": every request names its own, at a little more CPU; " +
         (sys_errno == ENOMEM ? memlock_text()
          : policy            ? uring_policy_text()
                              : "headrace.register_buffers \"off\" does not ask for it");
}

const char* text_of(IoKind kind) noexcept {
  return kind == IoKind::kRead ? "read" : kind == IoKind::kWrite ? "write" : "sync";
}

std::string text_of(const Registered& registered) {
  if (!registered.buffers && !registered.files) return "";
  return std::string("registered ") + (registered.buffers ? "buffers" : "") +
         (registered.buffers && registered.files ? " and " : "") +
         (registered.files ? "files" : "");
}

ChosenIoQueue choose_io_queue(IoQueueKind kind, const IoQueueOptions& options,
                              const IoQueueFactories& make) {
  const auto uring = [&] { return proven("io_uring", make.uring, uring_meaning, options); };
  const auto aio = [&] { return proven("Linux AIO", make.aio, aio_meaning, options); };
  switch (kind) {
    case IoQueueKind::kAuto:
      break;
    case IoQueueKind::kUring:
      return {uring(), ""};
    case IoQueueKind::kAio:
      return {aio(), ""};
    case IoQueueKind::kThreads:
      return {make.threads(options), ""};
  }
  std::string passed_over;
  try {
    return {uring(), ""};
  } catch (const Error& error) {
    passed_over = error.what();
  }
  if (all_direct(options.files)) {
    try {
      return {aio(), passed_over + "; Linux AIO does the I/O instead"};
    } catch (const Error& error) {
      passed_over += std::string("; ") + error.what();
    }
  } else {
    passed_over += "; Linux AIO needs O_DIRECT";
  }
  try {
    return {make.threads(options), passed_over + "; threads do the I/O instead"};
  } catch (const Error& error) {
    throw Error(error.code(), std::string(error.what()) + "; before that, " + passed_over,
                error.sys_errno());
  }
}
}  // namespace headrace::swap
