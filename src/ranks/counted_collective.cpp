// SPDX-License-Identifier: Apache-2.0
#include "ranks/counted_collective.hpp"

#include <cstddef>
#include <span>

namespace headrace::ranks {
using Clock = std::chrono::steady_clock;

void CountedCollective::count(Clock::time_point begin, std::uint64_t sent_bytes) noexcept {
  const auto spent = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin);
  ++calls_;
  sent_bytes_ += sent_bytes;
  nanoseconds_ += static_cast<std::uint64_t>(spent.count());
}

void CountedCollective::all_gather(CollectiveTag tag, Stream stream, DeviceSpan whole) {
  const auto begin = Clock::now();
  counted_->all_gather(tag, stream, whole);
  count(begin, whole.size_bytes / world_size() * (world_size() - 1));
}

void CountedCollective::all_to_all(CollectiveTag tag, Stream stream,
                                   std::span<const DeviceSpan> give, void* take) {
  const auto begin = Clock::now();
  counted_->all_to_all(tag, stream, give, take);
  std::uint64_t sent_bytes = 0;
  for (std::uint32_t r = 0; r < give.size(); ++r) {
    if (r != rank()) sent_bytes += give[r].size_bytes;
  }
  count(begin, sent_bytes);
}

void CountedCollective::exchange(CollectiveTag tag, std::span<const std::byte> mine,
                                 std::span<std::byte> all) {
  const auto begin = Clock::now();
  counted_->exchange(tag, mine, all);
  count(begin, mine.size() * (world_size() - 1));
}

void CountedCollective::add_stats(Stats& stats) const noexcept {
  stats.collective_calls = calls_.load();
  stats.collective_sent_bytes = sent_bytes_.load();
  stats.collective_seconds = 1e-9 * static_cast<double>(nanoseconds_.load());
}
}  // namespace headrace::ranks
