// SPDX-License-Identifier: Apache-2.0
#include "tiles/gather_order.hpp"

#include <algorithm>
#include <utility>

namespace headrace::tiles {
void GatherOrder::note(GroupId group) {
  if (this_step_.size() < this_step_.capacity()) this_step_.push_back(group);
  // A group may come several times in a step: it is the next one of these.
  for (std::size_t i = 0; i < last_step_.size(); ++i) {
    const std::size_t at = (next_ + i) % last_step_.size();
    if (last_step_[at] != group) continue;
    next_ = at + 1;
    return;
  }
}

void GatherOrder::next_step() {
  if (!this_step_.empty()) {
    std::swap(last_step_, this_step_);
    this_step_.clear();
  }
  // Room for the longest step expected.
  const std::size_t room = std::max<std::size_t>(4096, 2 * last_step_.size());
  this_step_.reserve(room);
  last_step_.reserve(room);
  next_ = 0;
}

std::span<const GroupId> GatherOrder::expected() const noexcept {
  const std::span<const GroupId> rest = std::span(last_step_).subspan(next_);
  return rest.first(std::min<std::size_t>(ahead_, rest.size()));
}

bool GatherOrder::expects(GroupId group) const noexcept {
  return std::ranges::find(expected(), group) != expected().end();
}
}  // namespace headrace::tiles
