// SPDX-License-Identifier: Apache-2.0
// launch_order_test.cpp: what a rank says of a call that it has come to, and what it makes of the
// answer.
#include "collective/launch_order.hpp"

#include <gtest/gtest.h>

#include <cstring>
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
  void all_to_all(Lane lane, Stream, std::span<const Piece> gives, std::span<const Piece> takes,
                  Done done) override {
    EXPECT_EQ(lane, Lane::kReduce);
    ++calls;
    give.assign(gives.begin(), gives.end());
    take.assign(takes.begin(), takes.end());
    done_ = done;
  }
  void post(std::span<const std::byte>) noexcept override {}
  void read_posts(std::span<Post>) noexcept override {}
  void abort() noexcept override {}
  void end(const char* error = nullptr) { done_.function(done_.context, error); }

  int calls = 0;
  std::vector<Piece> give, take;

 private:
  std::uint32_t rank_;
  Done done_;
};

std::uint8_t byte_of(const Transport::Piece& piece) {
  return piece.size_bytes == 1 ? *static_cast<const std::uint8_t*>(piece.data) : 255;
}
LaunchOrder::Place place_of(const Transport::Piece& piece) {
  LaunchOrder::Place place;
  EXPECT_EQ(piece.size_bytes, sizeof(place));
  std::memcpy(&place, piece.data, sizeof(place));
  return place;
}

TEST(LaunchOrder, GivesAPlaceOnceAllRanksHaveCome) {
  ByHand messages(0);
  int changes = 0;
  std::uint64_t next = 7;
  LaunchOrder order(messages, Lane::kReduce, [&] { ++changes; });
  for (const bool in_one : {true, false}) {
    EXPECT_TRUE(order.idle());
    order.come(true);
    EXPECT_EQ(order.take_place(next), std::nullopt);  // ranks 1 and 2 have not said anything
    ASSERT_EQ(messages.take[1].size_bytes + messages.take[2].size_bytes, 2u);
    *static_cast<std::uint8_t*>(messages.take[1].data) = 1;
    *static_cast<std::uint8_t*>(messages.take[2].data) = in_one;
    const std::uint64_t place = next;
    messages.end();
    EXPECT_EQ(order.take_place(next), std::nullopt);
    for (const std::uint32_t r : {1u, 2u}) {
      EXPECT_EQ(place_of(messages.give[r]).number, place);
      EXPECT_EQ(place_of(messages.give[r]).in_one, in_one);
    }
    EXPECT_EQ(order.take_place(next), std::nullopt);
    messages.end();
    const auto own = order.take_place(next);
    ASSERT_TRUE(own.has_value());
    EXPECT_EQ(own->number, place);
    EXPECT_EQ(own->in_one, in_one);
    EXPECT_EQ(next, place + 1);
  }
  EXPECT_EQ(changes, 4);
  EXPECT_EQ(messages.calls, 4);
}

TEST(LaunchOrder, TakesThePlaceThatRankZeroGives) {
  ByHand messages(2);
  std::uint64_t next = 0;
  LaunchOrder order(messages, Lane::kReduce, [] {});
  for (const bool in_one : {true, false}) {
    order.come(in_one);
    EXPECT_EQ(byte_of(messages.give[0]), in_one);
    EXPECT_EQ(messages.give[1].size_bytes, 0u);
    messages.end();
    EXPECT_EQ(order.take_place(next), std::nullopt);
    const LaunchOrder::Place given = {5, 0};
    ASSERT_EQ(messages.take[0].size_bytes, sizeof(given));
    std::memcpy(messages.take[0].data, &given, sizeof(given));
    messages.end();
    const auto place = order.take_place(next);
    ASSERT_TRUE(place.has_value());
    EXPECT_EQ(place->number, 5u);
    EXPECT_EQ(place->in_one, 0u);
    EXPECT_TRUE(order.idle());
  }
}

TEST(LaunchOrder, SaysWhatItsMessagesFailedOf) {
  ByHand messages(1);
  std::uint64_t next = 0;
  LaunchOrder order(messages, Lane::kReduce, [] {});
  order.come(true);
  messages.end("the cable is out");
  try {
    (void)order.take_place(next);
    ADD_FAILURE() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(std::string(error.what()), "by hand: the cable is out");
  }
}
}  // namespace
}  // namespace headrace::collective
