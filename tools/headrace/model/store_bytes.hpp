// SPDX-License-Identifier: Apache-2.0
// store_bytes.hpp: what a plan needs to know of a store (headrace.durable) beside its tiles: the
// sizes of a commit record and of the registration. An engine computes them from its registry.
#pragma once
#include <cstdint>
#include <vector>

#include "headrace/settings.hpp"
#include "model/model.hpp"
#include "partition/partition.hpp"

namespace headrace::tools {
// 0 without a store. For a trainer with two hyperparameter sets: more take 72 bytes each of a
// record of whole pages.
std::uint64_t commit_bytes(const Settings& settings, const partition::Partition& partition);
// 0 without a store. By the names of the model's files: full names may be a little longer, of whole
// pages.
std::uint64_t registration_bytes(const Settings& settings,
                                 const std::vector<const ModelGroup*>& groups);
}  // namespace headrace::tools
