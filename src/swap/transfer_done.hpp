// SPDX-License-Identifier: Apache-2.0
// transfer_done.hpp: a transfer as something to await.
#pragma once
#include <coroutine>

#include "swap/drive.hpp"
#include "swap/extents.hpp"

namespace headrace::swap {
// co_await: starts the transfer and resumes on the conductor when the drive has ended it. Yields
// its outcome, which nothing is thrown for. In place until then.
class TransferDone {
 public:
  // `what` (for stall messages) outlives it, as does `drive`.
  TransferDone(Drive& drive, IoKind kind, std::byte* data, const Extent& extent, Priority priority,
               const char* what)
      : drive_(drive) {
    transfer_.kind = kind;
    transfer_.priority = priority;
    transfer_.data = data;
    transfer_.offset_bytes = extent.offset_bytes;
    transfer_.size_bytes = extent.size_bytes;
    transfer_.what = what;
    transfer_.owner = this;
    transfer_.run = [](async::Work* work) noexcept {
      static_cast<Owned*>(work)->owner->waiting_.resume();
    };
  }
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) noexcept {
    waiting_ = handle;
    drive_.start(transfer_);
  }
  const Transfer& await_resume() const noexcept { return transfer_; }

 private:
  struct Owned : Transfer {
    TransferDone* owner = nullptr;
  };
  Drive& drive_;
  Owned transfer_;
  std::coroutine_handle<> waiting_;
};
}  // namespace headrace::swap
