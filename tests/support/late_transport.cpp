// SPDX-License-Identifier: Apache-2.0
#include "support/late_transport.hpp"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace headrace::collective {
namespace {
using Clock = std::chrono::steady_clock;
using Piece = Transport::Piece;
constexpr const char* kAborted = "this rank has aborted its late transport";

class LateTransport;

struct Call {
  enum class State { kWaits, kUnderWay, kPassed };
  LateTransport* owner = nullptr;
  Lane lane = Lane::kGather;
  Stream stream;
  bool gathers = false;
  std::vector<Piece> give, take;  // of the caller; what is gathered lies in `take` alone
  std::vector<std::vector<std::byte>> landing;  // where `take` comes in, until the end
  Transport::Done done;
  State state = State::kWaits;
  Clock::time_point due;  // to begin; then, to end
  std::string error;

  void end(const char* failure) const { done.function(done.context, failure); }
};

struct LatePost {
  std::vector<std::byte> bytes;
  Clock::time_point due;
};

class LateTransport final : public Transport {
 public:
  LateTransport(std::shared_ptr<Transport> inner, const LateOptions& options)
      : inner_(std::move(inner)), options_(options), random_(options.seed) {
    thread_ = std::thread([this] { run(); });
  }
  ~LateTransport() override;
  std::string_view name() const noexcept override { return "late"; }
  std::uint32_t rank() const noexcept override { return inner_->rank(); }
  std::uint32_t world_size() const noexcept override { return inner_->world_size(); }
  bool reaches(const Device& device) const noexcept override { return inner_->reaches(device); }
  void all_to_all(Lane lane, Stream stream, std::span<const Piece> give,
                  std::span<const Piece> take, Done done) override {
    auto call = std::make_unique<Call>();
    call->give.assign(give.begin(), give.end());
    begin(std::move(call), lane, stream, take, done);
  }
  void all_gather(Lane lane, Stream stream, std::span<const Piece> whole, Done done) override {
    auto call = std::make_unique<Call>();
    call->gathers = true;
    begin(std::move(call), lane, stream, whole, done);
  }
  void post(std::span<const std::byte> bytes) noexcept override;
  void read_posts(std::span<Post> of_all) noexcept override { inner_->read_posts(of_all); }
  std::string posts_held_up_by() const override { return inner_->posts_held_up_by(); }
  void abort() noexcept override;

 private:
  // What the thread may do next: begin or end a call, or pass the first post.
  struct Move {
    Call* call = nullptr;
    Clock::time_point due;
  };
  void begin(std::unique_ptr<Call> call, Lane lane, Stream stream, std::span<const Piece> take,
             Done done);
  Clock::duration draw(std::chrono::microseconds most);
  std::vector<Move> moves() const;
  void run();
  void make(const Move& move, std::unique_lock<std::mutex>& lock);
  void pass_first_post(std::unique_lock<std::mutex>& lock);
  void start(Call& call);
  void passed(Call& call, const char* error) noexcept;
  static void finish(Call& call);

  const std::shared_ptr<Transport> inner_;
  const LateOptions options_;
  std::mutex mutex_;  // all that follows; held in no call of inner_ and in no done()
  std::condition_variable changed_;
  std::mt19937_64 random_;
  std::array<std::deque<std::unique_ptr<Call>>, kLanes> calls_;
  std::deque<LatePost> posts_;
  bool turn_ = false;  // somebody is in a call of inner_ or in a done()
  bool aborted_ = false, closing_ = false;
  std::thread thread_;
};

Clock::duration LateTransport::draw(std::chrono::microseconds most) {
  if (random_() % 2 == 0) return Clock::duration(0);
  return std::chrono::microseconds(random_() % static_cast<std::uint64_t>(most.count() + 1));
}

void LateTransport::begin(std::unique_ptr<Call> call, Lane lane, Stream stream,
                          std::span<const Piece> take, Done done) {
  call->owner = this;
  call->lane = lane;
  call->stream = stream;
  call->take.assign(take.begin(), take.end());
  for (std::uint32_t r = 0; r < take.size(); ++r)
    call->landing.emplace_back(r == rank() ? 0 : take[r].size_bytes);
  call->done = done;
  std::unique_lock lock(mutex_);
  if (aborted_) {
    lock.unlock();
    return call->end(kAborted);
  }
  call->due = Clock::now() + draw(options_.call_delay_max);
  calls_[static_cast<std::size_t>(lane)].push_back(std::move(call));
  changed_.notify_all();
}

// Of each lane: the first call that has not begun, and the first of all where it has passed.
std::vector<LateTransport::Move> LateTransport::moves() const {
  std::vector<Move> moves;
  if (!posts_.empty()) moves.push_back({nullptr, posts_.front().due});
  for (const auto& calls : calls_) {
    if (aborted_ || calls.empty()) continue;
    const auto waits =
        std::ranges::find(calls, Call::State::kWaits, [](const auto& call) { return call->state; });
    if (waits != calls.end()) moves.push_back({waits->get(), (*waits)->due});
    if (calls.front()->state == Call::State::kPassed)
      moves.push_back({calls.front().get(), calls.front()->due});
  }
  return moves;
}

void LateTransport::run() {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    std::vector<Move> due = moves();
    std::erase_if(due, [now = Clock::now()](const Move& move) { return move.due > now; });
    if (!due.empty() && !turn_) {
      make(due[random_() % due.size()], lock);
      continue;
    }
    const std::vector<Move> later = moves();
    if (later.empty() || turn_) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, std::ranges::min(later, {}, &Move::due).due);
    }
  }
}

void LateTransport::make(const Move& move, std::unique_lock<std::mutex>& lock) {
  if (move.call == nullptr) return pass_first_post(lock);
  turn_ = true;
  if (move.call->state == Call::State::kWaits) {
    move.call->state = Call::State::kUnderWay;
    lock.unlock();
    start(*move.call);
    lock.lock();
  } else {
    auto& calls = calls_[static_cast<std::size_t>(move.call->lane)];
    const std::unique_ptr<Call> call = std::move(calls.front());
    calls.pop_front();
    lock.unlock();
    finish(*call);
    lock.lock();
  }
  turn_ = false;
  changed_.notify_all();
}

void LateTransport::pass_first_post(std::unique_lock<std::mutex>& lock) {
  turn_ = true;
  const LatePost post = std::move(posts_.front());
  posts_.pop_front();
  lock.unlock();
  inner_->post(post.bytes);
  lock.lock();
  turn_ = false;
  changed_.notify_all();
}

void LateTransport::start(Call& call) {
  std::vector<Piece> take = call.take;
  for (std::uint32_t r = 0; r < take.size(); ++r) {
    if (r != rank()) take[r].data = call.landing[r].data();
  }
  const Done done{[](void* context, const char* error) noexcept {
                    auto& one = *static_cast<Call*>(context);
                    one.owner->passed(one, error);
                  },
                  &call};
  if (call.gathers) {
    inner_->all_gather(call.lane, call.stream, take, done);
  } else {
    inner_->all_to_all(call.lane, call.stream, call.give, take, done);
  }
}

void LateTransport::passed(Call& call, const char* error) noexcept {
  const std::lock_guard lock(mutex_);
  if (error != nullptr) call.error = *error == 0 ? "no reason given" : error;
  call.state = Call::State::kPassed;
  call.due = Clock::now() + draw(options_.call_delay_max);
  changed_.notify_all();
}

void LateTransport::finish(Call& call) {
  if (!call.error.empty()) return call.end(call.error.c_str());
  for (std::size_t r = 0; r < call.landing.size(); ++r)
    std::copy(call.landing[r].begin(), call.landing[r].end(),
              static_cast<std::byte*>(call.take[r].data));
  call.end(nullptr);
}

void LateTransport::post(std::span<const std::byte> bytes) noexcept {
  const std::lock_guard lock(mutex_);
  const Clock::time_point after = posts_.empty() ? Clock::time_point() : posts_.back().due;
  const Clock::time_point due = Clock::now() + draw(options_.post_delay_max);
  posts_.push_back({{bytes.begin(), bytes.end()}, std::max(after, due)});
  changed_.notify_all();
}

// Whoever has the turn is waited for: a second abort() returns when the first one has ended all.
void LateTransport::abort() noexcept {
  std::unique_lock lock(mutex_);
  aborted_ = true;
  changed_.wait(lock, [&] { return !turn_; });
  turn_ = true;
  lock.unlock();
  inner_->abort();
  lock.lock();
  std::vector<std::unique_ptr<Call>> left;
  for (auto& calls : calls_) {
    for (auto& call : calls) {
      changed_.wait(lock, [&] { return call->state != Call::State::kUnderWay; });
      left.push_back(std::move(call));
    }
    calls.clear();
  }
  lock.unlock();
  for (const auto& call : left) call->end(kAborted);
  lock.lock();
  turn_ = false;
  changed_.notify_all();
}

// The last posts pass at once: they are what this rank leaves behind.
LateTransport::~LateTransport() {
  abort();
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  thread_.join();
  for (const LatePost& post : posts_) inner_->post(post.bytes);
}
}  // namespace

std::shared_ptr<Transport> make_late_transport(std::shared_ptr<Transport> inner,
                                               const LateOptions& options) {
  return std::make_shared<LateTransport>(std::move(inner), options);
}

std::vector<std::shared_ptr<Transport>> make_late_transports(std::uint32_t world_size,
                                                             std::uint64_t seed) {
  std::vector<std::shared_ptr<Transport>> transports = make_thread_transports(world_size);
  for (auto& transport : transports)
    transport = make_late_transport(transport, {.seed = seed * 1009 + transport->rank()});
  return transports;
}

std::uint64_t late_seed() {
  static const std::uint64_t seed = [] {
    const char* const text = std::getenv("HEADRACE_LATE_SEED");
    const std::uint64_t value = text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
    std::printf("late transport: HEADRACE_LATE_SEED=%llu\n",
                static_cast<unsigned long long>(value));
    return value;
  }();
  return seed;
}
}  // namespace headrace::collective
