// SPDX-License-Identifier: Apache-2.0
#include "model/blocks.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>

namespace headrace::tools {
namespace {
// Numbers in names by value: "layers.9" before "layers.10".
struct InOrder {
  bool operator()(const std::string& a, const std::string& b) const {
    return ::strverscmp(a.c_str(), b.c_str()) < 0;
  }
};

struct Stack {
  std::string name;  // "model.layers", what comes before the number; "" where that begins the name
  std::map<std::string, ModelGroup, InOrder> blocks;
  ModelGroup before, behind;
};

// Up to the first number, which counts blocks: "model.layers.3"; "" where there is none.
std::string block_of(const std::string& parameter) {
  for (std::size_t at = 0; at < parameter.size();) {
    const std::size_t end = std::min(parameter.find('.', at), parameter.size());
    const std::string_view part = std::string_view(parameter).substr(at, end - at);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos)
      return parameter.substr(0, end);
    at = end + 1;
  }
  return "";
}

// Without its last part.
std::string parent_of(const std::string& name) {
  const std::size_t point = name.rfind('.');
  return point == std::string::npos ? "" : name.substr(0, point);
}

// The parts with which both begin, with points between.
std::string common_parts(const std::string& a, const std::string& b) {
  std::size_t common = 0;
  for (std::size_t i = 0; i <= std::min(a.size(), b.size()); ++i) {
    const bool a_ends = i == a.size() || a[i] == '.', b_ends = i == b.size() || b[i] == '.';
    if (a_ends && b_ends) common = i;
    if (i == a.size() || i == b.size() || a[i] != b[i]) break;
  }
  return a.substr(0, common);
}

bool is_embedding(const std::string& name) {
  for (const char* part : {"embed", "wte", "wpe", "shared"}) {
    if (name.find(part) != std::string::npos && name.find("embed_out") == std::string::npos)
      return true;
  }
  return false;
}

// Encoders come first, what else there is by name.
std::vector<Stack> in_order(std::map<std::string, Stack, InOrder> by_name) {
  std::vector<Stack> stacks;
  for (auto& [name, stack] : by_name) stacks.push_back(std::move(stack));
  std::ranges::stable_partition(
      stacks, [](const Stack& stack) { return stack.name.find("encoder") != std::string::npos; });
  if (stacks.empty()) stacks.emplace_back();
  return stacks;
}

// Which stacks share the most parts with a name: the first of them and the last. In the order of
// their names they are neighbours, so that thousands of each take no time.
class Nearest {
 public:
  struct Found {
    std::size_t first, last;
  };
  explicit Nearest(const std::vector<Stack>& stacks) {
    for (std::size_t i = 0; i < stacks.size(); ++i) by_name_.emplace_back(stacks[i].name + ".", i);
    std::ranges::sort(by_name_);
  }
  Found to(const std::string& name) {
    const auto at = std::ranges::lower_bound(by_name_, name + ".", {}, &Named::first);
    std::string most;
    const auto look_at = [&](const Named& named) {
      const std::string shared = common_parts(name, parent_of(named.first));
      if (shared.size() > most.size()) most = shared;
    };
    if (at != by_name_.begin()) look_at(*(at - 1));
    if (at != by_name_.end()) look_at(*at);
    const auto [found, is_new] = found_.emplace(most, Found{by_name_.size(), 0});
    if (is_new) find(most.empty() ? "" : most + ".", found->second);
    return found->second;
  }

 private:
  using Named = std::pair<std::string, std::size_t>;  // with a point behind it; index
  void find(const std::string& begin, Found& found) const {
    auto one = std::ranges::lower_bound(by_name_, begin, {}, &Named::first);
    for (; one != by_name_.end() && one->first.starts_with(begin); ++one) {
      found.first = std::min(found.first, one->second);
      found.last = std::max(found.last, one->second);
    }
  }
  std::vector<Named> by_name_;
  std::map<std::string, Found> found_;  // by the parts that are shared
};

// Before or behind the stack whose name shares the most parts with it; where several share as much,
// before the first of them or behind the last.
ModelGroup& group_around(std::vector<Stack>& stacks, Nearest& nearest, const std::string& name) {
  const Nearest::Found found = nearest.to(name);
  return is_embedding(name) ? stacks[found.first].before : stacks[found.last].behind;
}

void add_around(std::vector<ModelGroup>& groups, ModelGroup group) {
  if (group.parameters.empty()) return;
  group.name = parent_of(group.parameters.front().name);
  for (const ModelParameter& parameter : group.parameters)
    group.name = common_parts(group.name, parameter.name);
  groups.push_back(std::move(group));
}
}  // namespace

std::vector<ModelGroup> groups_by_name(std::vector<ModelParameter> parameters) {
  std::map<std::string, Stack, InOrder> by_name;
  std::vector<ModelParameter> outside;
  for (ModelParameter& parameter : parameters) {
    const std::string block = block_of(parameter.name);
    if (block.empty()) {
      outside.push_back(std::move(parameter));
      continue;
    }
    Stack& stack = by_name[parent_of(block)];
    stack.name = parent_of(block);
    ModelGroup& group = stack.blocks[block];
    group.name = block;
    group.parameters.push_back(std::move(parameter));
  }
  std::vector<Stack> stacks = in_order(std::move(by_name));
  Nearest nearest(stacks);
  for (ModelParameter& parameter : outside)
    group_around(stacks, nearest, parameter.name).parameters.push_back(std::move(parameter));
  std::vector<ModelGroup> groups;
  for (Stack& stack : stacks) {
    add_around(groups, std::move(stack.before));
    for (auto& [name, group] : stack.blocks) groups.push_back(std::move(group));
    add_around(groups, std::move(stack.behind));
  }
  return groups;
}
}  // namespace headrace::tools
