// SPDX-License-Identifier: Apache-2.0
// kernel_side.hpp: the objects that a drive's requests in the kernel point to. They are freed
// together, or not at all if a request never came back.
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

namespace headrace::swap {
// For the drive's thread only, which creates it, except where noted.
class KernelSide {
 public:
  // Throws what options.make_queue throws.
  explicit KernelSide(const DriveOptions& options);
  ~KernelSide();
  KernelSide(const KernelSide&) = delete;
  KernelSide& operator=(const KernelSide&) = delete;

  int fd() const noexcept { return fd_.get(); }
  std::span<Block> blocks() noexcept { return blocks_; }  // as many as the queue's depth
  IoQueue& queue() noexcept { return *queue_; }           // wake(): any thread
  // Whether the queue has stopped using registered memory, since a request on it failed. True once.
  bool lost_registration() noexcept;

  // ---- any thread ----
  const std::string& queue_name() const noexcept { return queue_name_; }
  const std::string& queue_reason() const noexcept { return queue_reason_; }
  Registered registered() const;

 private:
  // A separate descriptor, so that a late request never meets a reused number. A forked child
  // closes it, as it would keep a store's lock.
  base::UniqueFd fd_;
  std::vector<Block> blocks_;
  std::unique_ptr<IoQueue> queue_;
  std::string queue_name_, queue_reason_;
  Registered registered_;  // at the start
  std::atomic<bool> buffers_registered_{false};
};
}  // namespace headrace::swap
