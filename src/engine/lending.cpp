// SPDX-License-Identifier: Apache-2.0
#include "engine/lending.hpp"

#include <string>

#include "headrace/error.hpp"

namespace headrace::engine {
namespace {
using partition::RegisteredGroup;

[[noreturn]] void refuse(Code code, const RegisteredGroup& group, const char* lends,
                         const std::string& why) {
  throw Error(code, "group '" + group.name + "' lends its " + lends + ", and " + why);
}

// What holds for both kinds.
void check_engine(const Inputs& in, const RegisteredGroup& group, const char* lends) {
  if (in.collective->world_size() > 1) {
    refuse(Code::kUnsupported, group, lends,
           "with several ranks each owns a part of them; nothing was allocated. Let the engine "
           "keep them, or train with one rank.");
  }
  if (!in.device->shares_host_memory()) {
    refuse(Code::kUnsupported, group, lends,
           std::string("the device is ") + in.device->name() +
               ", whose memory the CPU's update does not reach; nothing was allocated. Let the "
               "engine keep them.");
  }
  if (in.settings.update_mode == UpdateMode::kDefer) {
    refuse(Code::kUnsupported, group, lends,
           "headrace.update_mode \"defer\" would still use them after step(); nothing was "
           "allocated. Set it to \"barrier\" or \"auto\".");
  }
}

void check_gradients(const RegisteredGroup& group) {
  if (!group.repeated_gradients) return;
  refuse(Code::kUnsupported, group, "gradients",
         "expects several of a parameter, whose sum has no place; nothing was allocated. Lend the "
         "sums, with gradient_accumulation_steps 1 and without expect_repeated_gradients().");
}

void check_weights(const Inputs& in, const partition::Registry& registry,
                   const RegisteredGroup& group) {
  if (in.settings.durable_every > 0) {
    refuse(Code::kUnsupported, group, "weights",
           "headrace.durable would have to keep copies of them; nothing was allocated. Let the "
           "engine keep them, or leave headrace.durable out.");
  }
  for (const ParameterId id : group.parameters) {
    const ParameterSpec& spec = registry.parameter(id).spec;
    if (spec.dtype == DType::kF32 && !spec.frozen) continue;
    refuse(Code::kInvalidArgument, group, "weights",
           "'" + spec.name + "' is " + (spec.frozen ? "frozen" : name_of(spec.dtype)) +
               ": only trained f32 weights may be lent, since those of 16 bits have masters that a "
               "write to them would not reach; nothing was allocated. Put it into another group.");
  }
}
}  // namespace

void check_lending(const Inputs& in, const partition::Registry& registry) {
  for (const RegisteredGroup& group : registry.groups()) {
    if (group.lends_gradients) check_engine(in, group, "gradients");
    if (group.lends_weights) check_engine(in, group, "weights");
    if (group.lends_gradients) check_gradients(group);
    if (group.lends_weights) check_weights(in, registry, group);
  }
}
}  // namespace headrace::engine
