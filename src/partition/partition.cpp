// SPDX-License-Identifier: Apache-2.0
#include "partition/partition.hpp"

#include <algorithm>
#include <array>
#include <ranges>

#include "base/check.hpp"
#include "base/units.hpp"

namespace headrace::partition {
using base::align_up;

namespace {
constexpr std::size_t kDTypes = 4;

// A group's sections: a trained and a frozen one per dtype where it has such parameters, dtypes in
// order of first appearance.
void make_sections(Partition& result, const GroupShape& shape, std::uint32_t group) {
  std::vector<DType> dtypes;
  for (const ParameterSpec& spec : shape.parameters) {
    if (std::ranges::find(dtypes, spec.dtype) == dtypes.end()) dtypes.push_back(spec.dtype);
  }
  auto& mine = result.group_sections.emplace_back();
  for (const DType dtype : dtypes) {
    for (const bool frozen : {false, true}) {
      const auto belongs = [&](const ParameterSpec& spec) {
        return spec.dtype == dtype && spec.frozen == frozen;
      };
      if (std::ranges::none_of(shape.parameters, belongs)) continue;
      mine.push_back(static_cast<std::uint32_t>(result.sections.size()));
      Section& section = result.sections.emplace_back();
      section.group = group;
      section.dtype = dtype;
      section.frozen = frozen;
    }
  }
}

void add_group(Partition& result, const GroupShape& shape, std::uint32_t group) {
  make_sections(result, shape, group);
  for (const ParameterSpec& spec : shape.parameters) {
    const auto found = std::ranges::find_if(result.group_sections[group], [&](std::uint32_t s) {
      return result.sections[s].dtype == spec.dtype && result.sections[s].frozen == spec.frozen;
    });
    Section& section = result.sections[*found];
    Parameter parameter;
    parameter.group = group;
    parameter.section = *found;
    parameter.first_element = align_up(section.elements, kParameterAlignment);
    parameter.elements = spec.elements();
    const std::uint64_t end = parameter.first_element + parameter.elements;
    parameter.first_piece = result.pieces;
    parameter.pieces = (end - 1) / kBlockElements - parameter.first_element / kBlockElements + 1;
    result.pieces += parameter.pieces;
    section.elements = end;
    section.parameters.push_back(static_cast<std::uint32_t>(result.parameters.size()));
    result.parameters.push_back(parameter);
    result.parameter_elements += parameter.elements;
  }
}

void add_segments(Partition& result, Tile& tile) {
  tile.first_segment = static_cast<std::uint32_t>(result.segments.size());
  const std::uint64_t tile_end = tile.first_element + tile.elements;
  // They lie in order: from the first that reaches into the tile to the last that begins in it.
  const std::vector<std::uint32_t>& all = result.sections[tile.section].parameters;
  const auto end_of = [&](std::uint32_t index) {
    return result.parameters[index].first_element + result.parameters[index].elements;
  };
  for (auto one = std::ranges::upper_bound(all, tile.first_element, {}, end_of); one != all.end();
       ++one) {
    const std::uint64_t begin = result.parameters[*one].first_element;
    if (begin >= tile_end) break;
    const std::uint64_t first = std::max(begin, tile.first_element);
    const std::uint64_t end = std::min(end_of(*one), tile_end);
    if (first < end) result.segments.push_back({*one, first - tile.first_element, end - first});
  }
  tile.segments = static_cast<std::uint32_t>(result.segments.size()) - tile.first_segment;
}

std::uint64_t blocks_of(const Section& section) {
  return base::ceil_div(section.buffer_elements, kBlockElements);
}

// Blocks of a section that ranks below `rank` own. The remainder goes to one rank each, from
// first_dealt_to on, and from rank 0 on behind the last.
std::uint64_t blocks_below(const Section& section, std::uint64_t world_size, std::uint64_t rank) {
  const std::uint64_t each = blocks_of(section) / world_size;
  const std::uint64_t first = section.first_dealt_to;
  const std::uint64_t end = first + blocks_of(section) % world_size;
  std::uint64_t more = std::clamp(rank, first, end) - first;
  if (end > world_size) more += std::min(rank, end - world_size);
  return rank * each + more;
}

// Goes on dealing where the last section of its kind has ended.
void deal_blocks(Partition& result) {
  std::array<std::array<std::uint64_t, 2>, kDTypes> dealt{};
  for (Section& section : result.sections) {
    std::uint64_t& next = dealt[static_cast<std::size_t>(section.dtype)][section.frozen ? 1 : 0];
    section.buffer_elements = align_up(section.elements, used_alignment(section.dtype));
    section.first_dealt_to = static_cast<std::uint32_t>(next % result.world_size);
    next += blocks_of(section);
    section.shard = result.shard_of(section, result.rank);
  }
}

void cut_section(Partition& result, std::uint32_t index) {
  Section& section = result.sections[index];
  section.first_tile = static_cast<std::uint32_t>(result.tiles.size());
  const std::uint64_t end = section.shard.end();
  for (std::uint64_t first = section.shard.first_element; first < end;
       first += result.tile_elements) {
    Tile tile;
    tile.section = index;
    tile.first_element = first;
    tile.elements = std::min(result.tile_elements, end - first);
    add_segments(result, tile);
    result.tiles.push_back(tile);
  }
  section.tiles = static_cast<std::uint32_t>(result.tiles.size()) - section.first_tile;
}
}  // namespace

Shard Partition::shard_of(const Section& section, std::uint32_t of_rank) const {
  const auto below = [&](std::uint64_t r) {
    return std::min(blocks_below(section, world_size, r) * kBlockElements, section.buffer_elements);
  };
  const std::uint64_t first = below(of_rank);
  return {first, below(of_rank + std::uint64_t{1}) - first};
}

Shard Partition::node_shard(const Section& section, std::uint32_t index,
                            std::uint32_t node_ranks) const {
  const std::uint32_t nodes = world_size / node_ranks;
  const std::uint64_t first = shard_of(section, index * nodes).first_element;
  return {first, shard_of(section, (index + 1) * nodes - 1).end() - first};
}

std::uint64_t Partition::largest_shard_elements(const Section& section) const {
  return std::min(base::ceil_div(blocks_of(section), world_size) * kBlockElements,
                  section.buffer_elements);
}

std::uint32_t Partition::owner_of(const Section& section, std::uint64_t element) const {
  const std::uint64_t block = element / kBlockElements;
  const auto ranks = std::views::iota(std::uint64_t{1}, std::uint64_t{world_size});
  const auto after = std::ranges::upper_bound(
      ranks, block, {}, [&](std::uint64_t r) { return blocks_below(section, world_size, r); });
  return static_cast<std::uint32_t>(after - ranks.begin());
}

Partition::Owners Partition::owners_of(const Parameter& parameter) const {
  const Section& section = sections[parameter.section];
  const std::uint64_t last =
      parameter.first_element + std::max<std::uint64_t>(parameter.elements, 1) - 1;
  return {owner_of(section, parameter.first_element), owner_of(section, last)};
}

std::uint64_t Partition::buffer_elements(std::uint32_t group, DType dtype) const {
  std::uint64_t elements = 0;
  for (const std::uint32_t s : group_sections[group])
    elements += sections[s].dtype == dtype ? sections[s].buffer_elements : 0;
  return elements;
}

Segment Partition::segment_of(const Tile& tile, std::uint32_t parameter) const {
  const auto within = segments_of(tile);  // in the order of their parameters
  const auto found = std::ranges::lower_bound(within, parameter, {}, &Segment::parameter);
  if (found == within.end() || found->parameter != parameter) return {parameter, 0, 0};
  return *found;
}

Partition::TileRange Partition::tiles_with(const Parameter& parameter) const {
  const Section& section = sections[parameter.section];
  const std::uint64_t shard = section.shard.first_element;
  const auto tile_of = [&](std::uint64_t element) {
    return element < shard ? 0 : (element - shard) / tile_elements;
  };
  const std::uint64_t tiles_here = section.tiles;
  const std::uint64_t first = std::min(tile_of(parameter.first_element), tiles_here);
  const std::uint64_t last = tile_of(parameter.first_element + parameter.elements - 1);
  return {static_cast<std::uint32_t>(section.first_tile + first),
          static_cast<std::uint32_t>(section.first_tile + std::min(last + 1, tiles_here))};
}

std::uint64_t Partition::bookkeeping_bytes() const {
  std::uint64_t bytes = parameters.capacity() * sizeof(Parameter) +
                        sections.capacity() * sizeof(Section) + tiles.capacity() * sizeof(Tile) +
                        segments.capacity() * sizeof(Segment);
  for (const Section& section : sections)
    bytes += section.parameters.capacity() * sizeof(std::uint32_t);
  return bytes;
}

SentBytes sent_by(const Partition& partition, std::uint32_t group, std::uint32_t rank,
                  const Wire& wire) {
  SentBytes sent;
  for (const std::uint32_t s : partition.group_sections[group]) {
    const Section& section = partition.sections[s];
    const std::uint64_t own = partition.shard_of(section, rank).elements;
    sent.gathered += wire.parameter_bytes(section, own) * (partition.world_size - 1);
    if (!section.frozen)
      sent.reduced += wire.gradient_bytes(section, section.buffer_elements - own);
  }
  return sent;
}

SentWithNodes sent_with_nodes(const Partition& partition, std::uint32_t group, std::uint32_t rank,
                              std::uint32_t node_ranks, const Wire& wire) {
  SentWithNodes sent;
  const std::uint32_t nodes = partition.world_size / node_ranks;
  const std::uint32_t index = rank % node_ranks, node = rank - index;
  for (const std::uint32_t s : partition.group_sections[group]) {
    const Section& section = partition.sections[s];
    const std::uint64_t bytes = size_bytes(section.dtype);
    const std::uint64_t own =
        wire.parameter_bytes(section, partition.shard_of(section, rank).elements);
    const std::uint64_t here = partition.shard_of(section, node + node_ranks - 1).end() -
                               partition.shard_of(section, node).first_element;
    const bool keeps_own = index == rank / nodes;
    sent.spread_beyond += own * (nodes - 1);
    sent.spread += own * (keeps_own ? nodes - 1 : nodes);
    sent.joined +=
        partition.node_shard(section, index, node_ranks).elements * bytes * (node_ranks - 1);
    if (!section.frozen)
      sent.reduced_beyond += wire.gradient_bytes(section, section.buffer_elements - here);
  }
  return sent;
}

ReducedInNodes reduced_in_nodes(const Partition& partition, std::uint32_t group, std::uint32_t rank,
                                std::uint32_t node_ranks) {
  ReducedInNodes sent;
  for (const std::uint32_t s : partition.group_sections[group]) {
    const Section& section = partition.sections[s];
    if (section.frozen) continue;
    std::uint64_t of_place = 0;
    for (std::uint32_t r = rank % node_ranks; r < partition.world_size; r += node_ranks)
      of_place += partition.shard_of(section, r).elements;
    sent.within += (section.buffer_elements - of_place) * size_bytes(section.dtype);
    sent.beyond += (of_place - partition.shard_of(section, rank).elements) * sizeof(float);
  }
  return sent;
}

Partition make_partition(std::span<const GroupShape> groups, std::uint64_t tile_elements,
                         std::uint32_t rank, std::uint32_t world_size) {
  HEADRACE_CHECK(tile_elements > 0 && tile_elements % kBlockElements == 0,
                 "tiles are whole blocks");
  HEADRACE_CHECK(rank < world_size, "ranks count from 0");
  Partition result;
  result.rank = rank;
  result.world_size = world_size;
  result.tile_elements = tile_elements;
  for (std::uint32_t group = 0; group < groups.size(); ++group)
    add_group(result, groups[group], group);
  deal_blocks(result);
  for (std::uint32_t section = 0; section < result.sections.size(); ++section)
    cut_section(result, section);
  for (std::size_t s = 1; s < result.sections.size(); ++s) {
    const Section& before = result.sections[s - 1];
    Section& section = result.sections[s];
    if (section.group == before.group && section.dtype == before.dtype)
      section.first_in_buffer = before.buffer_elements;
  }
  return result;
}
}  // namespace headrace::partition
