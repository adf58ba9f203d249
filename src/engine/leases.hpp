// SPDX-License-Identifier: Apache-2.0
// leases.hpp: gather and its leases, of resident bytes or of a slot that joins the ranks' shards.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/calls.hpp"
#include "engine/failure.hpp"
#include "engine/value_states.hpp"
#include "headrace/gathered.hpp"
#include "headrace/stats.hpp"
#include "ranks/gradients.hpp"
#include "tiles/gather_slots.hpp"
#include "tiles/packed_section.hpp"
#include "tiles/tile_store.hpp"

namespace headrace::engine {
// Threads: any, several at once.
class Leases final : public ranks::JoinSlots {
 public:
  struct Parts {
    const partition::Registry& registry;
    const partition::Partition& partition;
    const residency::Plan& plan;
    Failure& failure;
    Calls& calls;
    const ValueStates& values;
    ranks::RankCalls& ranks;
    ranks::Gradients& gradients;
    const tiles::TileStore& tiles;
    tiles::GatherSlots& gather_slots;
    tiles::PendingUpdates& pending;
    Device& device;
  };
  explicit Leases(const Parts& parts);

  Gathered gather(GroupId group, Stream stream);
  void release(GroupId group, std::uint32_t slot, Stream stream) noexcept;
  DeviceSpan section(const Gathered& lease, DType dtype) const;
  DeviceSpan bytes(const Gathered& lease, ParameterId id) const;

  // A group with an open lease, of a slot or of resident bytes.
  std::optional<GroupId> leased_group() const noexcept;
  std::optional<GroupId> leased_in_slot() const noexcept;
  // Whether resident bytes of the group are leased. The holder reads them without another call.
  bool leased_in_place(GroupId group) const noexcept { return in_place_[group.index].load() != 0; }
  // Throw kWrongState and name a group that is still gathered: from all leases, or from those in
  // slots, which a step or load would make stale. Leased resident bytes change in place. With
  // several ranks, where nothing is gathered, what was joined ahead is then given back.
  void refuse_any(const char* call) const;
  void refuse_open(const char* call) const;  // leaves what the ranks joined ahead as it is
  void refuse_any_in_slot(const char* call) const;
  void refuse_in_slot(GroupId group, const char* call) const;

  void add_stats(Stats& stats) const;
  static std::uint64_t bookkeeping_bytes(const partition::Partition& partition) noexcept;

  // ---- of gathers that are joined ahead ----
  void start_to_take(GroupId group, Taker& taker) noexcept override;
  ranks::Join lacks(std::uint32_t slot) const noexcept override;
  void join(std::uint32_t slot, GroupId group, ranks::Join what, Stream stream) override;
  void give_back(std::uint32_t slot, Stream stream) noexcept override;

 private:
  static constexpr std::uint32_t kInPlace = ~0u;  // a lease of resident bytes has no slot
  using Clock = std::chrono::steady_clock;
  // How long trainer threads waited in gather.
  struct Wait {
    std::atomic<std::uint64_t> ns{0}, update_ns{0};
    // Adds a wait from `began` until `there`. The part until `updated`, if later, was for its
    // update.
    void add(Clock::time_point began, Clock::time_point updated, Clock::time_point there) noexcept;
  };
  struct Take : async::Work {
    Leases* leases = nullptr;
    Taker* taker = nullptr;
    GroupId group;
  };
  Gathered lease_in_place(GroupId group, Stream stream);
  Gathered lease_slot(GroupId group, Stream stream);
  std::optional<Gathered> lease_joined(GroupId group, Stream stream, Clock::time_point began);
  void meet_and_join(const Gathered& lease);
  void join_agreed(std::uint32_t slot, GroupId group, ranks::Join what, Stream stream);
  void join_section(std::uint32_t section, GroupId group, ranks::Join what, std::byte* memory,
                    Stream stream);
  void unpack_taken(const partition::Section& section);
  bool keeps(std::uint32_t rank, std::uint32_t shard) const noexcept;
  template <class SpanOf>
  void spread_to_nodes(const partition::Section& section, GroupId group, const SpanOf& span_of,
                       Stream stream);
  template <class SpanOf>
  void join_within_node(const partition::Section& section, GroupId group, const SpanOf& span_of,
                        Stream stream);
  void run_take() noexcept;  // the conductor's
  async::Task<> take(GroupId group);
  void end_gathers() const noexcept;
  [[noreturn]] void refuse(GroupId leased, const char* call) const;

  const Parts p_;
  // Per group, the number of leases: of resident bytes, and of slots.
  std::vector<std::atomic<std::uint32_t>> in_place_, in_slots_;
  std::vector<Wait> waits_;              // per group
  std::vector<DeviceSpan> give_, take_;  // of one call; of the thread that joins, as the next
  tiles::PackedSection packed_;
  Take taking_;  // the one under way
  std::atomic<std::uint64_t> gathers_{0}, gathers_in_place_{0};
};
}  // namespace headrace::engine
