// SPDX-License-Identifier: Apache-2.0
// counted_collective.hpp: a trainer's collective, whose calls, bytes and seconds are counted. If a
// call throws, its abort() tells the other ranks why: they wait for this one, which may know
// nothing of them.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "headrace/collective.hpp"
#include "headrace/stats.hpp"

namespace headrace::ranks {
// Threads: the seam's; add_stats() from any.
class CountedCollective final : public Collective {
 public:
  // `node_ranks`: the ranks of a node, if what leaves it is to be counted apart; else 0.
  explicit CountedCollective(std::shared_ptr<Collective> counted, std::uint32_t node_ranks = 0)
      : counted_(std::move(counted)),
        node_ranks_(node_ranks < counted_->world_size() ? node_ranks : 0) {}

  std::uint32_t rank() const noexcept override { return counted_->rank(); }
  std::uint32_t world_size() const noexcept override { return counted_->world_size(); }
  void use_device(const std::shared_ptr<Device>& device) override { counted_->use_device(device); }
  void use_memory(DeviceSpan memory) override { counted_->use_memory(memory); }
  void forget_memory(DeviceSpan memory) noexcept override { counted_->forget_memory(memory); }
  void all_gather(CollectiveTag tag, Stream stream, std::span<const DeviceSpan> whole) override;
  void all_to_all(CollectiveTag tag, Stream stream, std::span<const DeviceSpan> give,
                  void* take) override;
  void all_to_all_v(CollectiveTag tag, Stream stream, std::span<const DeviceSpan> give,
                    std::span<const DeviceSpan> take, std::uint64_t largest_bytes) override;
  void exchange(CollectiveTag tag, std::span<const std::byte> mine,
                std::span<std::byte> all) override;
  void abort(std::string_view why) noexcept override {
    ended_.store(true);
    counted_->abort(why);
  }
  // Whether a call has failed, or abort() was called: no further call will pass. Any thread.
  bool ended() const noexcept { return ended_.load(); }
  std::uint64_t host_bytes() const noexcept override { return counted_->host_bytes(); }
  bool takes_any_thread() const noexcept override { return counted_->takes_any_thread(); }
  bool has_all_to_all_v() const noexcept override { return counted_->has_all_to_all_v(); }

  void add_stats(Stats& stats) const noexcept;

 private:
  // In bytes: all of them, and those to the ranks of other nodes.
  struct Sent {
    std::uint64_t bytes = 0, to_other_nodes = 0;
  };
  struct Counts {
    std::atomic<std::uint64_t> calls{0}, sent_bytes{0}, to_other_nodes{0}, nanoseconds{0};
    void add(std::chrono::steady_clock::time_point begin, const Sent& sent) noexcept;
    CollectiveCalls stats() const noexcept;
  };
  Sent to_each(std::uint64_t bytes) const noexcept;
  Sent sent_of(std::span<const DeviceSpan> give) const noexcept;
  bool in_node(std::uint32_t other) const noexcept;
  // Makes the call, and counts it if it passes.
  template <class Call>
  void make(const char* name, Counts& counts, CollectiveTag tag, const Sent& sent,
            const Call& call);
  void tell_of_failure(const char* name, CollectiveTag tag) noexcept;

  const std::shared_ptr<Collective> counted_;
  const std::uint32_t node_ranks_;
  std::atomic<bool> ended_{false};
  Counts all_gathers_, all_to_alls_, exchanges_;
};
}  // namespace headrace::ranks
