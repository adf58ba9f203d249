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

void CountedCollective::Counts::add(Clock::time_point begin, std::uint64_t sent) noexcept {
  const auto spent = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin);
  ++calls;
  sent_bytes += sent;
  nanoseconds += static_cast<std::uint64_t>(spent.count());
}

CollectiveCalls CountedCollective::Counts::stats() const noexcept {
  return {calls.load(), sent_bytes.load(), 1e-9 * static_cast<double>(nanoseconds.load())};
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
  counted_->abort(why);
} catch (const std::bad_alloc&) {  // the peers learn that something failed, not what
  counted_->abort("a call failed on this rank");
}

template <class Call>
void CountedCollective::make(const char* name, Counts& counts, CollectiveTag tag,
                             std::uint64_t sent_bytes, const Call& call) {
  const auto begin = Clock::now();
  try {
    call();
  } catch (...) {
    tell_of_failure(name, tag);
    throw;
  }
  counts.add(begin, sent_bytes);
}

void CountedCollective::all_gather(CollectiveTag tag, Stream stream,
                                   std::span<const DeviceSpan> whole) {
  make("all_gather", all_gathers_, tag, whole[rank()].size_bytes * (world_size() - 1),
       [&] { counted_->all_gather(tag, stream, whole); });
}

void CountedCollective::all_to_all(CollectiveTag tag, Stream stream,
                                   std::span<const DeviceSpan> give, void* take) {
  std::uint64_t sent_bytes = 0;
  for (std::uint32_t r = 0; r < give.size(); ++r) {
    if (r != rank()) sent_bytes += give[r].size_bytes;
  }
  make("all_to_all", all_to_alls_, tag, sent_bytes,
       [&] { counted_->all_to_all(tag, stream, give, take); });
}

void CountedCollective::exchange(CollectiveTag tag, std::span<const std::byte> mine,
                                 std::span<std::byte> all) {
  make("exchange", exchanges_, tag, mine.size() * (world_size() - 1),
       [&] { counted_->exchange(tag, mine, all); });
}

void CountedCollective::add_stats(Stats& stats) const noexcept {
  stats.all_gathers = all_gathers_.stats();
  stats.all_to_alls = all_to_alls_.stats();
  stats.exchanges = exchanges_.stats();
  for (const CollectiveCalls& of : {stats.all_gathers, stats.all_to_alls, stats.exchanges}) {
    stats.collective_calls += of.calls;
    stats.collective_sent_bytes += of.sent_bytes;
    stats.collective_seconds += of.seconds;
  }
}
}  // namespace headrace::ranks
