// SPDX-License-Identifier: Apache-2.0
// peer_watch_test: what a rank is told of the others while it waits: who is late, who has died
// without a word, who called something else on a network that broke.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include "collective/posts.hpp"
#include "collective/ranks.hpp"
#include "headrace/transport.hpp"

namespace headrace::collective::peer_watch_test {
namespace {
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Its calls end with an error when the network breaks.
class Breakable final : public Transport {
 public:
  explicit Breakable(std::shared_ptr<Transport> to) : to_(std::move(to)) {}
  std::string_view name() const noexcept override { return "a network"; }
  std::uint32_t rank() const noexcept override { return to_->rank(); }
  std::uint32_t world_size() const noexcept override { return to_->world_size(); }
  void all_to_all(Lane lane, Stream stream, std::span<const Piece> give,
                  std::span<const Piece> take, Done done) override {
    to_->all_to_all(lane, stream, give, take, once(done));
  }
  void post(std::span<const std::byte> bytes) noexcept override { to_->post(bytes); }
  void read_posts(std::span<Post> of_all) noexcept override { to_->read_posts(of_all); }
  void abort() noexcept override { to_->abort(); }
  std::string posts_held_up_by() const override { return holds_up_; }
  void hold_up_posts(const std::string& by) { holds_up_ = by; }  // before its first call
  // As a socket does whose other end is gone.
  void break_off() {
    broken_ = true;
    to_->abort();
  }

 private:
  struct Call {
    Breakable* owner;
    Done done;
  };
  Done once(Done done) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::make_unique<Call>(Call{this, done}));
    return {[](void* context, const char* error) noexcept {
              const auto* const call = static_cast<Call*>(context);
              if (error != nullptr && call->owner->broken_) error = "connection closed by 10.0.0.7";
              call->done.function(call->done.context, error);
            },
            calls_.back().get()};
  }
  std::shared_ptr<Transport> to_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Call>> calls_;
  std::atomic<bool> broken_ = false;
  std::string holds_up_;
};

class Lines {
 public:
  std::function<void(const std::string&)> sink() {
    return [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(line);
    };
  }
  std::vector<std::string> taken() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

struct World {
  std::vector<std::shared_ptr<Breakable>> networks;
  std::vector<std::shared_ptr<Collective>> ranks;
  std::vector<std::unique_ptr<Lines>> lines;
};
World world_of(std::uint32_t size, milliseconds deadline = std::chrono::minutes(1)) {
  World made;
  for (const auto& transport : make_thread_transports(size)) {
    made.networks.push_back(std::make_shared<Breakable>(transport));
    made.lines.push_back(std::make_unique<Lines>());
    made.ranks.push_back(make_collective({.transport = made.networks.back(),
                                          .deadline = deadline,
                                          .warn = made.lines.back()->sink()}));
  }
  return made;
}

TEST(PeerWatch, NamesALateRankOnceAtAQuarterOfTheDeadline) {
  World world = world_of(3, milliseconds(8000));
  std::thread first([&] { meet(*world.ranks[0], {7, "step"}); });
  std::thread second([&] { meet(*world.ranks[1], {7, "step"}); });
  while (world.lines[0]->taken().empty() || world.lines[1]->taken().empty())
    std::this_thread::sleep_for(milliseconds(10));
  std::this_thread::sleep_for(milliseconds(300));  // it is said once
  meet(*world.ranks[2], {7, "step"});
  first.join();
  second.join();
  EXPECT_TRUE(world.lines[2]->taken().empty());
  for (std::uint32_t r = 0; r < 2; ++r) {
    const auto lines = world.lines[r]->taken();
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_TRUE(has(lines[0], "rank " + std::to_string(r) + " has waited ")) << lines[0];
    EXPECT_TRUE(has(lines[0], "in exchange 'step' (sequence 7, 0 bytes) for rank 2;")) << lines[0];
    EXPECT_TRUE(has(lines[0], "it gives up after 8000 ms")) << lines[0];
    EXPECT_FALSE(has(lines[0], "no sign of life")) << lines[0];
  }
}

TEST(PeerWatch, CostsNoPostWhereNobodyWaits) {
  World world = world_of(2);
  std::vector<Rank> ranks = {{nullptr, world.ranks[0]}, {nullptr, world.ranks[1]}};
  const Clock::time_point began = Clock::now();
  on_every_rank(ranks, [](std::uint32_t, Rank& rank) {
    for (std::uint64_t call = 0; call < 2000; ++call) meet(*rank.collective, {call, "often"});
  });
  const auto half_seconds = (Clock::now() - began) / milliseconds(500);
  std::vector<Transport::Post> posts(2);
  world.networks[0]->read_posts(posts);
  for (const Transport::Post& post : posts)
    EXPECT_LE(post.number, static_cast<std::uint64_t>(half_seconds) * 16 + 20);
}

// Rank 2 posts no more, and the connections to it close.
TEST(PeerWatch, NamesARankThatDiesWithoutAWordByItsSilence) {
  auto transports = make_thread_transports(3);
  std::vector<std::shared_ptr<Breakable>> networks;
  std::vector<Rank> ranks;
  for (std::uint32_t r = 0; r < 2; ++r) {
    networks.push_back(std::make_shared<Breakable>(transports[r]));
    ranks.push_back(
        {nullptr, make_collective({.transport = networks[r], .warn = [](const std::string&) {}})});
  }
  std::vector<std::string> texts(2);
  const Clock::time_point began = Clock::now();
  std::thread end([&] {
    std::this_thread::sleep_for(milliseconds(200));
    for (const auto& network : networks) network->break_off();
  });
  on_every_rank(ranks, [&](std::uint32_t r, Rank& rank) {
    texts[r] = peer_lost_text([&] { meet(*rank.collective, {3, "step"}); });
  });
  end.join();
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(20));
  for (const std::string& text : texts) {
    EXPECT_EQ(text, texts[0]);
    EXPECT_TRUE(has(text, "rank 2 ended without a word (a network: connection closed by 10.0.0.7)"))
        << text;
    EXPECT_TRUE(has(text, "exchange 'step' (sequence 3, 0 bytes) was not carried out")) << text;
  }
}

// Rank 0 passes on all posts: without it, the others hear nothing of each other either.
TEST(PeerWatch, NamesTheRankWithoutWhichNoPostsArrive) {
  for (const bool breaks : {true, false}) {
    const auto transports = make_thread_transports(3);
    const auto network = std::make_shared<Breakable>(transports[1]);
    network->hold_up_posts("rank 0");
    const auto rank = make_collective({.transport = network,
                                       .deadline = milliseconds(breaks ? 60000 : 2000),
                                       .warn = [](const std::string&) {}});
    std::thread end([&] {
      if (breaks) network->break_off();
    });
    const std::string text = peer_lost_text([&] { meet(*rank, {3, "step"}); });
    end.join();
    EXPECT_TRUE(has(
        text,
        "rank 0, which passes on the ranks' posts, no longer answers: exchange 'step' "
        "(sequence 3, 0 bytes) was not carried out " +
            std::string(breaks ? "(a network: connection closed by 10.0.0.7)" : "within 2000 ms")))
        << text;
    EXPECT_FALSE(has(text, "rank 2")) << text;
  }
}

// Rank 2 has made its last call, and left; rank 1 dies in that call. Both post no more.
TEST(PeerWatch, NamesNoRankThatHasLeftForTheSilenceOfAnother) {
  const auto transports = make_thread_transports(3);
  Post farewell;
  farewell.number = 1;
  farewell.kind = Post::Kind::kLeft;
  transports[2]->post(std::as_bytes(std::span(&farewell, 1)));
  const auto network = std::make_shared<Breakable>(transports[0]);
  Lines lines;
  const auto rank =
      make_collective({.transport = network, .deadline = milliseconds(8000), .warn = lines.sink()});
  std::atomic<bool> ended{false};
  std::thread end([&] {
    while (lines.taken().empty() && !ended) std::this_thread::sleep_for(milliseconds(10));
    network->break_off();
  });
  const std::string text = peer_lost_text([&] { meet(*rank, {3, "step"}); });
  ended = true;
  end.join();
  EXPECT_TRUE(has(text, "rank 1 ended without a word")) << text;
  EXPECT_FALSE(has(text, "rank 2")) << text;
  ASSERT_EQ(lines.taken().size(), 1u);
  EXPECT_TRUE(has(lines.taken()[0], "(rank 1 shows no sign of life)")) << lines.taken()[0];
}

// A call that breaks because another rank made another one: that is the cause, not the network.
TEST(PeerWatch, NamesBothCallsWhereTheTransportBreaksOverThem) {
  World world = world_of(2);
  std::vector<Rank> ranks = {{nullptr, world.ranks[0]}, {nullptr, world.ranks[1]}};
  std::vector<std::string> texts(2);
  std::vector<std::vector<char>> bytes = {std::vector<char>(8), std::vector<char>(16)};
  on_every_rank(ranks, [&](std::uint32_t r, Rank& rank) {
    texts[r] = peer_lost_text([&] {
      rank.collective->all_gather({1, "gather of h." + std::to_string(r)}, {},
                                  equal_pieces(bytes[r].data(), bytes[r].size(), 2));
    });
  });
  for (const std::string& text : texts) {
    EXPECT_EQ(text, texts[0]);
    EXPECT_TRUE(has(text,
                    "rank 1 called all_gather 'gather of h.1' (sequence 1, 16 bytes) where "
                    "rank 0 called all_gather 'gather of h.0' (sequence 1, 8 bytes)"))
        << text;
  }
}

TEST(PeerWatch, EndsEveryRankThatWaitsForOneThatAborts) {
  World world = world_of(3);
  std::vector<std::string> texts(2);
  std::vector<std::thread> waiting;
  for (std::uint32_t r = 0; r < 2; ++r) {
    waiting.emplace_back([&, r] {
      texts[r] = peer_lost_text([&] { meet(*world.ranks[r], {3, "step"}); });
    });
  }
  std::this_thread::sleep_for(milliseconds(300));
  const Clock::time_point began = Clock::now();
  world.ranks[2]->abort("EIO on /dev/nvme0n1");
  for (std::thread& thread : waiting) thread.join();
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(10));
  for (const std::string& text : texts)
    EXPECT_TRUE(has(text, "rank 2 gave up: EIO on /dev/nvme0n1")) << text;
}

// Throws in a call, as an adapter does whose network is gone: before or after it has kept `done`.
class Throwing final : public Transport {
 public:
  enum class When { kBefore, kAfter };
  Throwing(std::shared_ptr<Transport> to, When when) : to_(std::move(to)), when_(when) {}
  std::string_view name() const noexcept override { return "throwing"; }
  std::uint32_t rank() const noexcept override { return to_->rank(); }
  std::uint32_t world_size() const noexcept override { return to_->world_size(); }
  void all_to_all(Lane lane, Stream stream, std::span<const Piece> give,
                  std::span<const Piece> take, Done done) override {
    if (when_ == When::kAfter) to_->all_to_all(lane, stream, give, take, done);
    throw std::runtime_error("no route to host");
  }
  void post(std::span<const std::byte> bytes) noexcept override { to_->post(bytes); }
  void read_posts(std::span<Post> of_all) noexcept override { to_->read_posts(of_all); }
  void abort() noexcept override { to_->abort(); }

 private:
  const std::shared_ptr<Transport> to_;
  const When when_;
};

TEST(PeerWatch, EndsEveryRankWhereATransportThrowsOnOne) {
  for (const auto when : {Throwing::When::kBefore, Throwing::When::kAfter}) {
    for (const bool gathers : {false, true}) {
      auto transports = make_thread_transports(3);
      transports[1] = std::make_shared<Throwing>(transports[1], when);
      std::vector<Rank> ranks;
      for (const auto& transport : transports)
        ranks.push_back({nullptr, make_collective({.transport = transport})});
      std::vector<std::string> texts(3);
      const Clock::time_point began = Clock::now();
      on_every_rank(ranks, [&](std::uint32_t r, Rank& rank) {
        std::vector<char> bytes(3);
        texts[r] = peer_lost_text([&] {
          if (gathers)
            rank.collective->all_gather({3, "step"}, {},
                                        equal_pieces(bytes.data(), bytes.size(), 3));
          meet(*rank.collective, {4, "next"});
          meet(*rank.collective, {5, "where those meet whose bytes had passed"});
        });
        EXPECT_EQ(peer_lost_text([&] { meet(*rank.collective, {6, "later"}); }), texts[r]);
      });
      EXPECT_LT(Clock::now() - began, std::chrono::seconds(20));
      for (const std::string& text : texts)
        EXPECT_TRUE(has(text, "rank 1 gave up: ") && has(text, "no route to host")) << text;
    }
  }
}

// Its own abort() has no time to pass before the rank ends: the cause stays, and is no farewell.
TEST(PeerWatch, KeepsTheCauseOfARankThatEndsAtOnce) {
  for (int round = 0; round < 50; ++round) {
    World world = world_of(2);
    std::string text;
    std::thread waits([&] { text = peer_lost_text([&] { meet(*world.ranks[0], {3, "step"}); }); });
    world.ranks[1]->abort("EIO");
    world.ranks[1].reset();
    waits.join();
    EXPECT_TRUE(has(text, "rank 1 gave up: EIO")) << text;
  }
}

// Ctrl-C on rank 0, which waits for rank 2. Rank 1 learns of it, and so would rank 2.
TEST(PeerWatch, EndsARankThatIsInterruptedWhileItWaits) {
  const auto transports = make_thread_transports(3);
  std::atomic<bool> interrupted = false;
  const auto interrupted_0 = make_collective(
      {.transport = transports[0], .interrupted = [&] { return interrupted.load(); }});
  const auto other = make_collective({.transport = transports[1]});
  std::string text;
  std::thread waits([&] { text = peer_lost_text([&] { meet(*other, {3, "step"}); }); });
  std::thread ends([&] {
    std::this_thread::sleep_for(milliseconds(200));
    interrupted = true;
  });
  for (int call = 0; call < 2; ++call) {
    try {
      meet(*interrupted_0, {3, "step"});
      ADD_FAILURE() << "not interrupted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInterrupted) << error.what();
    }
  }
  ends.join();
  waits.join();
  EXPECT_TRUE(has(text, "rank 0 gave up: interrupted")) << text;
}

// A place in the world that no rank has.
class Misplaced final : public Transport {
 public:
  Misplaced(std::uint32_t rank, std::uint32_t world_size) : rank_(rank), world_size_(world_size) {}
  std::string_view name() const noexcept override { return "misplaced"; }
  std::uint32_t rank() const noexcept override { return rank_; }
  std::uint32_t world_size() const noexcept override { return world_size_; }
  void all_to_all(Lane, Stream, std::span<const Piece>, std::span<const Piece>,
                  Done done) override {
    done.function(done.context, nullptr);
  }
  void post(std::span<const std::byte>) noexcept override {}
  void read_posts(std::span<Post>) noexcept override {}
  void abort() noexcept override {}

 private:
  const std::uint32_t rank_, world_size_;
};

TEST(PeerWatch, RefusesARankThatIsNotInItsWorld) {
  for (const auto& [rank, world_size] :
       {std::pair{2u, 2u}, std::pair{5u, 3u}, std::pair{0u, 0u}, std::pair{1u, 0u}}) {
    try {
      (void)make_collective({.transport = std::make_shared<Misplaced>(rank, world_size)});
      ADD_FAILURE() << "accepted rank " << rank << " of " << world_size;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
      EXPECT_TRUE(has(error.what(), "rank() " + std::to_string(rank) + " and world_size() " +
                                        std::to_string(world_size)))
          << error.what();
    }
  }
}

TEST(PeerWatch, RefusesOptionsThatCannotBe) {
  const auto transport = make_thread_transports(1)[0];
  const CollectiveOptions without, hurried = {.transport = transport, .deadline = milliseconds(0)};
  for (const CollectiveOptions& options : {without, hurried}) {
    try {
      (void)make_collective(options);
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
      EXPECT_TRUE(has(error.what(), "no collective was made")) << error.what();
    }
  }
}
}  // namespace
}  // namespace headrace::collective::peer_watch_test
