// SPDX-License-Identifier: Apache-2.0
// transport_threads.cpp: a transport between the threads of one process, which read each other's
// memory.
//
// Every rank counts the calls of a lane. Two ranks exchange their bytes when both have made call n:
// the later one copies, in both directions, on its own thread. A call ends when its rank has
// exchanged with every other:
//
//   rank 2  call 7    waits
//   rank 0  call 7    copies with rank 2
//   rank 1  call 7    copies with ranks 2 and 0; all three calls end here
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "headrace/transport.hpp"

namespace headrace::collective {
namespace {
using Piece = Transport::Piece;

struct Call {
  std::uint64_t index = 0;
  std::vector<Piece> give, take;  // by rank
  Transport::Done done;
  std::uint32_t ranks_left = 0;  // that it has not exchanged its bytes with
  std::uint32_t copying = 0;     // copies, and its end, under way: what an abort waits for
  std::string error;
};

// The state that the threads share.
class World {
 public:
  explicit World(std::uint32_t world_size) : posts_(world_size), ranks_(world_size) {}
  std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(ranks_.size()); }
  void begin(std::uint32_t rank, Lane lane, std::shared_ptr<Call> call);
  void abort(std::uint32_t rank) noexcept;
  void post(std::uint32_t rank, std::span<const std::byte> bytes) noexcept;
  void read_posts(std::span<Transport::Post> of_all) noexcept;

 private:
  struct OfRank {
    std::array<std::deque<std::shared_ptr<Call>>, kLanes> calls;
    std::array<std::uint64_t, kLanes> made = {};
    bool aborted = false;
  };
  std::shared_ptr<Call> find(std::uint32_t rank, Lane lane, std::uint64_t index);
  static bool copied(Call& call, const std::string& error);
  void settle(std::uint32_t rank, Lane lane, const std::shared_ptr<Call>& call, bool over);
  static std::string copy(std::uint32_t from, const Call& giver, std::uint32_t to,
                          const Call& taker);
  static void end(const Call& call) {
    call.done.function(call.done.context, call.error.empty() ? nullptr : call.error.c_str());
  }

  std::mutex posts_mutex_;
  std::vector<Transport::Post> posts_;
  std::mutex mutex_;
  std::condition_variable settled_;
  std::vector<OfRank> ranks_;
};

std::shared_ptr<Call> World::find(std::uint32_t rank, Lane lane, std::uint64_t index) {
  auto& calls = ranks_[rank].calls[static_cast<std::size_t>(lane)];
  const auto at = std::ranges::find(calls, index, [](const auto& call) { return call->index; });
  return at == calls.end() ? nullptr : *at;
}

// One side of a pair has its bytes. True: it was the last, and the caller ends the call.
bool World::copied(Call& call, const std::string& error) {
  if (!error.empty()) call.error = error;
  return --call.ranks_left == 0;
}

// The pair is done with the call, which has ended if it is over.
void World::settle(std::uint32_t rank, Lane lane, const std::shared_ptr<Call>& call, bool over) {
  --call->copying;
  if (over) std::erase(ranks_[rank].calls[static_cast<std::size_t>(lane)], call);
  settled_.notify_all();
}

// Copies the bytes that `from` gives to `to`. Returns why it could not, or "".
std::string World::copy(std::uint32_t from, const Call& giver, std::uint32_t to,
                        const Call& taker) {
  const Piece &give = giver.give[to], &take = taker.take[from];
  if (give.size_bytes != take.size_bytes) {
    return "rank " + std::to_string(from) + " gives " + std::to_string(give.size_bytes) +
           " bytes where rank " + std::to_string(to) + " takes " + std::to_string(take.size_bytes);
  }
  if (give.size_bytes > 0) std::memcpy(take.data, give.data, give.size_bytes);
  return "";
}

void World::begin(std::uint32_t rank, Lane lane, std::shared_ptr<Call> call) {
  OfRank& own = ranks_[rank];
  std::vector<std::pair<std::uint32_t, std::shared_ptr<Call>>> others;
  std::unique_lock lock(mutex_);
  call->index = own.made[static_cast<std::size_t>(lane)]++;
  call->ranks_left = size() - 1;
  if (own.aborted) call->error = "this rank has aborted its transport";
  if (own.aborted || call->ranks_left == 0) {
    lock.unlock();
    return end(*call);
  }
  own.calls[static_cast<std::size_t>(lane)].push_back(call);
  for (std::uint32_t other = 0; other < size(); ++other) {
    if (other == rank) continue;
    if (auto of_other = find(other, lane, call->index)) {
      ++of_other->copying;
      ++call->copying;
      others.emplace_back(other, std::move(of_other));
    }
  }
  for (auto& [other, of_other] : others) {
    lock.unlock();
    const std::string taking = copy(other, *of_other, rank, *call);
    const std::string giving = copy(rank, *call, other, *of_other);
    lock.lock();
    const bool other_over = copied(*of_other, giving);
    const bool own_over = copied(*call, taking);
    lock.unlock();
    if (other_over) end(*of_other);
    if (own_over) end(*call);
    lock.lock();
    settle(other, lane, of_other, other_over);
    settle(rank, lane, call, own_over);
  }
}

void World::abort(std::uint32_t rank) noexcept {
  OfRank& own = ranks_[rank];
  std::unique_lock lock(mutex_);
  own.aborted = true;
  for (auto& calls : own.calls) {
    while (!calls.empty()) {
      const std::shared_ptr<Call> call = calls.front();
      settled_.wait(lock, [&] { return call->copying == 0; });
      if (std::erase(calls, call) == 0) continue;  // it has ended meanwhile
      lock.unlock();
      call->done.function(call->done.context, "this rank has aborted its transport");
      lock.lock();
    }
  }
}

void World::post(std::uint32_t rank, std::span<const std::byte> bytes) noexcept {
  const std::lock_guard lock(posts_mutex_);
  Transport::Post& post = posts_[rank];
  ++post.number;
  post.size_bytes = static_cast<std::uint32_t>(std::min(bytes.size(), post.bytes.size()));
  std::copy_n(bytes.data(), post.size_bytes, post.bytes.data());
}

void World::read_posts(std::span<Transport::Post> of_all) noexcept {
  const std::lock_guard lock(posts_mutex_);
  std::ranges::copy(posts_, of_all.begin());
}

class TransportThreads final : public Transport {
 public:
  TransportThreads(std::uint32_t rank, std::shared_ptr<World> world)
      : rank_(rank), world_(std::move(world)) {}
  ~TransportThreads() override { world_->abort(rank_); }
  std::string_view name() const noexcept override { return "threads"; }
  std::uint32_t rank() const noexcept override { return rank_; }
  std::uint32_t world_size() const noexcept override { return world_->size(); }
  void all_to_all(Lane lane, Stream, std::span<const Piece> give, std::span<const Piece> take,
                  Done done) override {
    auto call = std::make_shared<Call>();
    call->give.assign(give.begin(), give.end());
    call->take.assign(take.begin(), take.end());
    call->done = done;
    world_->begin(rank_, lane, std::move(call));
  }
  void post(std::span<const std::byte> bytes) noexcept override { world_->post(rank_, bytes); }
  void read_posts(std::span<Post> of_all) noexcept override { world_->read_posts(of_all); }
  void abort() noexcept override { world_->abort(rank_); }

 private:
  std::uint32_t rank_;
  std::shared_ptr<World> world_;
};
}  // namespace
}  // namespace headrace::collective

namespace headrace {
std::vector<std::shared_ptr<Transport>> make_thread_transports(std::uint32_t world_size) {
  const auto world = std::make_shared<collective::World>(world_size);
  std::vector<std::shared_ptr<Transport>> transports;
  for (std::uint32_t rank = 0; rank < world_size; ++rank)
    transports.push_back(std::make_shared<collective::TransportThreads>(rank, world));
  return transports;
}
}  // namespace headrace
