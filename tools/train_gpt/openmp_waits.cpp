// SPDX-License-Identifier: Apache-2.0
// openmp_waits.cpp: reads how long the computing thread waited for a CPU; threads that sleep.
#include "openmp_waits.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace train_gpt {
namespace {
constexpr std::chrono::milliseconds kInterval{500};
// Of an interval, waiting for a CPU. A busy neighbour takes 0.3 or more. The engine's own update
// workers take up to 0.1, and there long waits are faster.
constexpr double kShareThatShortens = 0.15;
constexpr int kSharedIntervals = 2;  // in a row: a start of threads is not enough
constexpr int kQuietIntervals = 4;   // before waits are long again

// A symbol of libgomp, which LibTorch brings; null in any other OpenMP.
void* find_in_libgomp(const char* name) {
  void* const found = ::dlsym(RTLD_DEFAULT, name);
  Dl_info where{};
  if (found == nullptr || ::dladdr(found, &where) == 0 || where.dli_fname == nullptr)
    return nullptr;
  return std::string_view(where.dli_fname).find("libgomp") == std::string_view::npos ? nullptr
                                                                                     : found;
}

// Nanoseconds that a thread was ready to run and did not. Its file: "ran waited slices".
// Allocates nothing: what the watcher throws would end the process.
std::optional<std::uint64_t> waited_for_cpu(const std::string& file) noexcept {
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return std::nullopt;
  char text[96] = {};
  const ssize_t size = ::read(descriptor, text, sizeof text - 1);
  ::close(descriptor);
  std::uint64_t waited = 0;
  if (size <= 0 || std::sscanf(text, "%*u %" SCNu64, &waited) != 1) return std::nullopt;
  return waited;
}

// libgomp ends the process where it gets no thread, so they are tried first.
bool has_room_for_threads(unsigned count) {
  std::mutex all_are_there;
  std::vector<std::thread> threads;
  bool enough = true;
  {
    const std::lock_guard lock(all_are_there);
    try {
      while (threads.size() < count)
        threads.emplace_back([&] { const std::lock_guard wait(all_are_there); });
    } catch (const std::exception&) {
      enough = false;
    }
  }
  for (std::thread& thread : threads) thread.join();
  return enough;
}

// Stacks of another size are not what has_room_for_threads() tries.
bool is_users_choice() {
  for (const char* name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_STACKSIZE", "GOMP_STACKSIZE"})
    if (std::getenv(name) != nullptr) return true;
  return false;
}

// Each thread reserves a stack and an arena, which LibTorch could then lack.
bool address_space_is_limited() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}
}  // namespace

OpenMpWaits::OpenMpWaits(std::uint32_t team_threads, double& short_seconds)
    : short_seconds_(short_seconds) {
  if (is_users_choice() || address_space_is_limited()) return;
  parallel_ = reinterpret_cast<Parallel>(find_in_libgomp("GOMP_parallel"));
  const auto cpus = reinterpret_cast<int (*)()>(find_in_libgomp("omp_get_num_procs"));
  if (parallel_ == nullptr || cpus == nullptr) return;
  const std::string file =
      "/proc/self/task/" + std::to_string(::syscall(SYS_gettid)) + "/schedstat";
  if (!waited_for_cpu(file)) return;
  // Of a second team all but its first thread are counted: one more than CPUs in all.
  const auto available = static_cast<unsigned>(cpus());
  sleepers_ = available > team_threads ? available - team_threads + 2 : 2;
  try {
    watcher_ = std::thread([this, file] { watch(file); });
  } catch (const std::exception&) {  // no thread left: waits stay as they are
  }
}

OpenMpWaits::~OpenMpWaits() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

void OpenMpWaits::watch(const std::string& waiting_file) {
  using Clock = std::chrono::steady_clock;
  std::uint64_t waited = waited_for_cpu(waiting_file).value_or(0);
  Clock::time_point then = Clock::now();
  int quiet = 0, shared = 0;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kInterval, [&] { return ending_; })) {
    lock.unlock();
    const std::uint64_t waited_now = waited_for_cpu(waiting_file).value_or(waited);
    const Clock::time_point now = Clock::now();
    const double passed = std::chrono::duration<double>(now - then).count();
    if (short_) short_seconds_ += passed;
    const double share = static_cast<double>(waited_now - waited) / (passed * 1e9);
    shared = share > kShareThatShortens ? shared + 1 : 0;
    quiet = shared > 0 ? 0 : quiet + 1;
    if (!short_ && shared >= kSharedIntervals && !shorten()) return;
    if (short_ && quiet >= kQuietIntervals) lengthen();
    waited = waited_now;
    then = now;
    lock.lock();
  }
  lock.unlock();
  if (short_) lengthen();
}

bool OpenMpWaits::shorten() {
  if (!has_room_for_threads(sleepers_)) return false;
  short_ = true;
  try {
    holder_ = std::thread([this] { parallel_(sleep_until_lengthened, this, sleepers_, 0); });
  } catch (const std::exception&) {
    short_ = false;
  }
  return short_;
}

// The threads end with the one that made them, and libgomp counts them no more.
void OpenMpWaits::lengthen() {
  {
    const std::lock_guard lock(mutex_);
    short_ = false;
  }
  changed_.notify_all();
  holder_.join();
}

void OpenMpWaits::sleep_until_lengthened(void* waits) {
  auto& self = *static_cast<OpenMpWaits*>(waits);
  std::unique_lock lock(self.mutex_);
  self.changed_.wait(lock, [&] { return !self.short_; });
}
}  // namespace train_gpt
