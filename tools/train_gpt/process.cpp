// SPDX-License-Identifier: Apache-2.0
// process.cpp: /proc/self, malloc's thresholds, signal handlers.
#include "process.hpp"

#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <new>
#include <string>
#include <system_error>
#include <thread>

#include "failures.hpp"

namespace train_gpt {
namespace {
volatile std::sig_atomic_t first_signal = 0;
std::atomic<TellOnSignal*> watcher{nullptr};
std::atomic<int> in_handler{0};
static_assert(std::atomic<TellOnSignal*>::is_always_lock_free, "read in a signal handler");
}  // namespace

struct SignalAccess {
  static void tell(const TellOnSignal& to) noexcept { to.tell_(to.context_); }
};

namespace {
void on_signal(int number) {
  const int saved = errno;
  if (first_signal == 0) first_signal = number;
  in_handler.fetch_add(1);
  if (const TellOnSignal* to = watcher.load()) SignalAccess::tell(*to);
  in_handler.fetch_sub(1);
  errno = saved;
}

// The number after "key:" in a file of /proc, 0 if it is not there.
std::uint64_t proc_number(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return std::strtoull(line.c_str() + key.size(), nullptr, 10);
  }
  return 0;
}
}  // namespace

std::uint64_t resident_bytes() { return proc_number("/proc/self/status", "VmRSS:") * 1024; }
std::uint64_t peak_resident_bytes() { return proc_number("/proc/self/status", "VmHWM:") * 1024; }

void reset_peak() noexcept {
  const int file = ::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  [[maybe_unused]] const ssize_t done = ::write(file, "5", 1);
  ::close(file);
}

KernelTransfers kernel_transfers() {
  return {proc_number("/proc/self/io", "read_bytes:"),
          proc_number("/proc/self/io", "write_bytes:")};
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

void install_terminate_handler() noexcept {
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
    std::fprintf(
        stderr,
        "train_gpt: error: %s; the process ends at once, nothing was saved, and swap files "
        "stay until the next run on their path removes them. %s\n",
        text.c_str(), cure);
    std::_Exit(kRunFailed);
  });
}

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  for (const int number : {SIGINT, SIGTERM}) ::sigaction(number, &action, nullptr);
  // What nohup or a shell's background has us ignore stays ignored. A second SIGQUIT ends the
  // process at once and leaves a core, for who looks into a run that hangs.
  for (const int number : {SIGHUP, SIGQUIT}) {
    struct sigaction before {};
    if (::sigaction(number, nullptr, &before) != 0 || before.sa_handler == SIG_IGN) continue;
    action.sa_flags = SA_RESTART | (number == SIGQUIT ? static_cast<int>(SA_RESETHAND) : 0);
    ::sigaction(number, &action, nullptr);
  }
  // A closed stdout is then an error of the write, and the engine still closes its files.
  ::signal(SIGPIPE, SIG_IGN);
  // So is a file above ulimit -f, and the part of it that is there is removed.
  ::signal(SIGXFSZ, SIG_IGN);
}

int signal_received() noexcept { return first_signal; }

void check_signal() {
  const int number = first_signal;
  if (number == 0) return;
  fail(headrace::Code::kInterrupted, "ended by a signal");
}

TellOnSignal::TellOnSignal(void (*tell)(void*) noexcept, void* context) noexcept
    : tell_(tell), context_(context) {
  watcher.store(this);
  if (first_signal != 0) tell_(context_);
}

TellOnSignal::~TellOnSignal() {
  watcher.store(nullptr);
  while (in_handler.load() > 0) std::this_thread::yield();
}
}  // namespace train_gpt
