// SPDX-License-Identifier: Apache-2.0
#include "ranks/gradient_sums.hpp"

#include <algorithm>

#include "base/units.hpp"
#include "kernels/gradient_pass.hpp"

namespace headrace::ranks {
using base::kBlockElements;

namespace {
// Every rank's pieces, which lie in its shards: each(piece, rank) for one after the other.
template <class Each>
void each_owned_piece(const partition::Partition& partition, const Each& each) {
  for (const partition::Parameter& parameter : partition.parameters) {
    const partition::Section& section = partition.sections[parameter.section];
    std::uint64_t element = parameter.first_element / kBlockElements * kBlockElements;
    std::uint32_t owner = partition.owner_of(section, element);
    std::uint64_t end = partition.shard_of(section, owner).end();
    for (std::uint64_t piece = 0; piece < parameter.pieces; ++piece, element += kBlockElements) {
      while (element >= end) end = partition.shard_of(section, ++owner).end();
      each(parameter.first_piece + piece, owner);
    }
  }
}

// Of the rank that owns most of them.
std::size_t largest_pieces(const partition::Partition& partition) {
  std::vector<std::size_t> of_rank(partition.world_size);
  each_owned_piece(partition, [&](std::uint64_t, std::uint32_t rank) { ++of_rank[rank]; });
  return *std::ranges::max_element(of_rank);
}
}  // namespace

GradientSums::GradientSums(const GradientParts& parts)
    : p_(parts), received_(p_.partition.parameters.size()), pieces_(p_.partition.pieces) {
  if (p_.partition.world_size == 1) return;
  own_pieces_.resize(largest_pieces(p_.partition));
  all_pieces_.resize(own_pieces_.size() * p_.partition.world_size);
  next_piece_.resize(p_.partition.world_size);
}

std::uint64_t GradientSums::bookkeeping_bytes(const partition::Partition& partition) {
  std::uint64_t bytes =
      partition.parameters.size() * sizeof(std::uint8_t) + partition.pieces * sizeof(GradientPiece);
  if (partition.world_size > 1)
    bytes += (partition.world_size + 1) * largest_pieces(partition) * sizeof(GradientPiece);
  return bytes;
}

const std::byte* GradientSums::of_section(std::uint32_t section) const {
  const residency::Range& sums = p_.plan.sections[section].gradient;
  return sums.size_bytes == 0 ? nullptr : p_.arena.range(sums.offset_bytes, 0).data();
}

void GradientSums::add(ParameterId id, const void* source, DType source_dtype, std::uint64_t first,
                       std::uint64_t elements, bool overwrite, Stream stream) {
  const partition::Parameter& parameter = p_.partition.parameters[id.index];
  const residency::SectionPlan& plan = p_.plan.sections[parameter.section];
  const std::uint64_t in_shard =
      first - p_.partition.sections[parameter.section].shard.first_element;
  const std::uint64_t piece = first / kBlockElements - parameter.first_element / kBlockElements;
  Accumulation work;
  work.source = source;
  work.source_dtype = source_dtype;
  work.sum = p_.arena.range(plan.gradient.offset_bytes, 0).data() +
             in_shard * size_bytes(plan.gradient_dtype);
  work.sum_dtype = plan.gradient_dtype;
  work.elements = elements;
  work.overwrite = overwrite;
  work.pieces = &pieces_[parameter.first_piece + piece];
  work.first_piece_elements = kBlockElements - first % kBlockElements;
  work.piece_elements = kBlockElements;
  p_.device.accumulate(stream, work);
}

void GradientSums::measure(ParameterId id, const void* gradient, DType dtype) {
  const partition::Parameter& parameter = p_.partition.parameters[id.index];
  Accumulation work;
  work.source = gradient;
  work.source_dtype = dtype;
  work.elements = parameter.elements;
  work.pieces = &pieces_[parameter.first_piece];
  work.first_piece_elements = kBlockElements - parameter.first_element % kBlockElements;
  work.piece_elements = kBlockElements;
  kernels::accumulate_on_host(work);
}

std::size_t GradientSums::pack_bytes(const partition::Partition& partition) {
  return partition.world_size == 1 ? 0 : largest_pieces(partition) * sizeof(GradientPiece);
}

std::span<const std::byte> GradientSums::pack() {
  std::ranges::fill(own_pieces_, GradientPiece{});
  std::size_t at = 0;
  each_owned_piece(p_.partition, [&](std::uint64_t piece, std::uint32_t rank) {
    if (rank == p_.partition.rank) own_pieces_[at++] = pieces_[piece];
  });
  return std::as_bytes(std::span(own_pieces_));
}

void GradientSums::gather_pieces(bool attached) {
  const auto all = std::as_writable_bytes(std::span(all_pieces_));
  if (attached) {
    for (std::uint32_t r = 0; r < p_.partition.world_size; ++r) {
      const auto of_rank = p_.ranks.attached(r);
      std::ranges::copy(of_rank, all.begin() + static_cast<std::ptrdiff_t>(r * of_rank.size()));
    }
  } else {
    p_.ranks.collective().exchange(p_.ranks.next("gradient norm"), pack(), all);
  }
  std::vector<std::size_t>& next = next_piece_;
  for (std::size_t r = 0; r < next.size(); ++r) next[r] = r * own_pieces_.size();
  each_owned_piece(p_.partition, [&](std::uint64_t piece, std::uint32_t rank) {
    pieces_[piece] = all_pieces_[next[rank]++];
  });
}

GradientTotals GradientSums::total(bool attached) {
  if (p_.partition.world_size > 1) gather_pieces(attached);
  GradientTotals totals;
  for (std::uint32_t i = 0; i < p_.partition.parameters.size(); ++i) {
    const partition::Parameter& parameter = p_.partition.parameters[i];
    std::uint64_t non_finite = 0;
    for (std::uint64_t piece = 0; piece < parameter.pieces; ++piece) {
      non_finite += pieces_[parameter.first_piece + piece].non_finite;
    }
    if (non_finite > 0 && totals.first_non_finite.empty()) {
      totals.first_non_finite = p_.registry.parameter({i}).full_name;
    }
    totals.non_finite += static_cast<double>(non_finite);
  }
  totals.sum_squares = kernels::tree_sum(pieces_);
  return totals;
}

GradientPiece GradientSums::statistics(ParameterId id) const {
  const partition::Parameter& parameter = p_.partition.parameters[id.index];
  const auto pieces = std::span(pieces_).subspan(parameter.first_piece, parameter.pieces);
  GradientPiece whole;
  whole.sum_squares = kernels::tree_sum(pieces);
  for (const GradientPiece& piece : pieces) whole.non_finite += piece.non_finite;
  return whole;
}

bool GradientSums::any_received() const noexcept {
  return std::ranges::any_of(received_, [](std::uint8_t received) { return received != 0; });
}

void GradientSums::clear() {
  std::ranges::fill(received_, 0);
  std::ranges::fill(pieces_, GradientPiece{});
}
}  // namespace headrace::ranks
