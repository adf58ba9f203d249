// SPDX-License-Identifier: Apache-2.0
// launch_order.hpp: the agreement of ranks on one order of launching their calls, whatever order
// each makes them in.
//
// Every rank tells rank 0 that it has come to a lane's next call. Once all have, rank 0 tells them
// its place among the calls of all lanes. Rank 0 reduces and then gathers, rank 1 the other way
// round:
//
//   rank 1  kGather: come                     rank 0  kReduce: come
//   rank 1  kReduce: come                     rank 0  all have come to kReduce's: place 0
//                                             rank 0  kGather: come; so have all: place 1
//   both    launch kReduce's call, then kGather's
//
// A call that has a place has been made on every rank, so none waits for a later one.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "headrace/transport.hpp"

namespace headrace::collective {
// Of one lane: one call at a time, on the lane of `messages` of the same name.
//
// Threads: one. `changed` runs on any, where take_place() can go on; it calls nothing here.
class LaunchOrder {
 public:
  // Bits of what holds for a call's pieces: on a rank; in a place, on every rank.
  enum Facts : std::uint8_t {
    kInOne = 1,       // equal ones lie one behind the other
    kRegistered = 2,  // all are in memory that NCCL knows
    kUnregistered = 4,
  };
  struct Place {
    std::uint64_t number = 0;
    std::uint64_t facts = 0;
    bool operator==(const Place&) const = default;
  };
  LaunchOrder(Transport& messages, Lane lane, std::function<void()> changed);
  ~LaunchOrder();  // when `messages` are done with it
  LaunchOrder(const LaunchOrder&) = delete;
  LaunchOrder& operator=(const LaunchOrder&) = delete;

  bool idle() const noexcept { return step_ == Step::kIdle; }
  // This rank has come to its next call.
  void come(std::uint8_t facts);
  // The call's place, once. `next`, rank 0's, counts those that it has given. Throws
  // std::runtime_error what `messages` said where they fail.
  std::optional<Place> take_place(std::uint64_t& next);

 private:
  enum class Step { kIdle, kCome, kTold };
  void exchange(Step step, const std::vector<Transport::Piece>& give,
                const std::vector<Transport::Piece>& take);

  Transport& messages_;
  const Lane lane_;
  const std::function<void()> changed_;
  Step step_ = Step::kIdle;
  std::vector<std::uint8_t> facts_;  // by rank; this rank's own, and on rank 0 the others'
  Place place_;
  std::mutex mutex_;  // the next three
  std::condition_variable passed_;
  bool under_way_ = false;
  std::string error_;
};
}  // namespace headrace::collective
