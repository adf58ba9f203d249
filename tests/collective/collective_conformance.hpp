// SPDX-License-Identifier: Apache-2.0
// collective_conformance.hpp: what every Collective must do, at any world size and on any device
// whose memory the CPU can see. A backend instantiates it with a way to make the ranks.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "collective/ranks.hpp"
#include "device/device_bytes.hpp"
#include "headrace/error.hpp"

namespace headrace::collective {
struct WorldMaker {
  std::string name;
  std::uint32_t world_size;
  std::function<std::vector<Rank>(std::chrono::milliseconds deadline)> make;
};
inline constexpr std::chrono::milliseconds kNoHurry = std::chrono::minutes(2);

class CollectiveConformance : public ::testing::TestWithParam<WorldMaker> {
 protected:
  void SetUp() override { ranks_ = GetParam().make(kNoHurry); }
  // Together: a rank may wait at its end for the others to know.
  void TearDown() override {
    on_every_rank(ranks_, [](std::uint32_t, Rank& rank) { rank.collective.reset(); });
  }
  // What every rank's call ends in.
  std::vector<std::string> ends_of(const std::function<void(std::uint32_t, Collective&)>& call) {
    std::vector<std::string> texts(world());
    on_every_rank(ranks_, [&](std::uint32_t r, Rank& rank) {
      texts[r] = peer_lost_text([&] { call(r, *rank.collective); });
    });
    return texts;
  }
  std::uint32_t world() const { return GetParam().world_size; }
  std::vector<Rank> ranks_;
};

TEST_P(CollectiveConformance, KnowsItsRankAndWorld) {
  ASSERT_EQ(ranks_.size(), world());
  for (std::uint32_t r = 0; r < world(); ++r) {
    EXPECT_EQ(ranks_[r].collective->rank(), r);
    EXPECT_EQ(ranks_[r].collective->world_size(), world());
  }
}

// Each rank's piece is written by work queued on the stream just before, and the whole is read by
// work queued just after: the call must see the one and be seen by the other.
TEST_P(CollectiveConformance, GathersEveryRanksPieceInStreamOrder) {
  constexpr std::size_t kWords = 1000;
  std::vector<std::vector<std::uint32_t>> seen(world());
  on_every_rank(ranks_, [&](std::uint32_t r, Rank& rank) {
    const Stream stream = rank.device->create_stream();
    const device::DeviceBytes whole(*rank.device, kWords * 4 * world());
    auto* mine = static_cast<char*>(whole.data()) + r * kWords * 4;
    for (std::uint32_t round = 0; round < 10; ++round) {
      const std::vector<std::uint32_t> piece(kWords, 100 * round + r);
      rank.device->copy(stream, mine, piece.data(), kWords * 4);
      const std::string what = "gather round " + std::to_string(round);
      rank.collective->all_gather({round, what}, stream,
                                  equal_pieces(whole.data(), kWords * 4 * world(), world()));
      std::vector<std::uint32_t> back(kWords * world());
      rank.device->copy(stream, back.data(), whole.data(), back.size() * 4);
      rank.device->synchronize(stream);
      for (std::size_t i = 0; i < back.size(); i += kWords / 4) seen[r].push_back(back[i]);
    }
    rank.device->destroy_stream(stream);
  });
  std::vector<std::uint32_t> expected;
  for (std::uint32_t round = 0; round < 10; ++round) {
    for (std::uint32_t r = 0; r < world(); ++r) expected.insert(expected.end(), 4, 100 * round + r);
  }
  for (std::uint32_t r = 0; r < world(); ++r) EXPECT_EQ(seen[r], expected) << "rank " << r;
}

// Every pair of ranks has a size of its own, many of them 0. Pieces lie apart, and what lies
// between them stays as it is.
TEST_P(CollectiveConformance, PassesPiecesOfAnySizes) {
  constexpr std::size_t kMost = 3000;
  const auto words_of = [](std::uint32_t round, std::uint32_t from, std::uint32_t to) {
    return from == to || (from + to + round) % 3 == 0 ? 0 : kMost / (1 + (from + 2 * to) % 4);
  };
  on_every_rank(ranks_, [&](std::uint32_t r, Rank& rank) {
    ASSERT_TRUE(rank.collective->has_all_to_all_v());
    const Stream stream = rank.device->create_stream();
    const std::size_t words = (kMost + 1) * world();
    const device::DeviceBytes out(*rank.device, 4 * words), in(*rank.device, 4 * words);
    for (std::uint32_t round = 0; round < 9; ++round) {
      std::vector<std::uint32_t> give(words), take(words, 7), expected(words, 7), back(words);
      std::vector<DeviceSpan> gives, takes;
      for (std::uint32_t other = 0; other < world(); ++other) {
        const std::size_t at = (kMost + 1) * other;
        const std::size_t given = words_of(round, r, other), taken = words_of(round, other, r);
        std::fill_n(give.begin() + static_cast<std::ptrdiff_t>(at), given,
                    10'000 * round + 100 * r + other);
        std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(at), taken,
                    10'000 * round + 100 * other + r);
        gives.push_back({static_cast<char*>(out.data()) + 4 * at, 4 * given});
        takes.push_back({static_cast<char*>(in.data()) + 4 * at, 4 * taken});
      }
      rank.device->copy(stream, out.data(), give.data(), 4 * words);
      rank.device->copy(stream, in.data(), take.data(), 4 * words);
      const std::string what = "pieces round " + std::to_string(round);
      rank.collective->all_to_all_v({round, what}, stream, gives, takes, 4 * kMost);
      rank.device->copy(stream, back.data(), in.data(), 4 * words);
      rank.device->synchronize(stream);
      EXPECT_TRUE(back == expected) << "rank " << r << ", round " << round;
    }
    rank.device->destroy_stream(stream);
  });
}

// Pieces of different sizes, one of them empty; written by work queued just before, and read by
// work queued just after.
TEST_P(CollectiveConformance, GivesEveryRankItsPieceOfEveryOther) {
  const auto words_for = [](std::uint32_t to) { return std::size_t{1000} * to; };
  on_every_rank(ranks_, [&](std::uint32_t r, Rank& rank) {
    const Stream stream = rank.device->create_stream();
    const std::size_t own = words_for(r) * (world() - 1);
    const device::DeviceBytes out(*rank.device, 4 * words_for(world()) * world());
    const device::DeviceBytes in(*rank.device, 4 * own + 4);
    for (std::uint32_t round = 0; round < 10; ++round) {
      std::vector<std::vector<std::uint32_t>> pieces;
      std::vector<DeviceSpan> give;
      auto* at = static_cast<char*>(out.data());
      for (std::uint32_t to = 0; to < world(); ++to) {
        pieces.emplace_back(words_for(to), 10'000 * round + 100 * r + to);
        rank.device->copy(stream, at, pieces.back().data(), 4 * words_for(to));
        give.push_back({at, 4 * words_for(to)});
        at += 4 * words_for(to);
      }
      const std::string what = "pieces round " + std::to_string(round);
      rank.collective->all_to_all({round, what}, stream, give, in.data());
      std::vector<std::uint32_t> back(own), expected;
      rank.device->copy(stream, back.data(), in.data(), 4 * own);
      rank.device->synchronize(stream);
      for (std::uint32_t from = 0; from < world(); ++from) {
        if (from != r)
          expected.insert(expected.end(), words_for(r), 10'000 * round + 100 * from + r);
      }
      EXPECT_TRUE(back == expected) << "rank " << r << ", round " << round;
    }
    rank.device->destroy_stream(stream);
  });
}

// A message, as every rank can work it out.
inline std::vector<std::byte> message_of(std::uint32_t rank, std::size_t size) {
  std::mt19937_64 random(1000 * size + rank);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// 856 bytes are what a post holds.
TEST_P(CollectiveConformance, ExchangesMessagesOfAnySize) {
  std::vector<std::vector<std::byte>> received(world());
  std::vector<std::byte> expected;
  for (const std::size_t size : {0u, 1u, 7u, 8u, 856u, 857u, 4096u, 20'000u}) {
    expected.clear();
    for (std::uint32_t r = 0; r < world(); ++r) {
      const std::vector<std::byte> one = message_of(r, size);
      expected.insert(expected.end(), one.begin(), one.end());
    }
    on_every_rank(ranks_, [&](std::uint32_t r, Rank& rank) {
      received[r].assign(size * world(), std::byte{0xee});
      // Gone right after: what the others read is no longer it.
      rank.collective->exchange({size, "message"}, message_of(r, size), received[r]);
    });
    for (const auto& all : received) EXPECT_TRUE(all == expected) << size << " bytes";
  }
}

// Some ranks have nothing to give, and the largest piece is larger than staging takes at once.
TEST_P(CollectiveConformance, GathersPiecesOfAnySize) {
  on_every_rank(ranks_, [&](std::uint32_t own, Rank& rank) {
    for (std::uint32_t round = 0; round < 6; ++round) {
      const auto size_of = [&](std::uint32_t r) -> std::size_t {
        const std::uint32_t kind = (r + round) % 4;
        return kind == 0 ? 0 : kind == 1 ? 40'001 + 3 * round : kind == 2 ? 7 : 4096;
      };
      std::size_t total = 0;
      for (std::uint32_t r = 0; r < world(); ++r) total += size_of(r);
      const device::DeviceBytes memory(*rank.device, std::max<std::size_t>(total, 1));
      std::vector<DeviceSpan> whole;
      const std::vector<std::byte> mine = message_of(own + round, size_of(own));
      std::vector<std::byte> expected, back(total);
      for (std::uint32_t r = 0; r < world(); ++r) {
        whole.push_back({static_cast<std::byte*>(memory.data()) + expected.size(), size_of(r)});
        const std::vector<std::byte> bytes = message_of(r + round, size_of(r));
        expected.insert(expected.end(), bytes.begin(), bytes.end());
      }
      if (!mine.empty()) rank.device->copy({}, whole[own].data, mine.data(), mine.size());
      rank.collective->all_gather({round, "any sizes"}, {}, whole);
      if (total > 0) rank.device->copy({}, back.data(), memory.data(), total);
      rank.device->synchronize({});
      EXPECT_TRUE(back == expected) << "rank " << own << ", round " << round;
    }
  });
}

TEST_P(CollectiveConformance, ExchangesInTurnWithOtherCalls) {
  std::vector<int> sums(world());
  on_every_rank(ranks_, [&](std::uint32_t r, Rank& rank) {
    for (std::uint64_t round = 0; round < 50; ++round) {
      std::vector<std::byte> all(8 * world()), whole(8 * world());
      rank.collective->exchange({3 * round, "one"}, message_of(r, 8), all);
      std::ranges::copy(message_of(r, 8), whole.begin() + 8 * r);
      rank.collective->all_gather({3 * round + 1, "two"}, {},
                                  equal_pieces(whole.data(), whole.size(), world()));
      meet(*rank.collective, {3 * round + 2, "three"});
      rank.device->synchronize({});
      EXPECT_TRUE(whole == all);
      sums[r] += std::to_integer<int>(all[8 * (round % world())]);
    }
  });
  int expected = 0;
  for (std::uint32_t round = 0; round < 50; ++round)
    expected += std::to_integer<int>(message_of(round % world(), 8)[0]);
  EXPECT_EQ(sums, std::vector<int>(world(), expected));
}

TEST_P(CollectiveConformance, TakesEmptyCalls) {
  on_every_rank(ranks_, [&](std::uint32_t, Rank& rank) {
    rank.collective->all_gather({0, "nothing"}, {}, equal_pieces(nullptr, 0, world()));
    rank.collective->all_to_all({1, "nothing"}, {}, std::vector<DeviceSpan>(world()), nullptr);
    rank.collective->exchange({2, "nothing"}, {}, {});
  });
}

TEST_P(CollectiveConformance, LeavesAnExchangeOnlyWhenAllHaveCome) {
  std::atomic<std::uint32_t> came = 0;
  std::atomic<std::uint32_t> early = 0;
  on_every_rank(ranks_, [&](std::uint32_t, Rank& rank) {
    for (std::uint64_t round = 0; round < 100; ++round) {
      ++came;
      meet(*rank.collective, {2 * round, "in"});
      early += came != world() * (round + 1);
      meet(*rank.collective, {2 * round + 1, "out"});
    }
  });
  EXPECT_EQ(early, 0u);
}

TEST_P(CollectiveConformance, EndsEveryCallAfterAnAbort) {
  on_every_rank(ranks_, [&](std::uint32_t, Rank& rank) { meet(*rank.collective, {0, "before"}); });
  const std::uint32_t last = world() - 1;
  {
    std::string why = "the drive is gone";
    ranks_[last].collective->abort(why);
    why.assign(why.size(), 'x');
    ranks_[0].collective->abort("a later reason");
  }
  std::vector<std::string> texts(world());
  on_every_rank(ranks_, [&](std::uint32_t r, Rank& rank) {
    texts[r] = peer_lost_text([&] { meet(*rank.collective, {1, "after"}); });
    const std::vector<DeviceSpan> nothing(world());
    EXPECT_EQ(peer_lost_text([&] {
                rank.collective->all_to_all({2, "after"}, {}, nothing, nullptr);
              }),
              texts[r]);
    EXPECT_EQ(peer_lost_text([&] {
                rank.collective->all_gather({3, "after"}, {}, nothing);
              }),
              texts[r]);
    EXPECT_EQ(peer_lost_text([&] { rank.collective->exchange({5, "after"}, {}, {}); }), texts[r]);
  });
  for (const std::string& text : texts) {
    EXPECT_NE(text.find("rank " + std::to_string(last) + " gave up: the drive is gone"),
              std::string::npos)
        << text;
  }
}

// Of two and more ranks, where a call may find that another rank is elsewhere.
class CollectiveOfSeveral : public CollectiveConformance {
 protected:
  static bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }
  void exchange(Collective& collective, CollectiveTag tag, std::size_t size) const {
    const std::vector<std::byte> mine(size);
    std::vector<std::byte> all(size * world());
    collective.exchange(tag, mine, all);
  }
};
inline std::vector<WorldMaker> of_several(std::vector<WorldMaker> worlds) {
  std::erase_if(worlds, [](const WorldMaker& world) { return world.world_size < 2; });
  return worlds;
}

TEST_P(CollectiveOfSeveral, NamesExchangesThatDifferOnBothSides) {
  struct Case {
    std::uint64_t sequence;
    const char* what;
    std::size_t size;
  };
  for (const Case& last : {Case{4, "step", 16}, Case{5, "freeze", 16}, Case{4, "freeze", 4096}}) {
    TearDown();
    SetUp();
    const auto texts = ends_of([&](std::uint32_t r, Collective& collective) {
      const Case mine = r + 1 == world() ? last : Case{4, "freeze", 16};
      std::string what = mine.what;  // gone before the other rank reports it
      exchange(collective, {mine.sequence, what}, mine.size);
    });
    const std::string one = "'freeze' (sequence 4", rank = "rank " + std::to_string(world() - 1);
    const std::string other =
        std::string("'") + last.what + "' (sequence " + std::to_string(last.sequence);
    for (const std::string& text : texts) {
      EXPECT_EQ(text, texts[0]);
      EXPECT_TRUE(has(text, one) && has(text, other)) << text;
      EXPECT_TRUE(has(text, rank + " called")) << text;
      EXPECT_TRUE(has(text, "neither was carried out")) << text;
    }
  }
}

TEST_P(CollectiveOfSeveral, EndsAnExchangeThatARankDoesNotComeTo) {
  TearDown();
  ranks_ = GetParam().make(std::chrono::milliseconds(400));
  const std::uint32_t late = world() - 1;
  for (const std::string& text : ends_of([&](std::uint32_t r, Collective&collective) {
         if (r == late) throw Error(Code::kPeerLost, "late");
         exchange(collective, {3, "freeze"}, 4096);
       })) {
    if (text == "late") continue;
    EXPECT_TRUE(has(text, "rank " + std::to_string(late) + " did not come to")) << text;
    EXPECT_TRUE(has(text, "'freeze' (sequence 3")) << text;
    EXPECT_TRUE(has(text, "within 400 ms")) << text;
  }
}

TEST_P(CollectiveOfSeveral, EndsAnExchangeWhenARankAborts) {
  for (const std::string& text : ends_of([&](std::uint32_t r, Collective&collective) {
         if (r + 1 == world()) collective.abort("the drive is gone");
         exchange(collective, {1, "freeze"}, 16);
       })) {
    EXPECT_TRUE(has(text, "rank " + std::to_string(world() - 1) + " gave up: the drive is gone"))
        << text;
  }
}
}  // namespace headrace::collective
