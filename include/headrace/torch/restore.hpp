// SPDX-License-Identifier: Apache-2.0
// headrace/torch/restore.hpp: gives parameters memory of their own again, with their current
// values.
//
// The values are copied out group by group, and only when all are there do the parameters move to
// them: an error on the way changes nothing.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "headrace/torch/offload_core.hpp"

namespace headrace::torch::detail {
inline std::uint64_t weight_bytes(const OffloadCore& core) {
  std::uint64_t bytes = 0;
  for (const auto& group : core.groups()) {
    for (const OffloadedParameter& parameter : group->parameters())
      bytes += parameter.tensor.nbytes();
  }
  return bytes;
}

inline void refuse_more_than(std::uint64_t limit_bytes, const OffloadCore& core) {
  const std::uint64_t bytes = weight_bytes(core);
  if (bytes <= limit_bytes) return;
  throw Error(Code::kOutOfBudget,
              "restore() needs " + std::to_string(bytes) + " bytes for the weights of " +
                  std::to_string(core.groups().size()) + " groups, the first of them " +
                  quoted_group(core.groups().front()->name) + ", and its limit_bytes is " +
                  std::to_string(limit_bytes) +
                  ": nothing was restored. Give it a limit_bytes of at least " +
                  std::to_string(bytes) + ", or save group by group within gathered().");
}

inline void restore(const std::shared_ptr<OffloadCore>& core,
                    std::optional<std::uint64_t> limit_bytes) {
  core->require_idle("restore()");
  if (limit_bytes) refuse_more_than(*limit_bytes, *core);
  std::vector<std::pair<at::Tensor, at::Tensor>> restored;  // parameter, values
  for (const auto& group : core->groups()) {
    const Binding binding(core, group);
    for (const OffloadedParameter& parameter : group->parameters())
      restored.emplace_back(parameter.tensor, parameter.tensor.detach().clone());
  }
  for (const auto& group : core->groups()) group->mark_changed();  // graphs of before are void
  for (auto& [parameter, values] : restored) parameter.set_data(values);
  core->close(
      " was used after restore(): its parameters are ordinary tensors again, which the "
      "Offload no longer has. Call its module itself.");
}
}  // namespace headrace::torch::detail
