// SPDX-License-Identifier: Apache-2.0
// launch_order_test.cpp: the messages of ranks that agree on a launch order, and their handling.
#include "collective/launch_order.hpp"

#include <gtest/gtest.h>

#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace headrace::collective {
namespace {
// Rank `rank` of 3, whose calls the test carries out.
class ByHand final : public Transport {
 public:
  explicit ByHand(std::uint32_t rank) : rank_(rank) {}
  std::string_view name() const noexcept override { return "by hand"; }
  std::uint32_t rank() const noexcept override { return rank_; }
  std::uint32_t world_size() const noexcept override { return 3; }
  void all_to_all(Lane, Stream, std::span<const Piece> gives, std::span<const Piece> takes,
                  Done done) override {
    give.assign(gives.begin(), gives.end());
    take.assign(takes.begin(), takes.end());
    done_ = done;
  }
  void post(std::span<const std::byte>) noexcept override {}
  void read_posts(std::span<Post>) noexcept override {}
  void abort() noexcept override {}
  void end(const char* error = nullptr) { done_.function(done_.context, error); }
  std::vector<Piece> give, take;

 private:
  std::uint32_t rank_;
  Done done_;
};

// What lies there, of as many bytes.
template <class Value>
Value& in(const Transport::Piece& piece) {
  if (piece.size_bytes != sizeof(Value)) throw std::runtime_error("a message of another size");
  return *static_cast<Value*>(piece.data);
}

TEST(LaunchOrder, GivesAPlaceOnceAllRanksHaveCome) {
  ByHand messages(0);
  std::uint64_t next = 7;
  LaunchOrder order(messages, Lane::kReduce, [] {});
  // A fact holds if it does on all three ranks.
  for (const std::uint8_t facts : {7, 5, 2, 0}) {
    const std::uint64_t number = next;
    order.come(7);
    in<std::uint8_t>(messages.take[1]) = 7;
    in<std::uint8_t>(messages.take[2]) = facts;
    EXPECT_EQ(order.take_place(next), std::nullopt);  // before they have come
    messages.end();
    EXPECT_EQ(order.take_place(next), std::nullopt);
    const LaunchOrder::Place expected = {number, facts};
    for (const std::uint32_t r : {1u, 2u})
      EXPECT_EQ(in<LaunchOrder::Place>(messages.give[r]), expected);
    messages.end();
    EXPECT_EQ(order.take_place(next), expected);
    EXPECT_EQ(next, number + 1);
  }
}

TEST(LaunchOrder, TakesThePlaceThatRankZeroGives) {
  ByHand messages(2);
  std::uint64_t next = 0;
  LaunchOrder order(messages, Lane::kReduce, [] {});
  for (const std::uint8_t facts : {LaunchOrder::kInOne, LaunchOrder::kRegistered}) {
    order.come(facts);
    EXPECT_EQ(in<std::uint8_t>(messages.give[0]), facts);
    messages.end();
    EXPECT_EQ(order.take_place(next), std::nullopt);
    const LaunchOrder::Place given = {5, 0};
    in<LaunchOrder::Place>(messages.take[0]) = given;
    messages.end();
    EXPECT_EQ(order.take_place(next), given);
    EXPECT_TRUE(order.idle());
  }
}
}  // namespace
}  // namespace headrace::collective
