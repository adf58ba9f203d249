// SPDX-License-Identifier: Apache-2.0
// values.hpp: loading and storing values: load of a group (values.cpp) and of one parameter
// (parameter_load.cpp), store, content hashes (hashes.cpp).
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/calls.hpp"
#include "engine/contents.hpp"
#include "engine/counts.hpp"
#include "engine/held_tile.hpp"
#include "engine/leases.hpp"
#include "engine/value_states.hpp"
#include "pinned/arena.hpp"
#include "ranks/joint_hash.hpp"

namespace headrace::engine {
class Epochs;

// Trainer threads, one at a time.
class Values {
 public:
  struct Parts {
    const partition::Registry& registry;
    const Settings& settings;
    const partition::Partition& partition;
    const residency::Plan& plan;
    pinned::Arena& arena;
    Failure& failure;
    Calls& calls;
    Leases& leases;
    ValueStates& states;
    Counts& counts;
    residency::Lent& lent;
    ranks::RankCalls& ranks;
    ranks::Gradients& gradients;
    tiles::TileStore& tiles;
    tiles::GatherSlots& gather_slots;
    Epochs* epochs;       // null: not durable
    bool staged = false;  // the host cannot write to the device
  };
  explicit Values(const Parts& parts);

  void load(GroupId group, const Fill& fill);
  void load(GroupId group, const FillShard& fill);
  void load(ParameterId id, Content content, const Source& source);
  void lend_weights(ParameterId id, void* values);
  // Throws kWrongState if the group lends its weights, and has not said where all of them are.
  void require_lent(GroupId group, const char* call) const;
  void store(ParameterId id, Content content, const Sink& sink, const char* call = "store");
  std::string hash_parameters();
  std::string hash_optimizer_state();
  // Conductor. Frees the update slot that one of these calls has kept.
  async::Task<> let_go() { return held_.let_go(); }
  // Before values change: waits for deferred updates, and for a commit that names the tiles.
  void finish_step(const char* call);
  // Memory of the plan in which values that are stored in another form are put together.
  std::span<std::byte> scratch() const;

 private:
  // The part of one parameter that lies in a tile.
  struct Part {
    partition::Segment segment;       // elements of the tile
    std::uint64_t first_element = 0;  // in the parameter
  };
  Part part_of(ParameterId id, std::uint32_t tile) const;
  // Called for each parameter of a group, with the place of its first value in memory.
  using WriteParameter = std::function<void(ParameterId, std::byte*)>;
  void load_with(GroupId group, const WriteParameter& write);
  void fill_sections(GroupId group, const WriteParameter& write, std::byte* joined);
  async::Task<> write_group(GroupId group, const std::byte* values);
  async::Task<> write_tile(std::uint32_t tile, const std::byte* weight);
  void load_tile(ParameterId id, std::uint32_t tile, Content content, const Source& source,
                 std::uint64_t& replaced);
  void replace_stretches(const Part& part, Content content, const Source& source,
                         std::uint64_t& replaced, bool& changed);
  void store_tile(ParameterId id, std::uint32_t tile, Content content, const Sink& sink);
  void hash_content(ranks::JointHash& hash, ParameterId id, const std::string& name,
                    Content content, const char* call);

  const Parts p_;
  const Contents contents_;
  HeldTile held_;
};
}  // namespace headrace::engine
