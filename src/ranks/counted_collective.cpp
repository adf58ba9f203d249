// SPDX-License-Identifier: Apache-2.0
#include "ranks/counted_collective.hpp"

#include <cstddef>
#include <exception>
#include <new>
#include <span>
#include <string>

#include "headrace/error.hpp"

namespace headrace::ranks {
using Clock = std::chrono::steady_clock;

void CountedCollective::Counts::add(Clock::time_point begin, const Sent& sent) noexcept {
  const auto spent = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin);
  ++calls;
  sent_bytes += sent.bytes;
  to_other_nodes += sent.to_other_nodes;
  nanoseconds += static_cast<std::uint64_t>(spent.count());
}

CollectiveCalls CountedCollective::Counts::stats() const noexcept {
  return {calls.load(), sent_bytes.load(), 1e-9 * static_cast<double>(nanoseconds.load()),
          to_other_nodes.load()};
}

bool CountedCollective::in_node(std::uint32_t other) const noexcept {
  return node_ranks_ == 0 || other / node_ranks_ == rank() / node_ranks_;
}

CountedCollective::Sent CountedCollective::to_each(std::uint64_t bytes) const noexcept {
  const std::uint32_t outside = node_ranks_ == 0 ? 0 : world_size() - node_ranks_;
  return {bytes * (world_size() - 1), bytes * outside};
}

// Within a handler. A refused argument ends nothing: the same call may be made with another.
void CountedCollective::tell_of_failure(const char* name, CollectiveTag tag) noexcept try {
  std::string why = std::string(name) + " '" + std::string(tag.what) + "': ";
  try {
    throw;
  } catch (const Error& error) {
    if (error.code() == Code::kInvalidArgument) return;
    why += error.what();
  } catch (const std::exception& error) {
    why += error.what();
  } catch (...) {
    why += "an exception of no known type";
  }
  abort(why);
} catch (const std::bad_alloc&) {  // the peers learn that something failed, not what
  abort("a call failed on this rank");
}

CountedCollective::Sent CountedCollective::sent_of(
    std::span<const DeviceSpan> give) const noexcept {
  Sent sent;
  for (std::uint32_t r = 0; r < give.size(); ++r) {
    if (r != rank()) sent.bytes += give[r].size_bytes;
    if (!in_node(r)) sent.to_other_nodes += give[r].size_bytes;
  }
  return sent;
}

template <class Call>
void CountedCollective::make(const char* name, Counts& counts, CollectiveTag tag, const Sent& sent,
                             const Call& call) {
  const auto begin = Clock::now();
  try {
    call();
  } catch (...) {
    tell_of_failure(name, tag);
    throw;
  }
  counts.add(begin, sent);
}

void CountedCollective::all_gather(CollectiveTag tag, Stream stream,
                                   std::span<const DeviceSpan> whole) {
  make("all_gather", all_gathers_, tag, to_each(whole[rank()].size_bytes),
       [&] { counted_->all_gather(tag, stream, whole); });
}

void CountedCollective::all_to_all(CollectiveTag tag, Stream stream,
                                   std::span<const DeviceSpan> give, void* take) {
  make("all_to_all", all_to_alls_, tag, sent_of(give),
       [&] { counted_->all_to_all(tag, stream, give, take); });
}

void CountedCollective::all_to_all_v(CollectiveTag tag, Stream stream,
                                     std::span<const DeviceSpan> give,
                                     std::span<const DeviceSpan> take,
                                     std::uint64_t largest_bytes) {
  make("all_to_all_v", tag.of_gradients ? all_to_alls_ : all_gathers_, tag, sent_of(give),
       [&] { counted_->all_to_all_v(tag, stream, give, take, largest_bytes); });
}

void CountedCollective::exchange(CollectiveTag tag, std::span<const std::byte> mine,
                                 std::span<std::byte> all) {
  make("exchange", exchanges_, tag, to_each(mine.size()),
       [&] { counted_->exchange(tag, mine, all); });
}

void CountedCollective::add_stats(Stats& stats) const noexcept {
  stats.all_gathers = all_gathers_.stats();
  stats.all_to_alls = all_to_alls_.stats();
  stats.exchanges = exchanges_.stats();
  for (const CollectiveCalls& of : {stats.all_gathers, stats.all_to_alls, stats.exchanges}) {
    stats.collective_calls += of.calls;
    stats.collective_sent_bytes += of.sent_bytes;
    stats.collective_sent_to_other_nodes_bytes += of.sent_to_other_nodes_bytes;
    stats.collective_seconds += of.seconds;
  }
}
}  // namespace headrace::ranks
