// SPDX-License-Identifier: Apache-2.0
#include "engine/contents.hpp"

#include <string>

#include "engine/value_states.hpp"
#include "headrace/error.hpp"
#include "optimizer_cpu/state_streams.hpp"

namespace headrace::engine {
void refuse_frozen(const partition::Registry& registry, ParameterId id, const char* call,
                   const char* lacks) {
  const partition::RegisteredParameter& parameter = registry.parameter(id);
  if (!parameter.spec.frozen) return;
  throw Error(Code::kInvalidArgument,
              std::string(call) + " of '" + parameter.full_name + "' in group '" +
                  registry.group(parameter.group).name +
                  "': it was frozen when the engine planned, so it " + lacks +
                  "; nothing was changed. To train it, let neither ParameterSpec::frozen nor "
                  "expect_no_gradients() say so at freeze().");
}

void Contents::require(ParameterId id, Content content, const char* call) const {
  if (kept_as(id, content) != Content::kWeight)
    refuse_frozen(registry, id, call, "has neither master nor moments");
  const std::uint32_t kept = moments(optimizer_cpu::arithmetic_of(settings.optimizer));
  const bool missing =
      (content == Content::kExpAvg && kept < 1) || (content == Content::kExpAvgSq && kept < 2);
  if (!missing) return;
  throw Error(Code::kInvalidArgument,
              std::string(call) + " of '" + registry.parameter(id).full_name + "', content " +
                  kContentNames[static_cast<int>(content)] + ": the rule " +
                  name_of(settings.optimizer) + " keeps " + std::to_string(kept) +
                  (kept == 1 ? " moment" : " moments") +
                  ", so there is none; nothing was moved. Leave this content out.");
}

Content Contents::kept_as(ParameterId id, Content content) const {
  const DType dtype = registry.parameter(id).spec.dtype;
  const bool itself = optimizer_cpu::master_kind(dtype, settings.master) ==
                      optimizer_cpu::MasterKind::kWeightItself;
  return itself && content == Content::kMaster ? Content::kWeight : content;
}
}  // namespace headrace::engine
