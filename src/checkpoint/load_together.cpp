// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/load_together.hpp"

#include <utility>
#include <vector>

#include "base/error_text.hpp"
#include "engine/engine_core.hpp"
#include "headrace/error.hpp"
#include "ranks/meeting.hpp"

namespace headrace::checkpoint {
namespace {
struct Words {
  std::uint64_t identity = 0;
};

// Their own copies of a folder, or a `latest` that was written in between.
void refuse_different(const std::vector<Words>& all, const char* call, const std::string& path) {
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r].identity == all[0].identity) continue;
    throw Error(Code::kInvalidArgument,
                std::string(call) + " of " + path + ": rank " + std::to_string(r) +
                    " loads something else than rank 0; nothing was changed. Give all ranks the "
                    "same files, and the name of a checkpoint instead of the folder above it.");
  }
}

// A store keeps frozen tiles once: those of a committed step cannot be written again.
void refuse_stored_frozen(const Engine& engine, const engine::Running& running, const char* call,
                          const std::string& path) {
  for (const partition::Section& section : running.partition.sections) {
    for (std::uint32_t t = 0; t < section.tiles; ++t) {
      if (running.places->may_be_written(section.first_tile + t)) continue;
      const ParameterId id{section.parameters.front()};
      throw Error(Code::kWrongState, std::string(call) + " of " + path +
                                         ": the store of this engine has a committed step with "
                                         "the frozen " +
                                         base::quoted_name(engine.full_name(id)) +
                                         ", which is not written twice; nothing was changed. Use "
                                         "another headrace.store.");
    }
  }
}
}  // namespace

void load_together(Engine& engine, ranks::RankCall::Kind kind, const char* call,
                   const std::string& path,
                   const std::function<NewValues(const engine::Running&)>& prepare) {
  engine::Running& running = engine::core_of(engine).ready(call);
  running.values->finish_step(call);  // the ranks may meet there
  const auto together = running.gradients->begin_together(kind);
  ranks::Meeting<Words> meeting(running.ranks, call);
  bool taking = false;
  try {
    refuse_stored_frozen(engine, running, call, path);
    const NewValues values = prepare(running);
    refuse_different(meeting.meet({values.identity}), call, path);
    taking = true;
    running.all_values->load(call, values.source, values.steps);
    meeting.meet({});
  } catch (...) {
    // Values of some ranks alone are of no use.
    for (std::uint32_t g = 0; taking && g < engine.group_count(); ++g)
      running.states.begin_load({g});
    meeting.withdraw(std::current_exception());
    throw;
  }
}
}  // namespace headrace::checkpoint
