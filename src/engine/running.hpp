// SPDX-License-Identifier: Apache-2.0
// running.hpp: the parts of an engine from freeze to close, in the order of their creation. Each
// part receives those before it, and knows no others.
#pragma once
#include <memory>
#include <string>

#include "async/frame_arena.hpp"
#include "engine/all_values.hpp"
#include "engine/background.hpp"
#include "engine/calls.hpp"
#include "engine/epochs.hpp"
#include "engine/inputs.hpp"
#include "engine/leases.hpp"
#include "engine/stepper.hpp"
#include "engine/value_states.hpp"
#include "engine/values.hpp"
#include "ranks/exchanged_memory.hpp"
#include "ranks/gradients.hpp"
#include "ranks/rank_calls.hpp"
#include "swap/swap_tier.hpp"
#include "tiles/device_updates.hpp"
#include "tiles/updates.hpp"

namespace headrace::engine {
// The objects of an engine from freeze() to close(). Startup (startup.hpp) creates them; drain()
// ends their work before they are destroyed, the last one first.
struct Running {
  Running(const Inputs& inputs, const partition::Registry& registry, partition::Partition cut,
          residency::Plan planned);
  // Tells the collective where its pieces lie on the device: once that memory is taken.
  void use_exchanged_memory();
  // Ends what several ranks do ahead of the trainer. Throws kWrongState while a group is leased.
  //   at_once  without waiting for the other ranks. After a failure they know the cause; else the
  //            engine was interrupted, and they learn that.
  void end_order(bool at_once);
  // After end_order(): returns when no buffer, queue or thread is in use.
  void drain();
  // `asleep`: its memory was given back.
  void add_stats(Stats& stats, bool asleep) const;

  partition::Partition partition;
  residency::Plan plan;
  std::uint64_t bookkeeping_bytes = 0;
  std::string update_threads_source;
  ranks::RankCalls ranks;
  async::FrameArena frames;
  std::unique_ptr<pinned::Arena> arena;
  std::unique_ptr<async::Conductor> conductor;
  std::unique_ptr<async::WorkerPool> workers;
  std::unique_ptr<base::TraceRecorder> trace;  // null: none
  std::unique_ptr<swap::SwapTier> swap;        // null: nothing is on NVMe
  std::unique_ptr<tiles::TilePlaces> places;
  std::unique_ptr<tiles::TileStore> tiles;
  std::unique_ptr<tiles::PendingUpdates> pending;
  std::unique_ptr<tiles::GatherSlots> gather_slots;
  std::unique_ptr<ranks::Gradients> gradients;
  ranks::ExchangedMemory exchanged;
  std::unique_ptr<tiles::DeviceUpdates> device_updates;  // null: the CPU updates
  std::unique_ptr<tiles::Updates> updates;
  std::unique_ptr<Calls> calls;
  ValueStates states;
  Counts counts;
  residency::Lent lent;
  std::unique_ptr<swap::CommitRing> ring;  // null, as the next: not durable
  std::unique_ptr<Epochs> epochs;
  std::unique_ptr<Leases> leases;
  std::unique_ptr<Values> values;
  std::unique_ptr<AllValues> all_values;
  std::unique_ptr<Stepper> stepper;
  Background background;
};
}  // namespace headrace::engine
