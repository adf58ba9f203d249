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
                rank.collective->barrier({99, "later"});
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
    collective.all_gather({7, what}, {}, {bytes, 8});
  });
  EXPECT_TRUE(has(text, "'gather h.3' (sequence 7")) << text;
  EXPECT_TRUE(has(text, "'gather h.4' (sequence 7")) << text;
  EXPECT_TRUE(has(text, "rank 0") && has(text, "rank 1")) << text;
}

TEST(CollectiveThreads, NamesBothCallsWhenRanksDisagreeOnTheKind) {
  auto ranks = threads_world(3, HostFlavour::kPrompt, kLong);
  const std::string text = failure_of(ranks, [](std::uint32_t r, Collective& collective) {
    double value = 1;
    if (r == 1) {
      collective.all_reduce_sum({4, "norm"}, &value, 1);
    } else {
      collective.barrier({4, "norm"});
    }
  });
  EXPECT_TRUE(has(text, "barrier 'norm' (sequence 4)")) << text;
  EXPECT_TRUE(has(text, "all_reduce_sum 'norm' (sequence 4, 1 values)")) << text;
}

TEST(CollectiveThreads, NamesBothCallsWhenRanksDisagreeOnSequenceSizeOrDtype) {
  struct Case {
    std::uint64_t sequence;
    DType dtype;
    std::uint64_t elements;
    const char* named;
  };
  for (const Case& other : {Case{6, DType::kF32, 8, "sequence 6, 8 F32"},
                            Case{5, DType::kBf16, 8, "sequence 5, 8 BF16"},
                            Case{5, DType::kF32, 6, "sequence 5, 6 F32"}}) {
    auto ranks = threads_world(2, HostFlavour::kPrompt, kLong);
    const std::string text = failure_of(ranks, [&](std::uint32_t r, Collective& collective) {
      float values[8] = {};
      const Case mine = r == 0 ? Case{5, DType::kF32, 8, ""} : other;
      collective.reduce_scatter({mine.sequence, "reduce h.0"}, {}, values, mine.dtype,
                                mine.elements);
    });
    EXPECT_TRUE(has(text, "sequence 5, 8 F32")) << text;
    EXPECT_TRUE(has(text, other.named)) << text;
  }
}

TEST(CollectiveThreads, NamesTheRanksThatDoNotComeWithinTheDeadline) {
  auto two = threads_world(2, HostFlavour::kPrompt, milliseconds(20));
  const std::string one_missing = peer_lost_text([&] {
    two[0].collective->barrier({3, "freeze"});
  });
  EXPECT_TRUE(has(one_missing, "rank 1 did not come to barrier 'freeze' (sequence 3) within 20 ms"))
      << one_missing;
  // The late one is told when it comes.
  EXPECT_EQ(peer_lost_text([&] { two[1].collective->barrier({3, "freeze"}); }), one_missing);

  auto three = threads_world(3, HostFlavour::kPrompt, milliseconds(20));
  const std::string two_missing = peer_lost_text([&] {
    three[1].collective->barrier({3, "freeze"});
  });
  EXPECT_TRUE(has(two_missing, "rank 0, rank 2 did not come")) << two_missing;
}

TEST(CollectiveThreads, WakesTheWaitingWhenOneAborts) {
  auto ranks = threads_world(3, HostFlavour::kLate, kLong);
  const std::string text = failure_of(ranks, [](std::uint32_t r, Collective& collective) {
    if (r == 2) collective.abort("disk full");
    double value = 0;
    collective.all_reduce_sum({1, "norm"}, &value, 1);
  });
  EXPECT_TRUE(has(text, "rank 2 gave up: disk full")) << text;
}

TEST(CollectiveThreads, WakesTheWaitingWhenOneLeaves) {
  auto ranks = threads_world(2, HostFlavour::kPrompt, kLong);
  std::string text;
  std::thread waiting([&] {
    text = peer_lost_text([&] { ranks[0].collective->barrier({1, "step 4"}); });
  });
  ranks[1].collective.reset();
  waiting.join();
  EXPECT_TRUE(has(text, "rank 1 has left and will not come to barrier 'step 4'")) << text;
}

TEST(CollectiveThreads, RefusesABufferThatDoesNotDivide) {
  auto ranks = threads_world(2, HostFlavour::kPrompt, kLong);
  float values[3] = {};
  try {
    ranks[0].collective->reduce_scatter({1, "reduce h.0"}, {}, values, DType::kF32, 3);
    FAIL() << "accepted 3 elements for 2 ranks";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_TRUE(has(error.what(), "3 elements")) << error.what();
  }
  // Nothing was posted: the ranks can still meet.
  on_every_rank(ranks, [](std::uint32_t, Rank& rank) { rank.collective->barrier({2, "after"}); });
}

// An abort while the other ranks read must not free memory under them: calls that have begun to
// read end first.
TEST(CollectiveThreads, FinishesTheCallThatAllHaveComeTo) {
  for (int round = 0; round < 200; ++round) {
    auto ranks = threads_world(2, HostFlavour::kPrompt, kLong);
    on_every_rank(ranks, [&](std::uint32_t r, Rank& rank) {
      auto whole = std::make_unique<std::vector<std::uint32_t>>(20000, r);
      const std::string end = peer_lost_text([&] {
        rank.collective->all_gather({1, "gather"}, {}, {whole->data(), whole->size() * 4});
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
