// SPDX-License-Identifier: Apache-2.0
// gather_order.hpp: predicts the next gathers: those that followed in the last step.
//
// Example: the last step gathered a, b, c, and two are read ahead. After next_step(), a and b are
// expected; once a is gathered, b and c; after c alone (b was left out), none.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "headrace/tensor.hpp"

namespace headrace::tiles {
class GatherOrder {
 public:
  explicit GatherOrder(std::uint32_t ahead) : ahead_(ahead) {}

  // Notes that the group is gathered. Allocates nothing: it drops gathers beyond its capacity.
  void note(GroupId group);
  // A step has ended, and the next one begins.
  void next_step();
  // The nearest first, at most `ahead`. Valid until next_step().
  std::span<const GroupId> expected() const noexcept;
  bool expects(GroupId group) const noexcept;

 private:
  const std::uint32_t ahead_;
  std::vector<GroupId> last_step_, this_step_;
  std::size_t next_ = 0;  // index into last_step_ of the first expected group
};
}  // namespace headrace::tiles
