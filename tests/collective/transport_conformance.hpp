// SPDX-License-Identifier: Apache-2.0
// transport_conformance.hpp: what every Transport must do, at any world size. A case is one rank's
// part, so that ranks may be threads of one process or processes; it throws what was not as it
// should be, and ends in a barrier of its own making.
#pragma once
#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "headrace/transport.hpp"

namespace headrace::collective {
inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

// The end of one call, for a thread that waits for it.
class TransportCallEnd {
 public:
  Transport::Done done(bool caller_waits = false) {
    return {[](void* context, const char* error) noexcept {
              static_cast<TransportCallEnd*>(context)->ended(error);
            },
            this, caller_waits};
  }
  // Whether it has ended; waits at most so long.
  bool within(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    return ended_.wait_for(lock, time, [&] { return times_ > 0; });
  }
  // "" or the error. Throws where it does not end, or ended twice.
  std::string error(std::chrono::milliseconds time = std::chrono::minutes(1)) {
    require(within(time), "a call did not end");
    const std::lock_guard lock(mutex_);
    require(times_ == 1, "a call ended " + std::to_string(times_) + " times");
    return error_;
  }

 private:
  void ended(const char* error) noexcept {
    const std::lock_guard lock(mutex_);
    ++times_;
    if (error != nullptr) error_ = *error == 0 ? "an error without a text" : error;
    ended_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable ended_;
  int times_ = 0;
  std::string error_;
};

// What rank `from` gives rank `to` in call `call`: every rank can work it out.
inline std::vector<std::byte> bytes_between(std::uint32_t from, std::uint32_t to, std::size_t call,
                                            std::size_t size) {
  std::mt19937_64 random(call * 1'000'003 + from * 1009 + to);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// One all_to_all whose pieces have size(from, to) bytes.
class PieceExchange {
 public:
  template <class Size>
  PieceExchange(const Transport& transport, std::size_t call, const Size& size)
      : rank_(transport.rank()), call_(call) {
    for (std::uint32_t r = 0; r < transport.world_size(); ++r) {
      const bool own = r == rank_;
      gives_.push_back(own ? std::vector<std::byte>()
                           : bytes_between(rank_, r, call, size(rank_, r)));
      takes_.emplace_back(own ? 0 : size(r, rank_), std::byte{0xee});
    }
  }
  void start(Transport& transport, Lane lane, bool caller_waits = false) {
    std::vector<Transport::Piece> give, take;
    for (auto& bytes : gives_) give.push_back(piece_of(bytes));
    for (auto& bytes : takes_) take.push_back(piece_of(bytes));
    transport.all_to_all(lane, {}, give, take, end_.done(caller_waits));
  }
  TransportCallEnd& end() { return end_; }
  void check() {
    const std::string error = end_.error();
    require(error.empty(), "call " + std::to_string(call_) + " failed: " + error);
    for (std::uint32_t r = 0; r < takes_.size(); ++r) {
      require(
          r == rank_ || takes_[r] == bytes_between(r, rank_, call_, takes_[r].size()),
          "call " + std::to_string(call_) + ": other bytes came from rank " + std::to_string(r));
    }
  }

 private:
  static Transport::Piece piece_of(std::vector<std::byte>& bytes) {
    return {bytes.empty() ? nullptr : bytes.data(), bytes.size()};
  }
  std::uint32_t rank_;
  std::size_t call_;
  std::vector<std::vector<std::byte>> gives_, takes_;
  TransportCallEnd end_;
};

inline void meet(Transport& transport) {
  PieceExchange all(transport, 0, [](std::uint32_t, std::uint32_t) { return 1u; });
  all.start(transport, Lane::kTalk);
  all.check();
}

inline void exchanges_pieces_of_any_size(Transport& transport) {
  std::size_t call = 0;
  for (const std::size_t unit : {0u, 1u, 3u, 4096u, 70'001u, 1'300'000u}) {
    // Unequal, and none at all between some.
    PieceExchange pieces(transport, ++call, [&](std::uint32_t from, std::uint32_t to) {
      return unit * ((from + 2 * to) % 4);
    });
    pieces.start(transport, Lane::kReduce);
    pieces.check();
  }
}

inline void gathers_in_place(Transport& transport) {
  const std::uint32_t world = transport.world_size();
  struct Sizes {
    std::size_t unit;
    bool equal;  // else some are larger, and some empty
  };
  for (const auto [unit, equal] : {Sizes{1, true}, Sizes{1000, true}, Sizes{3'000'001, true},
                                   Sizes{7, false}, Sizes{500'000, false}}) {
    std::vector<std::vector<std::byte>> whole(world);
    const auto size_of = [unit = unit, equal = equal](std::uint32_t r) {
      return equal ? unit : unit * (r % 3);
    };
    std::vector<Transport::Piece> pieces;
    for (std::uint32_t r = 0; r < world; ++r) {
      whole[r] = r == transport.rank() ? bytes_between(r, 0, unit, size_of(r))
                                       : std::vector<std::byte>(size_of(r), std::byte{0xee});
      pieces.push_back({whole[r].data(), size_of(r)});
    }
    TransportCallEnd end;
    transport.all_gather(Lane::kGather, {}, pieces, end.done());
    const std::string error = end.error();
    require(error.empty(), "all_gather failed: " + error);
    for (std::uint32_t r = 0; r < world; ++r)
      require(whole[r] == bytes_between(r, 0, unit, size_of(r)),
              "all_gather: other bytes from rank " + std::to_string(r));
  }
}

// Many calls of every lane are under way together, begun in another order on every rank.
inline void keeps_lanes_apart(Transport& transport) {
  constexpr std::size_t kCalls = 40;
  std::array<std::vector<PieceExchange*>, kLanes> by_lane;
  std::vector<std::unique_ptr<PieceExchange>> calls;
  for (std::size_t i = 0; i < kLanes * kCalls; ++i) {
    const auto size = [&](std::uint32_t from, std::uint32_t to) {
      return (i * 7919 + from * 31 + to) % 5000;
    };
    calls.push_back(std::make_unique<PieceExchange>(transport, i, size));
    by_lane[i % kLanes].push_back(calls.back().get());
  }
  std::mt19937_64 random(transport.rank());
  std::array<std::size_t, kLanes> begun = {};
  for (std::size_t left = calls.size(); left > 0;) {
    const std::size_t lane = random() % kLanes;
    if (begun[lane] == kCalls) continue;
    by_lane[lane][begun[lane]++]->start(transport, static_cast<Lane>(lane));
    --left;
  }
  for (auto& call : calls) call->check();
}

// A lane whose call waits for a rank holds up no other lane.
inline void lets_a_lane_wait_alone(Transport& transport) {
  const auto one = [](std::uint32_t, std::uint32_t) { return 1000u; };
  PieceExchange slow(transport, 1, one);
  if (transport.rank() != 0) slow.start(transport, Lane::kGather);
  meet(transport);
  PieceExchange other(transport, 2, one);
  other.start(transport, Lane::kReduce);
  other.check();
  require(transport.rank() == 0 || transport.world_size() == 1 ||
              !slow.end().within(std::chrono::milliseconds(20)),
          "a call ended before rank 0 made it");
  meet(transport);
  if (transport.rank() == 0) slow.start(transport, Lane::kGather);
  slow.check();
}

// Threads wait for their calls in two lanes, one call after the other. A call that nobody waits for
// ends all the same, also after them.
inline void serves_callers_that_wait(Transport& transport) {
  PieceExchange slow(transport, 1, [](std::uint32_t, std::uint32_t) { return 70'000u; });
  if (transport.rank() != 0) slow.start(transport, Lane::kTalk);
  const auto calls = [&](Lane lane) {
    for (std::size_t call = 0; call < 60; ++call) {
      PieceExchange one(transport, call, [&](std::uint32_t from, std::uint32_t to) {
        return call % 20 == 7 ? 600'000u : (call * 7919 + from * 31 + to) % 9000;
      });
      one.start(transport, lane, true);
      one.check();
    }
  };
  std::string error;
  std::thread beside([&] {
    try {
      calls(Lane::kGather);
    } catch (const std::exception& failed) {
      error = failed.what();
    }
  });
  calls(Lane::kReduce);
  beside.join();
  require(error.empty(), error);
  if (transport.rank() == 0) slow.start(transport, Lane::kTalk);
  slow.check();
  meet(transport);
}

// Posts come although every lane waits.
inline void reads_what_others_post(Transport& transport) {
  using Clock = std::chrono::steady_clock;
  const auto one = [](std::uint32_t, std::uint32_t) { return 10u; };
  PieceExchange waits(transport, 3, one);
  if (transport.rank() != 0) waits.start(transport, Lane::kTalk);
  std::vector<Transport::Post> posts(transport.world_size());
  const auto text_of = [](const Transport::Post& post) {
    return std::string(reinterpret_cast<const char*>(post.bytes.data()), post.size_bytes);
  };
  const auto wait_for = [&](std::uint64_t number, const std::string& text) {
    const auto all_say = [&] {
      transport.read_posts(posts);
      for (const Transport::Post& post : posts) {
        if (post.number < number) return false;
        require(post.number > number || text == text_of(post), "a post is not what was posted");
      }
      return true;
    };
    const Clock::time_point end = Clock::now() + std::chrono::seconds(20);
    while (!all_say()) {
      require(Clock::now() < end, "not every rank's post '" + text + "' came");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  };
  const auto say = [&](const char* text) {
    transport.post(std::as_bytes(std::span(text, std::strlen(text))));
  };
  say("hello");
  wait_for(1, "hello");
  if (transport.rank() == 0) waits.start(transport, Lane::kTalk);
  waits.check();
  meet(transport);
  say("");
  say("goodbye");
  wait_for(3, "goodbye");
  meet(transport);
}

// What waits ends in an error, once, and so does what comes later; memory may be freed then. In one
// lane, the caller waits too. The ranks' last case, for none of them can go on.
inline void ends_what_waits_when_it_aborts(Transport& transport) {
  meet(transport);
  std::optional<PieceExchange> waits[kLanes];
  const auto size = [](std::uint32_t, std::uint32_t) { return 100'000u; };
  for (std::size_t lane = 0; lane < kLanes && transport.rank() != 0; ++lane)
    waits[lane].emplace(transport, lane, size);
  std::thread caller([&] {
    if (waits[0]) waits[0]->start(transport, static_cast<Lane>(0), true);
  });
  for (std::size_t lane = 1; lane < kLanes && waits[lane]; ++lane)
    waits[lane]->start(transport, static_cast<Lane>(lane));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  transport.abort();
  const auto has_ended = [](auto& one) {
    return !one || one->end().within(std::chrono::milliseconds(0));
  };
  const bool ended = std::ranges::all_of(std::span(waits).subspan(1), has_ended);
  caller.join();
  require(ended && has_ended(waits[0]), "abort() left a call pending");
  for (auto& one : waits) {
    if (!one) continue;
    require(!one->end().error().empty(), "an aborted call ended as if its bytes had passed");
    one.reset();
  }
  if (transport.world_size() == 1) return;
  PieceExchange later(transport, 9, size);
  later.start(transport, Lane::kTalk);
  require(!later.end().error().empty(), "a call after abort() did not fail");
}

// Runs `body(transport)` on a thread per rank; the first error, or "".
template <class Body>
std::string first_error(const std::vector<std::shared_ptr<Transport>>& transports,
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

struct TransportCase {
  const char* name;
  void (*run)(Transport&);
};
inline constexpr TransportCase kTransportCases[] = {
    {"ExchangesPiecesOfAnySize", exchanges_pieces_of_any_size},
    {"GathersInPlace", gathers_in_place},
    {"KeepsLanesApart", keeps_lanes_apart},
    {"LetsALaneWaitAlone", lets_a_lane_wait_alone},
    {"ServesCallersThatWait", serves_callers_that_wait},
    {"ReadsWhatOthersPost", reads_what_others_post},
    {"EndsWhatWaitsWhenItAborts", ends_what_waits_when_it_aborts},
};
}  // namespace headrace::collective
