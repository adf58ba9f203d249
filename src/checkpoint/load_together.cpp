// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/load_together.hpp"

#include <map>
#include <optional>
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

// A store keeps frozen tiles once: of a committed step they cannot be written again.
void refuse_stored_frozen(const Engine& engine, const char* call, const std::string& path) {
  if (!engine.resumed() && engine.durable_step() == 0) return;
  std::map<std::pair<std::uint32_t, DType>, std::optional<ParameterId>> frozen;  // by section
  for (std::uint32_t i = 0; i < engine.parameter_count(); ++i) {
    const ParameterSpec& spec = engine.spec({i});
    auto& section = frozen.try_emplace({engine.group_of({i}).index, spec.dtype}, i).first->second;
    if (!spec.frozen) section.reset();
  }
  for (const auto& [section, id] : frozen) {
    if (!id) continue;
    throw Error(Code::kWrongState, std::string(call) + " of " + path +
                                       ": the store of this engine has a committed step with the "
                                       "frozen " +
                                       base::quoted_name(engine.full_name(*id)) +
                                       ", which is not written twice; nothing was changed. Use "
                                       "another headrace.store.");
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
    refuse_stored_frozen(engine, call, path);
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
