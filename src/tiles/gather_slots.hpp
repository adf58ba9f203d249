// SPDX-License-Identifier: Apache-2.0
// gather_slots.hpp: the slots that groups are joined in, and what is read ahead into them.
//
// A slot is free, being filled, or holds a group's bytes (cached until somebody needs the slot
// or an update makes it stale). The order of last step's gathers is the guess for this step's: the
// next groups are filled while the current one is in use. A wrong guess costs a read, never a wrong
// byte. Conductor only, but where said otherwise.
//
// New weights reach a slot without being read again. After a deferred step a fill of a group that
// is still to be updated marks its slot (takes_update), expects the update and waits. For each tile
// the update asks hand_over_of(): with a marked slot the pass writes the new weight there as well,
// or the device copies it there, and hand_over() books it. When the group's passes are over, the
// fill reads only those tiles that were not handed over, after their writes. The marks are taken
// back when the fill ends, also when it fails: the next fill of the group then reads every tile.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "async/task.hpp"
#include "async/waiters.hpp"
#include "headrace/device.hpp"
#include "tiles/pending_updates.hpp"
#include "tiles/tile_store.hpp"

namespace headrace::tiles {
struct GatherCounters {
  std::uint64_t prefetched = 0;
  std::uint64_t on_demand = 0;
  std::uint64_t copied_bytes = 0;
};

// Where a tile's new weight goes beside its extent, so that it is not read again: one or neither.
struct HandOver {
  std::byte* by_pass = nullptr;    // the pass writes it there
  std::byte* by_device = nullptr;  // the device copies it there
  explicit operator bool() const noexcept { return by_pass != nullptr || by_device != nullptr; }
};

class GatherSlots {
 public:
  struct Parts {
    const partition::Registry& registry;
    const partition::Partition& partition;
    const residency::Plan& plan;
    std::uint32_t prefetch_groups;
    pinned::Arena& arena;
    TileStore& tiles;
    PendingUpdates& updates;
    Device& device;
    async::Conductor& conductor;
  };
  // Throws kOutOfBudget when the device has no room for the plan's slots.
  explicit GatherSlots(const Parts& parts);
  ~GatherSlots();

  // A slot with this rank's shard of `group` in its place, leased once more. Starts the fills
  // that are likely next. Throws kOutOfBudget naming the holders when all slots are leased; a
  // failed fill's error (the slot is free again); where it is given up, with the fill going on.
  struct Acquired {
    std::uint32_t slot = 0;
    std::chrono::steady_clock::time_point updated;  // when the last update of it was over
  };
  async::Task<Acquired> acquire(GroupId group, const async::GiveUp* give_up = nullptr);
  // Who waits for a fill looks again whether to give up.
  void wake() noexcept;
  // A slot for `group` with nothing in it, leased: for load.
  async::Task<std::uint32_t> claim_empty(GroupId group);
  // Any thread. Work queued on `stream` so far may still read the slot.
  void release(std::uint32_t slot, Stream stream) noexcept;

  // What is queued on `stream` from here on finds the bytes there. Any thread, while leased; with
  // several ranks under their lock.
  void wait_until_there(std::uint32_t slot, Stream stream);
  // With several ranks, under their lock: have the shards been joined since the fill?
  bool joined(std::uint32_t slot) const noexcept { return slots_[slot].joined; }
  // What is queued on `stream` from here on is after what earlier leases have read.
  void wait_for_readers(std::uint32_t slot, Stream stream);
  // The join is queued on `stream`: whoever comes later waits for it.
  void set_joined(std::uint32_t slot, Stream stream);

  // Any thread, while leased.
  std::byte* memory(std::uint32_t slot) const noexcept { return slots_[slot].memory; }
  std::uint64_t section_offset_bytes(std::uint32_t section) const noexcept {
    return section_offset_[section];
  }

  // A group whose slot is leased, if any. Any thread.
  std::optional<GroupId> leased_group() const noexcept;
  bool is_leased(GroupId group) const noexcept;
  // The group's weights are about to change: what is cached of it is stale, and nothing reads them
  // any more when this returns.
  async::Task<> forget(GroupId group);
  // The weights are about to change: what is cached is stale. Waits for fills under way.
  async::Task<> invalidate();
  // A fill that waits for its group's update takes the new weights from it: where those of this
  // tile are to go. The place stays until the group's passes are over.
  HandOver hand_over_of(std::uint32_t tile) noexcept;
  // They are there, or queued on their way from `weight`: that is free after device_done().
  void hand_over(std::uint32_t tile, const HandOver& to, const std::byte* weight);
  // Ends when the device has passed this point of the copies.
  async::Task<> device_done();
  // A step ended: its gathers are the guess for the next one's, whose first groups are read now.
  void next_step();
  // Waits for fills under way: before close.
  async::Task<> drain();
  GatherCounters counters() const noexcept;
  std::uint64_t device_bytes() const noexcept { return device_bytes_; }

 private:
  enum class State : std::uint8_t { kFree, kFilling, kReady };
  // The last work on one stream that may read a slot.
  struct Reader {
    Stream stream;
    Event event;
  };
  static constexpr std::size_t kReadersMax = 8;
  struct Slot {
    std::byte* memory = nullptr;
    State state = State::kFree;
    GroupId group;
    std::atomic<std::uint32_t> leases{0};
    bool joined = false;
    bool takes_update = false;  // while it is filled: the update of its group is still to come
    Event there;  // after the fill, and after the join once there was one; 0: nothing to wait for
    std::array<Reader, kReadersMax> readers;  // under mutex_
    std::size_t reader_count = 0;
    std::chrono::steady_clock::time_point updated;
    std::exception_ptr error;
    async::Waiters filled;
    Slot() = default;
    Slot(Slot&&) noexcept {}  // before use only: so that a vector of them can be sized
  };
  static async::Task<> until_filled(Slot& slot, const async::GiveUp* give_up = nullptr);

  std::optional<std::uint32_t> find(GroupId group) const noexcept;
  std::optional<std::uint32_t> find_free(bool keep_next) const noexcept;
  async::Task<std::uint32_t> free_slot(GroupId wanted, const async::GiveUp* give_up = nullptr);
  void start_fill(std::uint32_t slot, GroupId group, swap::Priority priority);
  async::Task<> fill(std::uint32_t slot, swap::Priority priority);
  async::Task<> take_update(GroupId group);
  void forget_hand_overs(GroupId group) noexcept;
  async::Task<> fill_section(std::uint32_t slot, std::uint32_t section, swap::Priority priority,
                             async::TaskGroup& reads);
  async::Task<> fill_tile(std::uint32_t tile, std::byte* target, swap::Priority priority);
  void note_reader(Slot& slot, Stream stream);
  void wait_quietly(Stream stream) noexcept;
  void record(GroupId group);
  void prefetch();
  bool likely_next(GroupId group) const noexcept;

  const Parts p_;
  std::vector<Slot> slots_;
  std::vector<std::uint64_t> section_offset_;
  std::vector<std::uint8_t> handed_over_;  // per tile: its group's slot has the new weight
  Stream copies_;
  pinned::SlotPool transfers_;
  std::uint64_t device_bytes_ = 0;
  async::TaskGroup fills_;
  std::vector<GroupId> last_step_, this_step_;
  std::size_t cursor_ = 0;  // into last_step_: what is expected next
  mutable std::mutex mutex_;
  std::atomic<std::uint64_t> prefetched_{0}, on_demand_{0}, copied_bytes_{0};
};
}  // namespace headrace::tiles
