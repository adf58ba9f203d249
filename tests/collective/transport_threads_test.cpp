// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "collective/transport_conformance.hpp"
#include "support/late_transport.hpp"

namespace headrace::collective {
namespace {
// Runs `body` on a thread per rank; the first error, or "".
template <class Body>
std::string on_threads(const std::vector<std::shared_ptr<Transport>>& transports,
                       const Body& body) {
  std::vector<std::string> errors(transports.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < transports.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        body(*transports[r]);
      } catch (const std::exception& error) {
        errors[r] = "rank " + std::to_string(r) + ": " + error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) {
    if (!error.empty()) return error;
  }
  return "";
}
template <class Body>
std::string on_threads(std::uint32_t world_size, const Body& body) {
  return on_threads(make_thread_transports(world_size), body);
}

class TransportThreads : public testing::TestWithParam<TransportCase> {};

TEST_P(TransportThreads, AsEveryTransport) {
  for (const std::uint32_t world_size : {1u, 2u, 3u, 4u}) {
    for (int round = 0; round < 5; ++round)
      EXPECT_EQ(on_threads(world_size, GetParam().run), "") << world_size << " ranks";
  }
}
INSTANTIATE_TEST_SUITE_P(Conformance, TransportThreads, testing::ValuesIn(kTransportCases),
                         [](const auto& info) { return info.param.name; });

class TransportLate : public testing::TestWithParam<TransportCase> {};

TEST_P(TransportLate, AsEveryTransport) {
  for (const std::uint32_t world_size : {1u, 2u, 3u, 4u}) {
    const auto transports = make_late_transports(world_size, late_seed());
    EXPECT_EQ(on_threads(transports, GetParam().run), "") << world_size << " ranks";
  }
}
INSTANTIATE_TEST_SUITE_P(Conformance, TransportLate, testing::ValuesIn(kTransportCases),
                         [](const auto& info) { return info.param.name; });

// One call of each lane, begun in the same order each time: the lanes in the order of their ends.
std::string order_of_ends(Transport& transport) {
  struct Ends {
    std::mutex mutex;
    std::condition_variable changed;
    std::string order;
  } ends;
  struct OfLane {
    Ends* ends;
    char lane;
  };
  std::array<OfLane, kLanes> lanes = {{{&ends, '0'}, {&ends, '1'}, {&ends, '2'}}};
  const std::vector<Transport::Piece> none(transport.world_size());
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const auto note = [](void* context, const char*) noexcept {
      const auto& one = *static_cast<OfLane*>(context);
      const std::lock_guard lock(one.ends->mutex);
      one.ends->order += one.lane;
      one.ends->changed.notify_all();
    };
    transport.all_to_all(static_cast<Lane>(lane), {}, none, none, {note, &lanes[lane]});
  }
  std::unique_lock lock(ends.mutex);
  ends.changed.wait(lock, [&] { return ends.order.size() == kLanes; });
  return ends.order;
}

TEST(TransportLate, EndsTheLanesInAnyOrder) {
  std::set<std::string> orders;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const auto transports = make_late_transports(2, seed);
    EXPECT_EQ(on_threads(transports,
                         [&](Transport& transport) {
                           const std::string order = order_of_ends(transport);
                           if (transport.rank() == 0) orders.insert(order);
                         }),
              "");
  }
  EXPECT_GT(orders.size(), 3u) << "of the six that there are";
}

TEST(TransportThreads, KnowsItsRanks) {
  const auto transports = make_thread_transports(3);
  ASSERT_EQ(transports.size(), 3u);
  for (std::uint32_t r = 0; r < 3; ++r) {
    EXPECT_EQ(transports[r]->rank(), r);
    EXPECT_EQ(transports[r]->world_size(), 3u);
    EXPECT_EQ(transports[r]->name(), "threads");
  }
}

TEST(TransportThreads, NamesPiecesOfDifferentSizes) {
  const std::string error = on_threads(2, [](Transport& transport) {
    PieceExchange pieces(transport, 1, [&](std::uint32_t, std::uint32_t) {
      return transport.rank() == 0 ? 8u : 16u;
    });
    pieces.start(transport, Lane::kReduce);
    const std::string text = pieces.end().error();
    const std::string expected = transport.rank() == 0
                                     ? "rank 1 gives 16 bytes where rank 0 takes 8"
                                     : "rank 0 gives 8 bytes where rank 1 takes 16";
    require(text == expected, text);
  });
  EXPECT_EQ(error, "");
}

// Rank 0 comes second, and ends rank 1's call as well: it is still in rank 1's done() when rank 1
// aborts.
TEST(TransportThreads, AbortsWhenTheEndsOfItsCallsHaveRun) {
  struct SlowEnd {
    std::promise<void> begun;
    std::atomic<bool> over = false;
  } slow;
  const Transport::Done done{[](void* context, const char*) noexcept {
                               auto& end = *static_cast<SlowEnd*>(context);
                               end.begun.set_value();
                               std::this_thread::sleep_for(std::chrono::milliseconds(50));
                               end.over = true;
                             },
                             &slow};
  const auto transports = make_thread_transports(2);
  const std::vector<Transport::Piece> none(2);
  transports[1]->all_to_all(Lane::kTalk, {}, none, none, done);
  TransportCallEnd of_rank_0;
  std::thread rank_0(
      [&] { transports[0]->all_to_all(Lane::kTalk, {}, none, none, of_rank_0.done()); });
  slow.begun.get_future().wait();
  transports[1]->abort();
  EXPECT_TRUE(slow.over);
  rank_0.join();
}

// An abort while others copy out of this rank's memory waits for them.
TEST(TransportThreads, FreesNoMemoryThatIsRead) {
  for (int round = 0; round < 200; ++round) {
    const std::string error = on_threads(3, [](Transport& transport) {
      {
        PieceExchange pieces(transport, 1, [](std::uint32_t, std::uint32_t) { return 20'000u; });
        pieces.start(transport, Lane::kGather);
        if (transport.rank() == 2) transport.abort();
        if (transport.rank() == 2)
          pieces.end().error();
        else if (!pieces.end().within(std::chrono::milliseconds(1)))
          transport.abort();
        pieces.end().error();
      }
    });
    EXPECT_EQ(error, "");
  }
}
}  // namespace
}  // namespace headrace::collective
