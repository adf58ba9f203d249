// SPDX-License-Identifier: Apache-2.0
// drive_simulated.hpp: a drive in memory under the simulated conductor: each transfer takes a
// random virtual time, and its bytes move when it ends, so that whoever does not wait for it is
// found out. A sync takes a time too, and moves nothing.
#pragma once
#include <algorithm>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "swap/drive.hpp"

namespace headrace::testing {
class DriveSimulated : public swap::Drive {
 public:
  DriveSimulated(async::Conductor& conductor, std::uint64_t seed)
      : conductor_(conductor), random_(seed) {}

  void start(swap::Transfer& transfer) noexcept override {
    // A timer per transfer, found by address while it is in flight.
    Flight* free = nullptr;
    for (const auto& flight : flights_) {
      if (flight->transfer == nullptr) free = flight.get();
    }
    if (free == nullptr) free = flights_.emplace_back(std::make_unique<Flight>()).get();
    free->drive = this;
    free->transfer = &transfer;
    free->run = [](async::Work* work) noexcept {
      auto* flight = static_cast<Flight*>(static_cast<async::Timer*>(work));
      flight->drive->finish(*flight);
    };
    in_flight_max_ = std::max(in_flight_max_, ++in_flight_);
    conductor_.after(duration_of(transfer), *free);
  }
  swap::DriveCounters counters() const noexcept override { return counters_; }
  const char* queue_name() const noexcept override { return "simulated"; }
  const std::string& queue_reason() const noexcept override { return reason_; }
  bool stalled() const noexcept override { return false; }

 protected:
  virtual async::Nanoseconds duration_of(const swap::Transfer&) noexcept {
    return async::Nanoseconds(1000 + random_() % 1'000'000);
  }
  virtual int error_of(const swap::Transfer&) noexcept { return 0; }
  // A transfer without an error has moved its bytes, or synced.
  virtual void ended(const swap::Transfer&) noexcept {}

  async::Conductor& conductor_;
  std::vector<std::byte> file_;

 private:
  struct Flight : async::Timer {
    DriveSimulated* drive = nullptr;
    swap::Transfer* transfer = nullptr;
  };
  void finish(Flight& flight) noexcept {
    swap::Transfer& t = *std::exchange(flight.transfer, nullptr);
    --in_flight_;
    t.done_bytes = 0;
    t.error = error_of(t);
    if (t.kind == swap::IoKind::kSync) return finish_sync(t);
    if (t.error != 0) return t.run(&t);
    const std::uint64_t end = t.offset_bytes + t.size_bytes;
    if (file_.size() < end) file_.resize(end);
    if (t.kind == swap::IoKind::kRead) {
      std::memcpy(t.data, file_.data() + t.offset_bytes, t.size_bytes);
      counters_.read_bytes += t.size_bytes;
    } else {
      std::memcpy(file_.data() + t.offset_bytes, t.data, t.size_bytes);
      counters_.written_bytes += t.size_bytes;
    }
    t.done_bytes = t.size_bytes;
    ended(t);
    t.run(&t);
  }

  // As of the real drive: after one that failed, none succeeds.
  void finish_sync(swap::Transfer& t) noexcept {
    ++counters_.syncs;
    if (sync_error_ == 0) sync_error_ = t.error;
    t.error = sync_error_;
    if (t.error == 0) ended(t);
    t.run(&t);
  }

  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Flight>> flights_;
  swap::DriveCounters counters_;
  std::string reason_;
  std::size_t in_flight_ = 0, in_flight_max_ = 0;
  int sync_error_ = 0;
};
}  // namespace headrace::testing
