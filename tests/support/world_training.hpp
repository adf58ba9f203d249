// SPDX-License-Identifier: Apache-2.0
// world_training.hpp: one training that every kind of rank can run: threads, processes over Gloo,
// processes under mpirun. A model says what is computed, a setup where; the outcome depends on the
// model alone, to the last bit.
//
// It needs the public headers only, so that a program outside of the library can compile it.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "headrace/engine.hpp"

namespace headrace::testing {
// Rank r of W computes micro-batches r, W + r, 2W + r and so on. Where their number is no multiple
// of W, some ranks have none in the last round: they gather as the others do, and add nothing.
struct WorldModel {
  std::string name;
  std::uint32_t micro_batches = 12;
  bool frozen = false;     // one parameter is
  bool absent = false;     // parameters, and whole groups, have no gradient in some of them
  bool f32 = false;        // gradients of bf16 parameters come in f32
  bool one_group = false;  // whose bucket stays open from one micro-batch to the next
  bool tied = false;       // group 0 is used first and last; its gradients come once, at the end
  bool bound = false;      // group 0 stays gathered from one step to the next, and alone is trained
  bool gathered_again = false;  // in backward, as a checkpoint does
};
std::span<const WorldModel> world_models();

enum class WorldPlace {
  kMemory,
  kNvme,
  kBudget,  // part of the optimizer state stays in memory, part does not
};
inline constexpr std::array<const char*, 3> kWorldPlaces = {"memory", "NVMe", "budget"};
struct WorldSetup {
  WorldPlace place = WorldPlace::kMemory;
  UpdateMode update_mode = UpdateMode::kBarrier;
  std::string folder;  // for swap files, of all ranks
  RankOrder rank_order = RankOrder::kTrace;
  std::uint32_t zero_stage = 3;
  std::uint32_t node_ranks = 1;  // zero_hpz_partition_size
  bool quantised = false;        // what several ranks send to each other
};

// What a rank knows at the end. `values` has its shard of masters and moments, zeros elsewhere.
struct WorldOutcome {
  std::vector<std::pair<double, std::uint64_t>> steps;  // gradient norm, parameters updated
  std::string parameters, optimizer_state;              // hashes
  std::map<std::tuple<std::uint32_t, Content>, std::vector<std::uint32_t>> values;
  double resident_share_of_state = 0;
  std::uint64_t seen = 0;  // if quantised: of the weights in each step's first micro-batch

  // All that is the same on every rank, in a line.
  std::string text() const;
};

// Every model in turn over one collective, places and update modes taking turns, or where
// HEADRACE_MATRIX is "full" all of these; a line for each: "rank 1: Tied, NVMe, deferred: ...".
void train_every_model(const std::shared_ptr<Collective>& collective, const std::string& folder,
                       const std::function<void(const std::string& line)>& say);
// Which of those lines are not in what `world_size` ranks `said`, with the outcome of one rank in
// memory; "" where none is missing.
std::string missing_lines(const std::string& said, std::uint32_t world_size);

// One rank's part; without options.collective the only rank. Throws what the engine throws. Logs
// nothing if options.log is null.
WorldOutcome train_as_rank(const WorldModel& model, const WorldSetup& setup, EngineOptions options);
}  // namespace headrace::testing
