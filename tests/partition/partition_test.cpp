// SPDX-License-Identifier: Apache-2.0
#include "partition/partition.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <span>
#include <string>

#include "base/units.hpp"

namespace headrace::partition {
namespace {
std::vector<GroupShape> random_groups(std::mt19937_64& random) {
  std::vector<GroupShape> groups(1 + random() % 4);
  for (GroupShape& group : groups) {
    const std::size_t count = 1 + random() % 7;
    for (std::size_t i = 0; i < count; ++i) {
      const auto elements =
          static_cast<std::int64_t>(1 + random() % (random() % 4 == 0 ? 400'000 : 700));
      group.parameters.push_back({std::to_string(i),
                                  random() % 3   ? DType::kBf16
                                  : random() % 3 ? DType::kF32
                                                 : DType::kU8,
                                  {elements},
                                  {},
                                  random() % 3 == 0});
    }
  }
  return groups;
}

TEST(Partition, KeepsDTypesOfAGroupInSectionsOfTheirOwn) {
  const std::vector<GroupShape> groups = {
      {{{"a", DType::kBf16, {10}, {}}, {"b", DType::kF32, {3}, {}}, {"c", DType::kBf16, {5}, {}}}}};
  const Partition p = make_partition(groups, kBlockElements, 0, 1);
  ASSERT_EQ(p.sections.size(), 2u);
  EXPECT_EQ(p.parameters[0].section, p.parameters[2].section);
  EXPECT_NE(p.parameters[0].section, p.parameters[1].section);
  EXPECT_EQ(p.parameters[2].first_element, 256u);
  EXPECT_EQ(p.sections[0].elements, 261u);
  EXPECT_EQ(p.sections[0].buffer_elements, 2048u);
}

// A group's buffer of a dtype has its trained parameters first: tiles have all or none of them.
TEST(Partition, KeepsFrozenParametersInASectionBehindTheTrainedOnes) {
  const std::vector<GroupShape> groups = {{{{"a", DType::kBf16, {3000}, {}, true},
                                            {"b", DType::kF32, {3}, {}, true},
                                            {"c", DType::kBf16, {5000}, {}},
                                            {"d", DType::kBf16, {7}, {}, true},
                                            {"e", DType::kBf16, {300}, {}}}}};
  for (const std::uint32_t world : {1u, 2u}) {
    const Partition p = make_partition(groups, kBlockElements, 0, world);
    ASSERT_EQ(p.sections.size(), 3u);
    for (const Section& section : p.sections) {
      for (const std::uint32_t i : section.parameters)
        EXPECT_EQ(groups[0].parameters[i].frozen, section.frozen);
    }
    const std::uint64_t trained = p.sections[0].buffer_elements;
    EXPECT_EQ(p.first_in_buffer(p.parameters[2]), 0u);
    EXPECT_EQ(p.first_in_buffer(p.parameters[4]), 5120u);
    EXPECT_EQ(p.first_in_buffer(p.parameters[0]), trained);
    EXPECT_EQ(p.first_in_buffer(p.parameters[3]), trained + 3072);
    EXPECT_EQ(p.first_in_buffer(p.parameters[1]), 0u);
    EXPECT_EQ(p.buffer_elements(0, DType::kBf16), trained + p.sections[1].buffer_elements);
    EXPECT_EQ(p.buffer_elements(0, DType::kF32), p.sections[2].buffer_elements);
    EXPECT_EQ(p.buffer_elements(0, DType::kF16), 0u);
  }
}

TEST(Partition, CutsTheLastTileAtWhatIsUsed) {
  const std::vector<GroupShape> groups = {{{{"a", DType::kBf16, {3 * 65536 + 1}, {}}}}};
  const Partition p = make_partition(groups, 2 * kBlockElements, 0, 1);
  ASSERT_EQ(p.tiles.size(), 2u);
  EXPECT_EQ(p.tiles[0].elements, 2 * kBlockElements);
  EXPECT_EQ(p.tiles[1].elements, kBlockElements + used_alignment(DType::kBf16));
  EXPECT_EQ(p.parameters[0].pieces, 4u);
}

// The parts that a node's ranks keep are the whole section, in order, each of whole shards.
TEST(Partition, CutsEverySectionForTheRanksOfANode) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 20; ++round) {
    const auto groups = random_groups(random);
    const auto node = static_cast<std::uint32_t>(1 + random() % 4);
    const auto world = static_cast<std::uint32_t>(node * (1 + random() % 4));
    const Partition p = make_partition(groups, kBlockElements, world - 1, world);
    for (std::uint32_t s = 0; s < p.sections.size(); ++s) {
      std::uint64_t end = 0;
      for (std::uint32_t i = 0; i < node; ++i) {
        const Shard kept = p.node_shard(p.sections[s], i, node);
        EXPECT_EQ(kept.first_element, end);
        EXPECT_EQ(kept.first_element, p.shard_of(p.sections[s], i * (world / node)).first_element);
        end = kept.end();
      }
      EXPECT_EQ(end, p.sections[s].buffer_elements);
    }
    // Over all ranks, each piece goes once to every other node, and from there to the rest of it.
    for (std::uint32_t g = 0; g < groups.size(); ++g) {
      std::uint64_t joined = 0, beyond = 0, within = 0, reduced_beyond = 0, trained = 0;
      for (const std::uint32_t s : p.group_sections[g]) {
        const std::uint64_t bytes = p.sections[s].buffer_elements * size_bytes(p.sections[s].dtype);
        joined += bytes;
        trained += p.sections[s].frozen ? 0 : bytes;
      }
      for (std::uint32_t r = 0; r < world; ++r) {
        const SentWithNodes sent = sent_with_nodes(p, g, r, node);
        EXPECT_GE(sent.spread, sent.spread_beyond);
        beyond += sent.spread_beyond;
        within += sent.joined;
        reduced_beyond += sent.reduced_beyond;
      }
      EXPECT_EQ(beyond, joined * (world / node - 1));
      EXPECT_EQ(within, joined * (node - 1) * (world / node));
      EXPECT_EQ(reduced_beyond, trained * (world - node));
    }
  }
}

// Every element of every parameter lies in exactly one segment of exactly one rank's tile;
// parameters are aligned and do not overlap; the pieces are the blocks touched.
TEST(Partition, CoversEveryElementOnceOnAnyNumberOfRanks) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 40; ++round) {
    const auto groups = random_groups(random);
    const std::uint64_t tile = kBlockElements * (1 + random() % 3);
    const auto world = static_cast<std::uint32_t>(1 + random() % 4);
    std::vector<std::uint64_t> covered;
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      const Partition p = make_partition(groups, tile, rank, world);
      covered.resize(p.parameters.size());
      for (const Tile& t : p.tiles) {
        EXPECT_LE(t.elements, tile);
        EXPECT_GT(t.segments, 0u);
        const Section& section = p.sections[t.section];
        EXPECT_EQ(t.elements % used_alignment(section.dtype), 0u);
        EXPECT_EQ(t.elements * size_bytes(section.dtype) % 4096, 0u);
        EXPECT_GE(t.first_element, section.shard.first_element);
        EXPECT_LE(t.first_element + t.elements, section.shard.end());
        std::uint64_t end = 0;
        for (const Segment& s : p.segments_of(t)) {
          EXPECT_GE(s.first_element, end);
          end = s.first_element + s.elements;
          EXPECT_LE(end, t.elements);
          covered[s.parameter] += s.elements;
        }
      }
    }
    const Partition p = make_partition(groups, tile, 0, world);
    std::uint64_t pieces = 0;
    for (std::size_t i = 0; i < p.parameters.size(); ++i) {
      const Parameter& parameter = p.parameters[i];
      EXPECT_EQ(covered[i], parameter.elements);
      EXPECT_EQ(parameter.first_element % kParameterAlignment, 0u);
      EXPECT_EQ(parameter.first_piece, pieces);
      pieces += parameter.pieces;
    }
    EXPECT_EQ(p.pieces, pieces);
  }
}

// Shards lie one after the other and cover the section; owner_of() is their inverse.
void expect_shards_to_cover(const Partition& p, const Section& section) {
  std::uint64_t end = 0, largest = 0;
  for (std::uint32_t r = 0; r < p.world_size; ++r) {
    const Shard shard = p.shard_of(section, r);
    EXPECT_EQ(shard.first_element, end);
    end = shard.end();
    largest = std::max(largest, shard.elements);
    EXPECT_TRUE(end % kBlockElements == 0 || end == section.buffer_elements);
    for (std::uint64_t e = shard.first_element; e < end; e += kBlockElements)
      EXPECT_EQ(p.owner_of(section, e), r);
    if (shard.elements > 0) {
      EXPECT_EQ(p.owner_of(section, end - 1), r);
    }
  }
  EXPECT_EQ(end, section.buffer_elements);
  EXPECT_LE(largest, p.largest_shard_elements(section));
  EXPECT_GT(largest + kBlockElements, p.largest_shard_elements(section));
  EXPECT_LT(section.buffer_elements, section.elements + used_alignment(section.dtype));
}

std::uint64_t blocks_in(const Shard& shard) {
  return base::ceil_div(shard.elements, kBlockElements);
}

// Blocks of a kind that rank `r` has, in the first `sections` sections.
std::uint64_t blocks_of_rank(const Partition& p, std::uint32_t r, DType dtype, bool frozen,
                             std::size_t sections) {
  std::uint64_t blocks = 0;
  for (const Section& section : std::span(p.sections).first(sections)) {
    if (section.dtype == dtype && section.frozen == frozen)
      blocks += blocks_in(p.shard_of(section, r));
  }
  return blocks;
}

TEST(Partition, DealsBlocksEvenlyOverAllSectionsOfAKind) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (const std::uint32_t world : {1u, 2u, 3u, 7u, 64u, 512u}) {
    const Partition p = make_partition(random_groups(random), kBlockElements, world / 2, world);
    for (std::size_t sections = 1; sections <= p.sections.size(); ++sections) {
      const Section& last = p.sections[sections - 1];
      expect_shards_to_cover(p, last);
      EXPECT_EQ(last.shard.first_element, p.shard_of(last, p.rank).first_element);
      std::uint64_t least = ~std::uint64_t{0}, most = 0;
      for (std::uint32_t r = 0; r < world; ++r) {
        const std::uint64_t blocks = blocks_of_rank(p, r, last.dtype, last.frozen, sections);
        least = std::min(least, blocks);
        most = std::max(most, blocks);
      }
      EXPECT_LE(most, least + 1) << world << " ranks, " << sections << " sections";
    }
  }
}

// The example of partition.hpp.
TEST(Partition, GoesOnDealingWhereTheLastSectionEnded) {
  const GroupShape five{{{"w", DType::kBf16, {5 * 65536}, {}}}};
  const std::vector<GroupShape> groups = {five, five, five};
  const Partition p = make_partition(groups, kBlockElements, 0, 4);
  const std::array<std::array<std::uint64_t, 4>, 3> expected = {
      {{2, 1, 1, 1}, {1, 2, 1, 1}, {1, 1, 2, 1}}};
  for (std::size_t s = 0; s < expected.size(); ++s) {
    for (std::uint32_t r = 0; r < 4; ++r)
      EXPECT_EQ(blocks_in(p.shard_of(p.sections[s], r)), expected[s][r]) << s << ", " << r;
  }
}

// A model of 7 billion parameters, as GPT-3 cuts it: nobody is idle, nothing is padded.
TEST(Partition, LeavesNoRankWithoutWorkOn512) {
  std::vector<GroupShape> groups;
  for (int layer = 0; layer < 32; ++layer) {
    GroupShape group;
    for (const std::int64_t elements :
         {3 * 4096 * 4096, 4096 * 4096, 2 * 4 * 4096 * 4096, 4096, 4096})
      group.parameters.push_back({std::to_string(elements), DType::kBf16, {elements}, {}});
    groups.push_back(group);
  }
  const Partition p = make_partition(groups, kBlockElements, 0, 512);
  std::uint64_t most = 0, least = ~std::uint64_t{0}, all = 0;
  for (std::uint32_t r = 0; r < 512; ++r) {
    std::uint64_t elements = 0;
    for (const Section& section : p.sections) elements += p.shard_of(section, r).elements;
    most = std::max(most, elements);
    least = std::min(least, elements);
    all += elements;
  }
  EXPECT_LT(static_cast<double>(most), 1.02 * static_cast<double>(all) / 512);
  EXPECT_GT(static_cast<double>(least), 0.85 * static_cast<double>(all) / 512);
  EXPECT_LT(all, p.parameter_elements + p.sections.size() * used_alignment(DType::kBf16) * 2);
}

TEST(Partition, PlacesParametersAlikeForEveryTileSizeAndRank) {
  std::mt19937_64 random(7);
  const auto groups = random_groups(random);
  const Partition a = make_partition(groups, kBlockElements, 0, 3);
  const Partition b = make_partition(groups, 4 * kBlockElements, 2, 3);
  for (std::size_t i = 0; i < a.parameters.size(); ++i) {
    EXPECT_EQ(a.parameters[i].first_element, b.parameters[i].first_element);
    EXPECT_EQ(a.parameters[i].first_piece, b.parameters[i].first_piece);
  }
}
}  // namespace
}  // namespace headrace::partition
