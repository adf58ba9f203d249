// SPDX-License-Identifier: Apache-2.0
#include "pinned/arena.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "async/thread.hpp"
#include "base/error_text.hpp"
#include "headrace/error.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace headrace::pinned {
namespace {
[[noreturn]] void refuse(std::uint64_t size_bytes, const char* call, int sys_errno) {
  throw Error(
      Code::kOutOfBudget,
      std::string(call) + " of " + base::format_bytes(size_bytes) +
          " of host memory failed: " + base::errno_text(sys_errno) +
          "; nothing was allocated. Free memory (or raise ulimit -v); or move more to drives: set "
          "zero_optimization.offload_optimizer.device and offload_param.device to nvme where they "
          "are not, and headrace.host_budget_bytes to less.",
      sys_errno);
}

// Touches every page of [data, data + size). Kernels before 5.14 lack MADV_POPULATE_WRITE: there
// the pages are touched by hand, and running out ends as it always did.
int populate(std::byte* data, std::uint64_t size) {
  if (madvise(data, size, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
  for (std::uint64_t at = 0; at < size; at += 4096)
    *const_cast<volatile std::byte*>(data + at) = std::byte{0};
  return 0;
}

int populate_in_threads(std::span<std::byte> bytes, std::uint32_t threads) {
  const std::uint64_t piece =
      base::align_up(base::ceil_div(bytes.size(), std::max(1u, threads)), base::kHugePage);
  std::atomic<int> error{0};
  std::vector<std::thread> others;
  for (std::uint64_t at = piece; at < bytes.size(); at += piece) {
    const auto touch = [&, at] {
      if (const int e = populate(bytes.data() + at, std::min(piece, bytes.size() - at))) error = e;
    };
    try {
      others.push_back(async::start_thread("headrace-pop", touch));
    } catch (const Error&) {
      touch();  // no thread left: this one does it
    }
  }
  if (const int e = populate(bytes.data(), std::min<std::uint64_t>(piece, bytes.size()))) error = e;
  for (std::thread& thread : others) thread.join();
  return error;
}
}  // namespace

Arena::Arena(std::uint64_t size_bytes, std::uint32_t populate_threads) {
  size_bytes = base::align_up(size_bytes, base::kHugePage);
  if (size_bytes == 0) return;
  const std::uint64_t reserved = size_bytes + base::kHugePage;
  void* const mapped = mmap(nullptr, reserved, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) refuse(size_bytes, "mmap", errno);
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped);
  const std::uintptr_t aligned = base::align_up(begin, base::kHugePage);
  if (aligned > begin) munmap(mapped, aligned - begin);
  const std::uintptr_t end = aligned + size_bytes;
  if (begin + reserved > end) munmap(reinterpret_cast<void*>(end), begin + reserved - end);
  bytes_ = {reinterpret_cast<std::byte*>(aligned), size_bytes};
  madvise(bytes_.data(), size_bytes, MADV_HUGEPAGE);
  madvise(bytes_.data(), size_bytes, MADV_DONTFORK);
  madvise(bytes_.data(), size_bytes, MADV_DONTDUMP);
  if (const int error = populate_in_threads(bytes_, populate_threads)) {
    munmap(bytes_.data(), size_bytes);
    refuse(size_bytes, "populating", error);
  }
}

void Arena::discard() noexcept {
  if (bytes_.empty()) return;
  if (Device* const device = std::exchange(pinned_by_, nullptr))
    device->unpin(bytes_.data(), bytes_.size());
  madvise(bytes_.data(), bytes_.size(), MADV_DONTNEED);
}

int Arena::populate(std::uint64_t offset_bytes, std::uint64_t size_bytes) noexcept {
  return pinned::populate(bytes_.data() + offset_bytes, size_bytes);
}

void Arena::refuse_populating(int sys_errno) const {
  refuse(bytes_.size(), "populating", sys_errno);
}

Arena::~Arena() {
  if (pinned_by_ != nullptr) pinned_by_->unpin(bytes_.data(), bytes_.size());
  if (!leaked_ && !bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}
}  // namespace headrace::pinned
