// SPDX-License-Identifier: Apache-2.0
// nccl_communicator.hpp: one NCCL communicator, in whose calls nobody waits.
#pragma once
#include <chrono>
#include <cstdint>
#include <mutex>

#include "collective/nccl_library.hpp"

namespace headrace::collective {
// NCCL's nonblocking mode: a call may return kNcclInProgress, and until state() says otherwise no
// further work may be issued, nor queued on the stream behind it. So whoever waits can stop waiting
// and abort().
//
// Threads: any; NCCL wants one call at a time, which the mutex sees to.
class NcclCommunicator {
 public:
  explicit NcclCommunicator(const NcclLibrary& library) : library_(library) {}
  ~NcclCommunicator() { abort(); }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  NcclResult start(std::uint32_t world_size, const NcclId& id, std::uint32_t rank);
  // Runs `calls` as one NCCL group; the first result that is an error, else the group's.
  template <class Calls>  // NcclResult(NcclCommHandle)
  NcclResult issue(const Calls& calls) {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return kNcclEnded;
    const NcclResult started = library_.group_start();
    if (is_error(started)) return started;
    const NcclResult called = calls(comm_);
    const NcclResult ended = library_.group_end();
    return is_error(called) ? called : ended;
  }
  // The state as NCCL knows it: success, in progress, or why it is broken.
  NcclResult state();
  // Waits until `end` for `result` to become something other than kNcclInProgress, and returns it.
  NcclResult until_done(NcclResult result, std::chrono::steady_clock::time_point end);
  // Between two calls of issue() that have ended. With kNcclSuccess, `handle` is what deregister()
  // takes; null where NCCL prefers not to use the memory.
  NcclResult register_memory(void* data, std::size_t bytes, void** handle);
  // May wait for the processes of other ranks on this machine, though not for calls of theirs.
  NcclResult deregister(void* handle) noexcept;
  // The GPU that it is on; -1: NCCL does not say.
  int cuda_ordinal();

  // Ends what runs on the device, and the communicator: calls give kNcclEnded from here on, and so
  // does one that waits in until_done().
  void abort() noexcept;
  // As abort(), having given what was issued until `end`.
  void finish(std::chrono::steady_clock::time_point end) noexcept;

 private:
  const NcclLibrary& library_;
  std::mutex mutex_;
  NcclCommHandle comm_ = nullptr;
};
}  // namespace headrace::collective
