// SPDX-License-Identifier: Apache-2.0
// collective_failure_test.cpp: ranks that call something else, come late, or leave: all are told,
// by name.
#include <gtest/gtest.h>

#include "collective/threads_world.hpp"
#include "support/computing_host.hpp"

namespace headrace::collective {
namespace {
using device::HostFlavour;
using std::chrono::milliseconds;
constexpr milliseconds kLong = std::chrono::minutes(2);

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Every rank makes its call; all must end in the same kPeerLost, which later calls repeat.
std::string failure_of(std::vector<Rank>& ranks,
                       const std::function<void(std::uint32_t, Collective&)>& call) {
  std::vector<std::string> texts(ranks.size());
  on_every_rank(ranks, [&](std::uint32_t r, Rank& rank) {
    texts[r] = peer_lost_text([&] { call(r, *rank.collective); });
    EXPECT_EQ(peer_lost_text([&] {
                meet(*rank.collective, {99, "later"});
              }),
              texts[r])
        << "rank " << r;
  });
  for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
  return texts[0];
}

TEST(CollectiveThreads, NamesBothCallsWhenRanksDisagreeOnTheGroup) {
  auto ranks = threads_world(2, HostFlavour::kPrompt, kLong);
  const std::string text = failure_of(ranks, [](std::uint32_t r, Collective& collective) {
    std::string what =
        r == 0 ? "gather h.3" : "gather h.4";  // gone before the other rank reports it
    char bytes[8] = {};
    collective.all_gather({7, what}, {}, equal_pieces(bytes, 8, 2));
    meet(collective, {8, "where what passed is compared"});
  });
  EXPECT_TRUE(has(text, "'gather h.3' (sequence 7")) << text;
  EXPECT_TRUE(has(text, "'gather h.4' (sequence 7")) << text;
  EXPECT_TRUE(has(text, "rank 0") && has(text, "rank 1")) << text;
}

TEST(CollectiveThreads, NamesBothCallsWhenRanksDisagreeOnTheKind) {
  auto ranks = threads_world(3, HostFlavour::kPrompt, kLong);
  const std::string text = failure_of(ranks, [](std::uint32_t r, Collective& collective) {
    if (r != 1) return meet(collective, {4, "norm"});
    char bytes[6] = {};
    collective.all_gather({4, "norm"}, {}, equal_pieces(bytes, 6, 3));
  });
  EXPECT_TRUE(has(text, "exchange 'norm' (sequence 4, 0 bytes)")) << text;
  EXPECT_TRUE(has(text, "all_gather 'norm' (sequence 4, 6 bytes)")) << text;
}

TEST(CollectiveThreads, NamesBothCallsWhenRanksDisagreeOnSequenceOrSize) {
  struct Case {
    std::uint64_t sequence;
    std::uint64_t bytes;
    const char* named;
  };
  for (const Case& other : {Case{6, 8, "sequence 6, 8 bytes"}, Case{5, 6, "sequence 5, 6 bytes"}}) {
    auto ranks = threads_world(2, HostFlavour::kPrompt, kLong);
    const std::string text = failure_of(ranks, [&](std::uint32_t r, Collective& collective) {
      char bytes[8] = {}, taken[8] = {};
      const Case mine = r == 0 ? Case{5, 8, ""} : other;
      const DeviceSpan give[] = {{bytes, mine.bytes / 2}, {bytes, mine.bytes / 2}};
      collective.all_to_all({mine.sequence, "reduce h.0"}, {}, give, taken);
      meet(collective, {9, "where what passed is compared"});
    });
    EXPECT_TRUE(has(text, "sequence 5, 8 bytes")) << text;
    EXPECT_TRUE(has(text, other.named)) << text;
  }
}

TEST(CollectiveThreads, NamesTheRanksThatDoNotComeWithinTheDeadline) {
  auto two = threads_world(2, HostFlavour::kPrompt, milliseconds(20));
  const std::string one_missing = peer_lost_text([&] { meet(*two[0].collective, {3, "freeze"}); });
  EXPECT_TRUE(has(one_missing,
                  "rank 1 did not come to exchange 'freeze' (sequence 3, 0 bytes) within 20 ms"))
      << one_missing;
  // The late one is told when it comes.
  EXPECT_EQ(peer_lost_text([&] { meet(*two[1].collective, {3, "freeze"}); }), one_missing);

  auto three = threads_world(3, HostFlavour::kPrompt, milliseconds(20));
  const std::string two_missing = peer_lost_text([&] {
    meet(*three[1].collective, {3, "freeze"});
  });
  EXPECT_TRUE(has(two_missing, "rank 0, rank 2 did not come")) << two_missing;
}

TEST(CollectiveThreads, WakesTheWaitingWhenOneAborts) {
  auto ranks = threads_world(3, HostFlavour::kLate, kLong);
  const std::string text = failure_of(ranks, [](std::uint32_t r, Collective& collective) {
    if (r == 2) collective.abort("disk full");
    meet(collective, {1, "norm"});
  });
  EXPECT_TRUE(has(text, "rank 2 gave up: disk full")) << text;
}

TEST(CollectiveThreads, WakesTheWaitingWhenOneLeaves) {
  auto ranks = threads_world(2, HostFlavour::kPrompt, kLong);
  std::string text;
  std::thread waiting([&] {
    text = peer_lost_text([&] { meet(*ranks[0].collective, {1, "step 4"}); });
  });
  ranks[1].collective.reset();
  waiting.join();
  EXPECT_TRUE(has(text, "rank 1 has left and will not come to exchange 'step 4'")) << text;
}

TEST(CollectiveThreads, RefusesAnotherNumberOfPiecesThanRanks) {
  auto ranks = threads_world(2, HostFlavour::kPrompt, kLong);
  char bytes[3] = {};
  try {
    ranks[0].collective->all_gather({1, "gather h.0"}, {}, equal_pieces(bytes, 3, 3));
    FAIL() << "accepted 3 pieces for 2 ranks";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_TRUE(has(error.what(), "3 pieces")) << error.what();
  }
  // Nothing was posted: the ranks can still meet.
  on_every_rank(ranks, [](std::uint32_t, Rank& rank) { meet(*rank.collective, {2, "after"}); });
}

// An abort while the other ranks read must not free memory under them: calls that have begun to
// read end first.
TEST(CollectiveThreads, FinishesTheCallThatAllHaveComeTo) {
  for (int round = 0; round < 200; ++round) {
    auto ranks = threads_world(2, HostFlavour::kPrompt, kLong);
    on_every_rank(ranks, [&](std::uint32_t r, Rank& rank) {
      auto whole = std::make_unique<std::vector<std::uint32_t>>(20000, r);
      const std::string end = peer_lost_text([&] {
        rank.collective->all_gather({1, "gather"}, {},
                                    equal_pieces(whole->data(), whole->size() * 4, 2));
      });
      if (end == "returned") {
        EXPECT_EQ(whole->front(), 0u);
        EXPECT_EQ(whole->back(), 1u);
      }
      rank.collective->abort("over");
      whole.reset();
    });
  }
}
}  // namespace
}  // namespace headrace::collective
