// SPDX-License-Identifier: Apache-2.0
// kernel_side.hpp: the objects that a drive's requests in the kernel point to. They are freed
// together, or not at all if a request never came back.
//
// Example: a drive has reads A and B in its queue, and B does not complete by its deadline. The
// drive ends B's transfer with ETIMEDOUT and continues. When the drive's thread ends, B is still
// with the kernel, so the thread passes this object to never_free(). If the kernel completes B
// after all, it finds the block that holds the request, the queue's memory and the descriptor as
// they were. (B reads into the arena, which the engine then leaks.) If B had come back, all would
// be freed.
#pragma once
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "swap/block.hpp"
#include "swap/drive.hpp"
#include "swap/io_queue.hpp"
#include "swap/run_lock.hpp"

namespace headrace::swap {
// For the drive's thread only, which creates it, except where noted.
class KernelSide {
 public:
  // Throws what options.make_queue throws.
  explicit KernelSide(const DriveOptions& options);
  KernelSide(const KernelSide&) = delete;
  KernelSide& operator=(const KernelSide&) = delete;

  int fd() const noexcept { return fd_.get(); }
  std::span<Block> blocks() noexcept { return blocks_; }  // as many as the queue's depth
  IoQueue& queue() noexcept { return *queue_; }           // wake(): any thread
  // Whether the queue has stopped using registered memory, since a request on it failed. True once.
  bool lost_registration() noexcept;
  bool uses_registered_buffers() const noexcept { return buffers_registered_.load(); }

  // ---- any thread ----
  const std::string& queue_name() const noexcept { return queue_name_; }
  const std::string& queue_reason() const noexcept { return queue_reason_; }
  Registered registered() const;

 private:
  // A separate descriptor, so that a late request never meets a reused number. A forked child
  // closes it, as it would keep a store's lock.
  base::UniqueFd fd_;
  const ClosedInForkedChild closed_in_child_{fd_};
  std::vector<Block> blocks_;
  std::unique_ptr<IoQueue> queue_;
  std::string queue_name_, queue_reason_;
  Registered registered_;  // at the start
  std::atomic<bool> buffers_registered_{false};
};
}  // namespace headrace::swap
