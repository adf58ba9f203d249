// SPDX-License-Identifier: Apache-2.0
// common_epoch.hpp: the epoch of a store from which a run continues: the last that all ranks have.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "store/open_store.hpp"

namespace headrace::tools {
// Brings the parts of all ranks, in order, to their last common epoch, as freeze() does, and
// returns it. 0: some rank has none, so that a run makes the store anew; then the parts stay where
// they are. Throws kCorrupt, naming the rank, where the parts do not belong together or the record
// of that epoch is damaged.
std::uint64_t go_to_common_epoch(const std::string& name,
                                 std::span<const std::unique_ptr<OpenStore>> parts);
}  // namespace headrace::tools
