// SPDX-License-Identifier: Apache-2.0
// What happens to a request depends on the seed and on how many were submitted before it, never on
// timing, so a schedule that found a bug finds it again.
#include "support/io_queue_fault.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <vector>

#include "base/check.hpp"

namespace headrace::swap {
namespace {
using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

// SplitMix64 (Steele, Lea, Flood 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() noexcept {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  bool chance(double probability) noexcept {
    return static_cast<double>(next() >> 11) * 0x1p-53 < probability;
  }
  std::uint64_t below(std::uint64_t limit) noexcept { return limit == 0 ? 0 : next() % limit; }

 private:
  std::uint64_t state_;
};

// What was decided about one request when it was submitted.
struct Fate {
  int error = 0;
  bool lost = false;
  bool shortened = false;
  bool flip = false;
  std::uint32_t size_bytes = 0;
  std::uint64_t flip_at = 0;
  std::uint32_t held_reaps = 0;
  Clock::time_point due{};  // not before
};

// Stands in for the caller's request inside the wrapped queue.
struct Shadow : IoRequest {
  IoRequest* caller = nullptr;
  Fate fate;
  bool in_inner = false;  // else it completes without having been there
};

class FaultQueue final : public IoQueue {
 public:
  FaultQueue(std::unique_ptr<IoQueue> inner, const FaultPlan& plan, FaultCounts* counts)
      : inner_(std::move(inner)),
        plan_(plan),
        counts_(counts != nullptr ? counts : &own_counts_),
        shadows_(inner_->depth()) {
    for (Shadow& shadow : shadows_) free_.push_back(&shadow);
    held_.reserve(shadows_.size());
  }

  const char* name() const noexcept override { return inner_->name(); }
  std::uint32_t depth() const noexcept override { return inner_->depth(); }
  Registered registered() const override {
    if (plan_.registered_errno == 0) return inner_->registered();
    return {.buffers = uses_registered_, .files = false};
  }
  std::uint32_t in_flight() const noexcept override {
    return static_cast<std::uint32_t>(shadows_.size() - free_.size());
  }

  bool submit(IoRequest& request) noexcept override {
    if (free_.empty()) return false;
    Shadow& shadow = *free_.back();
    free_.pop_back();
    static_cast<IoRequest&>(shadow) = request;
    shadow.next = nullptr;
    shadow.caller = &request;
    shadow.fate = decide(request);
    shadow.size_bytes = shadow.fate.size_bytes;
    throttle(shadow.fate);
    count(shadow.fate);
    counts_->syncs += shadow.kind == IoKind::kSync ? 1 : 0;
    if (shadow.fate.lost) return true;
    const bool asks = shadow.size_bytes > 0 || shadow.kind == IoKind::kSync;
    shadow.in_inner = shadow.fate.error == 0 && asks;
    if (shadow.in_inner) {
      const bool taken = inner_->submit(shadow);
      HEADRACE_CHECK(taken, "the wrapped queue holds fewer requests than its depth");
    } else {
      shadow.result = -shadow.fate.error;
      held_.push_back(&shadow);
    }
    return true;
  }

  int flush() noexcept override {
    Random random(plan_.seed ^ (0x5bd1e995u + ++flushes_ * 0x9e3779b97f4a7c15u));
    if (random.chance(plan_.flush_eagain)) return EAGAIN;
    return inner_->flush();
  }

  std::size_t reap(std::span<IoRequest*> done, nanoseconds timeout) noexcept override {
    if (done.empty()) return 0;
    const Clock::time_point until = Clock::now() + std::min<nanoseconds>(timeout, kLongestWait);
    while (true) {
      std::size_t count = take_held(done);
      if (count == done.size()) return count;
      const nanoseconds left = until - Clock::now();
      const nanoseconds wait = count > 0 ? nanoseconds::zero() : std::min(left, until_next_held());
      count += take_inner(done.subspan(count), std::max(wait, nanoseconds::zero()));
      if (count > 0 || Clock::now() >= until) return count;
      if (woken_.exchange(false)) return 0;
    }
  }

  void wake() noexcept override {
    woken_.store(true);
    inner_->wake();
  }

 private:
  Fate decide(const IoRequest& request) noexcept {
    ++requests_;
    const bool write = request.kind == IoKind::kWrite;
    writes_ += write ? 1 : 0;
    const bool sync = request.kind == IoKind::kSync;
    syncs_ += sync ? 1 : 0;
    Fate fate;
    fate.size_bytes = request.size_bytes;
    const std::uint64_t number = plan_.only_writes ? (write ? writes_ : 0) : requests_;
    if (plan_.fail_request != 0 && number == plan_.fail_request) {
      fate.error = plan_.fail_errno;
      return fate;
    }
    if (sync && plan_.fail_sync != 0 && syncs_ == plan_.fail_sync) {
      fate.error = plan_.sync_errno;
      return fate;
    }
    if (requests_ <= plan_.skip_requests) return fate;
    if (plan_.registered_errno != 0 && uses_registered_ && !sync) {
      fate.error = plan_.registered_errno;
      return fate;
    }
    // Every draw is made whatever the ones before it said, so that one chance does not shift the
    // others.
    Random random(plan_.seed * 0xd1342543de82ef95u + requests_);
    const bool lost = random.chance(plan_.lost);
    const bool eio = random.chance(write  ? plan_.eio_write
                                   : sync ? plan_.eio_sync
                                          : plan_.eio_read);
    const bool enospc = random.chance(plan_.enospc) && write;
    const bool eagain = random.chance(plan_.eagain);
    const bool eintr = random.chance(plan_.eintr);
    const bool shortened = random.chance(write ? plan_.short_write : plan_.short_read) && !sync;
    const bool flip = random.chance(plan_.flip_bit) && request.kind == IoKind::kRead;
    const bool late = random.chance(plan_.late);
    const std::uint64_t left_out = 1 + random.below((request.size_bytes + 511) / 512);
    fate.flip_at = random.next();
    const auto reaps = static_cast<std::uint32_t>(2 + random.below(4));
    fate.lost = lost;
    const int full = plan_.full_errno != 0 ? plan_.full_errno : ENOSPC;
    fate.error = eio ? EIO : enospc ? full : eagain ? EAGAIN : eintr ? EINTR : 0;
    fate.held_reaps = late ? reaps : 0;
    if (fate.lost || fate.error != 0) return fate;
    fate.shortened = shortened;
    if (shortened) {
      fate.size_bytes -=
          static_cast<std::uint32_t>(std::min<std::uint64_t>(left_out * 512, fate.size_bytes));
    }
    fate.flip = flip;
    return fate;
  }

  // As a drive that moves one request after the other.
  void throttle(Fate& fate) noexcept {
    if (plan_.bytes_per_second == 0 || requests_ <= plan_.skip_requests) return;
    const double seconds =
        static_cast<double>(fate.size_bytes) / static_cast<double>(plan_.bytes_per_second);
    idle_at_ = std::max(idle_at_, Clock::now()) +
               std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    fate.due = idle_at_;
  }

  // A request that is late is counted down by reaps, so with one the wait is cut into small pieces.
  // A throttled one comes at its time.
  nanoseconds until_next_held() const noexcept {
    nanoseconds wait = kLongestWait;
    const Clock::time_point now = Clock::now();
    for (const Shadow* const shadow : held_) {
      const bool late = shadow->fate.held_reaps > 0;
      wait = std::min<nanoseconds>(
          wait, late ? std::chrono::microseconds(300) : nanoseconds(shadow->fate.due - now));
    }
    return wait;
  }

  bool throttled(const Fate& fate) const noexcept {
    return plan_.bytes_per_second != 0 && fate.due > Clock::now();
  }

  void count(const Fate& fate) noexcept {
    ++counts_->requests;
    counts_->lost += fate.lost ? 1 : 0;
    counts_->errors += fate.error != 0 ? 1 : 0;
    counts_->shorts += fate.shortened ? 1 : 0;
    counts_->late += fate.held_reaps > 0 && !fate.lost ? 1 : 0;
  }

  // What is held and due, in no particular order of submission.
  std::size_t take_held(std::span<IoRequest*> done) noexcept {
    std::size_t taken = 0;
    for (std::size_t i = 0; i < held_.size() && taken < done.size();) {
      Shadow& shadow = *held_[i];
      if (shadow.fate.held_reaps > 0) {
        --shadow.fate.held_reaps;
        ++i;
        continue;
      }
      if (throttled(shadow.fate)) {
        ++i;
        continue;
      }
      held_[i] = held_.back();
      held_.pop_back();
      done[taken++] = finish(shadow);
    }
    return taken;
  }

  std::size_t take_inner(std::span<IoRequest*> done, nanoseconds timeout) noexcept {
    const std::size_t reaped = inner_->reap(done, timeout);
    std::size_t passed = 0;
    for (std::size_t i = 0; i < reaped; ++i) {
      auto& shadow = static_cast<Shadow&>(*done[i]);
      if (shadow.fate.held_reaps > 0 || throttled(shadow.fate)) {
        held_.push_back(&shadow);
      } else {
        done[passed++] = finish(shadow);
      }
    }
    return passed;
  }

  IoRequest* finish(Shadow& shadow) noexcept {
    if (shadow.fate.flip && shadow.result > 0) {
      const std::uint64_t bit =
          shadow.fate.flip_at % (static_cast<std::uint64_t>(shadow.result) * 8);
      shadow.data[bit / 8] ^= std::byte{1} << (bit % 8);
      ++counts_->flips;
    }
    uses_registered_ &= plan_.registered_errno == 0 || shadow.fate.error != plan_.registered_errno;
    IoRequest* const caller = shadow.caller;
    caller->result = shadow.result;
    free_.push_back(&shadow);
    return caller;
  }

  std::unique_ptr<IoQueue> inner_;
  FaultPlan plan_;
  FaultCounts own_counts_;
  FaultCounts* counts_;
  std::vector<Shadow> shadows_;
  std::vector<Shadow*> free_;  // lost ones never come back here
  std::vector<Shadow*> held_;
  std::uint64_t requests_ = 0, writes_ = 0, syncs_ = 0, flushes_ = 0;
  Clock::time_point idle_at_{};  // when a throttled drive has done all that it was given
  bool uses_registered_ = true;  // with registered_errno
  std::atomic<bool> woken_{false};
};
}  // namespace

std::unique_ptr<IoQueue> make_io_queue_fault(std::unique_ptr<IoQueue> inner, const FaultPlan& plan,
                                             FaultCounts* counts) {
  if (plan.setup_errno != 0) throw uring_refused("io_uring_setup", plan.setup_errno);
  return std::make_unique<FaultQueue>(std::move(inner), plan, counts);
}
}  // namespace headrace::swap
