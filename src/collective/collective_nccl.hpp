// SPDX-License-Identifier: Apache-2.0
// collective_nccl.hpp: ranks with a GPU each, over NCCL. What it promises is in headrace/nccl.hpp;
// this says how.
//
// Two communicators. `data_` carries all_gather and all_to_all, on the caller's streams.
// `control_` carries rounds: every rank sends every other a Post, and waits. A call that blocks is
// a round, and so is a failure's or an end's farewell: whatever a rank does next, the others find
// in the round that they come to, and a rank that is stuck in queued work hinders nobody from
// saying so.
//
// A failure is settled before it is thrown: ranks that fail at the same time agree on the first.
// Rank 1's drive fails, and rank 0 comes to its next exchange a second later, both in round 12:
//
//   rank 1, any thread   abort("EIO") notes the time, wakes the watch thread and returns
//   rank 1, its watch    ends what is queued on `data_`, posts { 12, kFailed, "EIO" }, and waits
//                        up to 5 seconds for the others' posts
//   rank 1, its trainer  a call meanwhile waits until the farewell is over
//   rank 0, its trainer  posts { 12, kCall, exchange 'step' }, and receives the farewell
//   both throw           rank 1 gave up: EIO; no rank can go on without it; ...
//
// Had rank 0 failed too, its farewell would meet rank 1's in round 12, and the earlier of the two
// is what both throw. Had it not come within the 5 seconds, rank 1 would throw alone. A rank that
// ends posts { 12, kLeft }, and rank 0 throws "rank 1 has left and will not come to
// exchange 'step'".
#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "collective/nccl_communicator.hpp"
#include "collective/nccl_library.hpp"
#include "collective/posts.hpp"
#include "headrace/nccl.hpp"

namespace headrace::collective {
class CollectiveNccl final : public Collective {
 public:
  explicit CollectiveNccl(const NcclOptions& options);
  ~CollectiveNccl() override;

  std::uint32_t rank() const noexcept override { return rank_; }
  std::uint32_t world_size() const noexcept override { return world_size_; }
  void all_gather(CollectiveTag tag, Stream stream, DeviceSpan whole) override;
  void all_to_all(CollectiveTag tag, Stream stream, std::span<const DeviceSpan> give,
                  void* take) override;
  void exchange(CollectiveTag tag, std::span<const std::byte> mine,
                std::span<std::byte> all) override;
  void abort(std::string_view why) noexcept override;

 private:
  using Clock = std::chrono::steady_clock;
  // kFailing: this rank gave up, and tells the others. kFailed: why_ is final.
  enum class Life { kGood, kFailing, kFailed };
  enum class Met { kAll, kLate, kBroken };
  struct Queued {
    Call call;
    Clock::time_point since;  // queued, and what was queued before it has ended
  };
  class OwnStream {
   public:
    explicit OwnStream(Device& device) : device_(device), stream_(device.create_urgent_stream()) {}
    ~OwnStream();  // when it is empty
    OwnStream(const OwnStream&) = delete;
    OwnStream& operator=(const OwnStream&) = delete;
    operator Stream() const noexcept { return stream_; }

   private:
    Device& device_;
    Stream stream_;
  };
  // Device memory of unspecified content. Throws kOutOfBudget.
  class Scratch {
   public:
    Scratch(Device& device, std::uint64_t size_bytes);
    ~Scratch() { device_.deallocate(data_, size_bytes_); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    std::byte* data() const noexcept { return data_; }

   private:
    Device& device_;
    std::uint64_t size_bytes_;
    std::byte* data_;
  };
  class ControlUse;
  struct Pieces {  // rank r's is at first + r * stride
    const std::byte* first;
    std::uint64_t stride;
  };

  void connect(const NcclOptions& options);
  void check_same_gpu();
  void check_made(NcclResult result);

  // Calls that are queued.
  void begin(const Call& call);
  template <class Calls>
  void issue(const Call& call, Stream stream, const Calls& calls);
  void keep_watch(const Call& call, Stream stream);

  // Calls that block.
  // take(at, size, pieces): `size` bytes from `at` on of every rank's are there.
  template <class Take>
  void meet(const Call& call, std::span<const std::byte> mine, const Take& take);
  std::string compare(Post& mine);
  template <class Take>
  std::string receive(const Post& post, std::span<const std::byte> mine, const Take& take);
  std::string not_met(Met met, const Post& mine);
  Met post_round(Post& mine, Clock::time_point end);
  Met hold_round(const void* mine, std::byte* slots, std::byte* received, std::uint64_t size_bytes,
                 Clock::time_point end);
  Met wait_for_round(Clock::time_point end);
  NcclResult until_issued(NcclCommunicator& communicator, NcclResult result, Clock::time_point end);

  // Failure.
  void throw_if_failed(std::unique_lock<std::mutex>& lock);
  bool settle(std::string_view why, bool even_failing);
  void break_off(std::string_view why);
  void watch();
  void look(std::unique_lock<std::mutex>& lock);
  void say_farewell(std::unique_lock<std::mutex>& lock);
  void leave() noexcept;

  const std::uint32_t rank_;
  const std::uint32_t world_size_;
  const std::chrono::milliseconds deadline_;
  const std::chrono::milliseconds grace_;  // how long the others are waited for, to be told
  const std::shared_ptr<Device> device_;
  std::mutex mutex_;  // the next ten; never held in a call of NCCL or the device
  std::condition_variable changed_;
  std::condition_variable for_watch_;
  Life life_ = Life::kGood;
  std::string why_;
  Post farewell_;
  Clock::time_point failing_since_;
  bool control_used_ = false;
  bool round_done_ = false;
  std::deque<Queued> queued_;
  bool closing_ = false;

  // With control_used_ only.
  std::uint64_t rounds_ = 0;
  std::vector<Post> posts_;
  std::vector<std::byte> payload_;
  NcclResult round_result_ = kNcclSuccess;

  const NcclLibrary library_;
  QueuedCalls queued_calls_;
  Scratch control_memory_;
  Stream last_stream_;  // of the last queued call
  Event last_end_;
  // What streams work on is above them.
  OwnStream control_stream_;
  OwnStream watch_stream_;  // passes the end of queued work, so that no stream waits for the host
  NcclCommunicator data_;
  NcclCommunicator control_;

  std::thread watch_thread_;
};
}  // namespace headrace::collective
