// SPDX-License-Identifier: Apache-2.0
#include "swap/kernel_side.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error_text.hpp"
#include "swap/refusal.hpp"

namespace headrace::swap {
namespace {
base::UniqueFd duplicate(const DriveOptions& options) {
  base::UniqueFd copy(::fcntl(options.fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) {
    const int error = errno;
    throw Error(code_of(error),
                "the drive of " + options.path + " cannot open its file: " +
                    base::errno_text(error) + "; it cannot start; " + what_helps(error),
                error);
  }
  return copy;
}
}  // namespace

KernelSide::KernelSide(const DriveOptions& options) {
  fd_ = duplicate(options);
  const int fd = fd_.get();
  const IoQueueOptions queue_options{.depth = std::max(1u, options.queue_depth),
                                     .submit_batch = options.submit_batch,
                                     .buffers = options.buffers,
                                     .files = {&fd, 1},
                                     .register_buffers = options.register_buffers};
  ChosenIoQueue chosen = options.make_queue ? options.make_queue(queue_options)
                                            : choose_io_queue(IoQueueKind::kAuto, queue_options);
  queue_ = std::move(chosen.queue);
  queue_name_ = queue_->name();
  queue_reason_ = std::move(chosen.reason);
  registered_ = queue_->registered();
  buffers_registered_.store(registered_.buffers);
  blocks_.resize(queue_->depth());
}

bool KernelSide::lost_registration() noexcept {
  if (!buffers_registered_.load() || queue_->registered().buffers) return false;
  buffers_registered_.store(false);
  return true;
}

Registered KernelSide::registered() const {
  return {buffers_registered_.load(), registered_.files, registered_.refused};
}
}  // namespace headrace::swap
