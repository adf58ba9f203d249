// SPDX-License-Identifier: Apache-2.0
#include "ranks/sequence.hpp"

#include <algorithm>
#include <array>
#include <span>

#include "kernels/hash.hpp"

namespace headrace::ranks {
namespace {
// Those of one position, which follow each other.
std::span<const Reduction> first_position(std::span<const Reduction> rest) {
  const auto end = std::ranges::find_if(
      rest, [&](const Reduction& other) { return other.position != rest.front().position; });
  return rest.first(static_cast<std::size_t>(end - rest.begin()));
}

bool repeats_a_group(std::span<const Reduction> position) {
  for (std::size_t i = 1; i < position.size(); ++i) {
    const auto before = position.first(i);
    if (std::ranges::find(before, position[i]) != before.end()) return true;
  }
  return false;
}
}  // namespace

void Sequence::make(const StepRecord& record, std::uint32_t ahead, std::uint32_t buckets) {
  entries_.clear();
  gathers_ = record.gathers;
  reductions_.clear();
  whole_ = true;
  for (std::span<const Reduction> rest = record.reductions; !rest.empty();) {
    const auto position = first_position(rest);
    if (position.size() > buckets || repeats_a_group(position) || position.front().position == 0) {
      whole_ = false;
      gathers_.resize(position.front().position);
      break;
    }
    reductions_.insert(reductions_.end(), position.begin(), position.end());
    rest = rest.subspan(position.size());
  }
  const auto gathers = static_cast<std::uint32_t>(gathers_.size());
  const auto join = [&](std::uint32_t at) {
    if (at < gathers) entries_.push_back({Entry::Kind::kJoin, at, gathers_[at]});
  };
  for (std::uint32_t at = 0; at < std::min(ahead, gathers); ++at) join(at);
  auto next = reductions_.begin();
  for (std::uint32_t position = 0; position <= gathers; ++position) {
    for (; next != reductions_.end() && next->position == position; ++next)
      entries_.push_back({Entry::Kind::kReduce, position, next->group});
    join(position + ahead);
  }
}

std::uint64_t Sequence::hash(std::size_t first, std::size_t entries) const noexcept {
  std::uint64_t hash = 0;
  for (const Entry& entry :
       std::span(entries_).subspan(first, std::min(entries, entries_.size() - first))) {
    const std::array words{entry.at, entry.group.index, static_cast<std::uint32_t>(entry.kind)};
    hash = kernels::xxh3_64(std::as_bytes(std::span(words)), hash);
  }
  return hash;
}

bool Sequence::reduces(const Reduction& reduction) const noexcept {
  return std::ranges::find(reductions_, reduction) != reductions_.end();
}
}  // namespace headrace::ranks
