// SPDX-License-Identifier: Apache-2.0
#include "ranks/gradient_exchange.hpp"

#include <algorithm>
#include <string>

#include "base/units.hpp"
#include "headrace/error.hpp"

namespace headrace::ranks {
namespace {
// A bit for each rank.
std::uint64_t words_of_ranks(const partition::Partition& partition) {
  return base::ceil_div(partition.world_size, 64);
}
}  // namespace

GradientExchange::GradientExchange(const GradientParts& parts, GradientSums& sums)
    : p_(parts), sums_(sums), in_slab_(p_.partition.parameters.size()) {
  give_.reserve(p_.partition.world_size);
  if (p_.plan.reduce_ranks == 0) return;
  p_.ranks.serve_in_order_of_backward();
  take_.reserve(p_.partition.world_size);
  summed_.resize(p_.partition.parameters.size());
  ranks_summed_.resize(summed_.size() * words_of_ranks(p_.partition));
}

void GradientExchange::use_memory(std::byte* behind, std::byte* nothing) noexcept {
  taken_ = behind;
  nothing_ = nothing;
  packed_.use_memory(behind);
  if (p_.plan.reduce_ranks > 0) {
    node_sums_ =
        reinterpret_cast<float*>(behind) + (p_.plan.reduce_ranks - 1) * p_.plan.exchange_elements;
  }
}

std::uint64_t GradientExchange::bookkeeping_bytes(const partition::Partition& partition,
                                                  bool in_nodes) noexcept {
  std::uint64_t bytes = partition.parameters.size() + partition.world_size * sizeof(DeviceSpan) +
                        PackedGradients::bookkeeping_bytes(partition);
  if (!in_nodes) return bytes;
  bytes += partition.parameters.size() *
           (sizeof(Summed) + words_of_ranks(partition) * sizeof(std::uint64_t));
  return bytes + partition.world_size * sizeof(DeviceSpan);
}

std::span<std::uint64_t> GradientExchange::ranks_summed(ParameterId id) {
  const std::uint64_t words = words_of_ranks(p_.partition);
  return std::span(ranks_summed_).subspan(id.index * words, words);
}

// A rank whose gradients of the position have been reduced may bring another one of the parameter,
// which is then summed with the others' next ones.
void GradientExchange::begin(const Reduction& of) {
  if (p_.plan.reduce_ranks == 0) return;
  const std::vector<ParameterId>& group = p_.registry.group(of.group).parameters;
  for (std::size_t i = 0; i < group.size(); ++i) {
    if (p_.ranks.present_below(p_.partition.world_size, i) == 0) continue;
    Summed& summed = summed_[group[i].index];
    const auto ranks = ranks_summed(group[i]);
    const bool again = summed.any && summed.position == of.position;
    if (!again) std::ranges::fill(ranks, 0);
    summed = {of.position, true};
    for (std::uint32_t r = 0; r < p_.partition.world_size; ++r) {
      if (!p_.ranks.present(r, i)) continue;
      const std::uint64_t bit = std::uint64_t{1} << (r % 64);
      if (again && (ranks[r / 64] & bit) == 0) refuse_late(r, group[i]);
      ranks[r / 64] |= bit;
    }
  }
}

void GradientExchange::refuse_late(std::uint32_t rank, ParameterId id) {
  const std::string text =
      "rank " + std::to_string(rank) + " brings a gradient of '" +
      p_.registry.parameter(id).full_name +
      "' where those of other ranks have been summed already, and with "
      "headrace.hierarchical_reduce_ranks the sum would depend on which came first; no further "
      "call will be carried out. Between two gathers, hand over the groups' gradients in the order "
      "of backward, the last group first, or set it to 1.";
  p_.ranks.collective().abort(text);
  throw Error(Code::kUnsupported, text);
}

// In parts, so that what is taken from the other ranks has room.
void GradientExchange::reduce(std::uint32_t s, std::byte* values, DType dtype, Stream stream) {
  const Given given{p_.partition.sections[s], values, dtype};
  const std::uint64_t end = p_.partition.largest_shard_elements(given.section);
  for (std::uint64_t at = 0; at < end; at += p_.plan.exchange_elements) {
    if (packed_.used()) {
      reduce_packed(given, at, stream);
    } else if (p_.plan.reduce_ranks > 0) {
      reduce_in_nodes(given, at, stream);
    } else {
      reduce_in_rank_order(given, at, stream);
    }
  }
}

void GradientExchange::note_added(GroupId group) {
  for (const ParameterId id : p_.registry.group(group).parameters)
    in_slab_[id.index] |= sums_.received()[id.index];
  packed_.note_added(group);
}

void GradientExchange::forget() {
  std::ranges::fill(summed_, Summed{});
  std::ranges::fill(in_slab_, 0);
  packed_.forget();
}

ShardPart GradientExchange::part_of(const partition::Section& section, std::uint32_t rank,
                                    std::uint64_t at) const {
  const partition::Shard shard = p_.partition.shard_of(section, rank);
  return {section, shard.first_element + at,
          std::min(p_.plan.exchange_elements, shard.elements - std::min(at, shard.elements))};
}

// Where this rank has none, the others take bytes that they do not add.
DeviceSpan GradientExchange::piece_of(const Given& given, const ShardPart& part) const {
  std::byte* const from =
      given.values == nullptr ? nothing_ : given.values + given.bytes(part.first_element);
  return {from, given.bytes(part.elements)};
}

CollectiveTag GradientExchange::next(const partition::Section& section) {
  CollectiveTag tag = p_.ranks.next("gradients of ", {section.group});
  tag.of_gradients = true;
  return tag;
}

// Elements [first, end) of the section, which are this rank's, of parameter `index` of its group.
void GradientExchange::add(const ShardPart& own, std::size_t index, std::uint64_t first,
                           std::uint64_t end, const void* values, DType dtype, bool is_first,
                           Stream stream) {
  const ParameterId id = p_.registry.group({own.section.group}).parameters[index];
  sums_.add(id, values, dtype, first, end - first, is_first && in_slab_[id.index] == 0, stream);
}

// ---- in rank order ----

void GradientExchange::reduce_packed(const Given& given, std::uint64_t at, Stream stream) {
  const std::uint32_t ranks = p_.partition.world_size;
  give_.clear();
  for (std::uint32_t r = 0; r < ranks; ++r) {
    const ShardPart part = part_of(given.section, r, at);
    give_.push_back(packed_.given(r, part.elements));
    if (given.values != nullptr) packed_.pack(r, part, given.values, given.dtype, stream);
  }
  p_.ranks.collective().all_to_all(next(given.section), stream, give_, packed_.taken());
  const ShardPart own = part_of(given.section, p_.partition.rank, at);
  for (std::uint32_t r = 0; r < ranks; ++r) {
    const float* const values = packed_.unpack(r, own.elements, stream);
    each_parameter(p_, own, [&](std::size_t i, std::uint64_t first, std::uint64_t end) {
      if (!p_.ranks.present(r, i)) return;
      add(own, i, first, end, values + (first - own.first_element), DType::kF32,
          p_.ranks.present_below(r, i) == 0, stream);
    });
  }
}

void GradientExchange::reduce_in_rank_order(const Given& given, std::uint64_t at, Stream stream) {
  const std::uint32_t ranks = p_.partition.world_size, rank = p_.partition.rank;
  give_.clear();
  for (std::uint32_t r = 0; r < ranks; ++r)
    give_.push_back(piece_of(given, part_of(given.section, r, at)));
  p_.ranks.collective().all_to_all(next(given.section), stream, give_, taken_);
  const ShardPart own = part_of(given.section, rank, at);
  each_parameter(p_, own, [&](std::size_t i, std::uint64_t first, std::uint64_t end) {
    bool is_first = true;
    for (std::uint32_t r = 0; r < ranks; ++r) {
      if (!p_.ranks.present(r, i)) continue;
      const std::byte* part = taken_ + (r < rank ? r : r - 1) * given.bytes(own.elements);
      if (r == rank) part = static_cast<const std::byte*>(give_[rank].data);
      add(own, i, first, end, part + given.bytes(first - own.first_element), given.dtype, is_first,
          stream);
      is_first = false;
    }
  });
}

// ---- within nodes first ----

float* GradientExchange::node_sums(std::uint32_t node) const {
  return node_sums_ + node * p_.plan.exchange_elements;
}

float* GradientExchange::sums_from(std::uint32_t node) const {
  const std::uint32_t here = p_.partition.rank / p_.plan.reduce_ranks;
  return node_sums(nodes() + (node < here ? node : node - 1));
}

bool GradientExchange::present_in_node(std::uint32_t node, std::size_t index) const {
  const std::uint32_t first = node * p_.plan.reduce_ranks;
  for (std::uint32_t r = first; r < first + p_.plan.reduce_ranks; ++r)
    if (p_.ranks.present(r, index)) return true;
  return false;
}

void GradientExchange::reduce_in_nodes(const Given& given, std::uint64_t at, Stream stream) {
  for (std::uint32_t node = 0; node < nodes(); ++node) sum_within_node(given, node, at, stream);
  if (nodes() > 1) give_sums(given.section, at, stream);
  add_sums(part_of(given.section, p_.partition.rank, at), stream);
}

// What the ranks of node `owner` own, in their places.
void GradientExchange::sum_within_node(const Given& given, std::uint32_t owner, std::uint64_t at,
                                       Stream stream) {
  const std::uint32_t ranks = p_.plan.reduce_ranks, rank = p_.partition.rank;
  const std::uint32_t first_here = rank - place();
  const ShardPart mine = part_of(given.section, owner * ranks + place(), at);
  give_.assign(p_.partition.world_size, {});
  take_.assign(p_.partition.world_size, {});
  std::byte* to = taken_;
  for (std::uint32_t i = 0; i < ranks; ++i) {
    const ShardPart part = part_of(given.section, owner * ranks + i, at);
    give_[first_here + i] = take_[first_here + i] = piece_of(given, part);
    if (i == place()) continue;
    take_[first_here + i] = {to, given.bytes(mine.elements)};
    to += given.bytes(mine.elements);
  }
  const std::uint64_t most = p_.partition.largest_shard_elements(given.section) - at;
  p_.ranks.collective().all_to_all_v(next(given.section), stream, give_, take_,
                                     given.bytes(std::min(most, p_.plan.exchange_elements)));
  each_parameter(p_, mine, [&](std::size_t i, std::uint64_t first, std::uint64_t end) {
    Accumulation work;
    work.source_dtype = given.dtype;
    work.sum_dtype = DType::kF32;
    work.sum = node_sums(owner) + (first - mine.first_element);
    work.elements = end - first;
    for (std::uint32_t r = first_here; r < first_here + ranks; ++r) {
      if (!p_.ranks.present(r, i)) continue;
      work.source =
          static_cast<const std::byte*>(take_[r].data) + given.bytes(first - mine.first_element);
      p_.device.accumulate(stream, work);
      work.overwrite = false;
    }
  });
}

void GradientExchange::give_sums(const partition::Section& section, std::uint64_t at,
                                 Stream stream) {
  const std::uint64_t own = part_of(section, p_.partition.rank, at).elements;
  const std::uint64_t most = p_.partition.largest_shard_elements(section) - at;
  give_.assign(p_.partition.world_size, {});
  take_.assign(p_.partition.world_size, {});
  for (std::uint32_t node = 0; node < nodes(); ++node) {
    const std::uint32_t r = node * p_.plan.reduce_ranks + place();
    if (r == p_.partition.rank) continue;
    give_[r] = {node_sums(node), part_of(section, r, at).elements * sizeof(float)};
    take_[r] = {sums_from(node), own * sizeof(float)};
  }
  p_.ranks.collective().all_to_all_v(next(section), stream, give_, take_,
                                     std::min(most, p_.plan.exchange_elements) * sizeof(float));
}

void GradientExchange::add_sums(const ShardPart& own, Stream stream) {
  const std::uint32_t here = p_.partition.rank / p_.plan.reduce_ranks;
  each_parameter(p_, own, [&](std::size_t i, std::uint64_t first, std::uint64_t end) {
    bool is_first = true;
    for (std::uint32_t node = 0; node < nodes(); ++node) {
      if (!present_in_node(node, i)) continue;
      const float* const sums = node == here ? node_sums(node) : sums_from(node);
      add(own, i, first, end, sums + (first - own.first_element), DType::kF32, is_first, stream);
      is_first = false;
    }
  });
}
}  // namespace headrace::ranks
