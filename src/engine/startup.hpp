// SPDX-License-Identifier: Apache-2.0
// startup.hpp: freeze(): examines the machine, plans, allocates exactly the plan, and logs its
// choices. startup.cpp has the plan and the parts, drives.cpp everything about drives.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/failure.hpp"
#include "engine/inputs.hpp"
#include "engine/running.hpp"
#include "engine/store_opening.hpp"
#include "ranks/local_ranks.hpp"
#include "swap/drive_measure.hpp"
#include "swap/swap_tier.hpp"

namespace headrace::engine {
// Pinned or not, the bytes are the same. If the device cannot pin, one warning says so.
void pin_arena(const Inputs& inputs, pinned::Arena& arena);

// How drives do I/O: as the settings say, or with the parts that tests replace.
swap::IoQueueMaker queue_maker(const Inputs& inputs);
swap::DriveMaker drive_maker(const Inputs& inputs);

// For the trainer's thread.
class Startup {
 public:
  // `settings`: the text that every rank was given, which does not contain this rank's own paths.
  Startup(const Inputs& inputs, const ranks::LocalRanks& local, const std::string& settings,
          const partition::Registry& registry, Failure& failure)
      : in_(inputs), local_(local), settings_(settings), registry_(registry), failure_(failure) {}

  // Throws as Engine::freeze(), and then leaves nothing behind.
  std::unique_ptr<Running> run();

 private:
  // ---- the plan ----
  std::uint64_t machine_left_bytes() const;
  void refuse_tables() const;
  void refuse_nodes(const residency::Plan& plan) const;
  std::uint64_t bookkeeping_bytes(const partition::Partition& partition) const;
  std::uint64_t commit_bytes(const partition::Partition& partition) const;
  std::uint64_t registration_bytes(const partition::Partition& partition) const;
  residency::Plan make_plan(const partition::Partition& partition) const;
  void say_what_ranks_ignore(std::uint32_t ranks) const;
  void say_what_was_chosen(const Running& r) const;

  // ---- the parts ----
  void allocate(Running& r);
  void allocate_together(Running& r);
  void make_swap(Running& r);
  void make_swap_files(Running& r) const;
  swap::SwapTierOptions tier_options(const Running& r) const;
  void open_store(Running& r);
  void make_epochs(Running& r);
  void make_places(Running& r);
  void make_tiles(Running& r);
  void make_device_updates(Running& r) const;
  void make_calls(Running& r);

  // ---- drives ----
  std::vector<swap::PathProbe> probe_paths() const;
  std::vector<residency::DriveInputs> drive_inputs() const;
  void refuse_without_room(const residency::Plan& plan) const;
  swap::DriveOnPathOptions drive_options(const Running& r) const;
  // Whether speeds decide what each drive is given; the same on every rank.
  bool drives_compete() const;
  void deal_by_speed(Running& r) const;
  std::vector<swap::DriveSpeed> measure_drives(const Running& r) const;
  void reclaim_unused_paths(const Running& r) const;
  void warn_of_failed_drive(const std::vector<swap::DriveSpeed>& speeds, std::size_t drive) const;
  void warn_of_slow_drives(const std::vector<DriveReport>& drives) const;
  void say_shares(const Running& r) const;

  const Inputs& in_;
  const ranks::LocalRanks& local_;
  const std::string& settings_;
  const partition::Registry& registry_;
  Failure& failure_;
  std::vector<swap::PathProbe> paths_;
  // Of a durable engine: the store's files, and the record that they hold or a new one.
  std::unique_ptr<StoreOpening> store_;
  std::optional<swap::CommitRecord> record_;
  std::unique_ptr<FreezeMeeting> meeting_;
  bool resumed_ = false;
  std::uint64_t opening_ = 0;  // FreezeMeeting::Agreed's
};
}  // namespace headrace::engine
