// SPDX-License-Identifier: Apache-2.0
// transfer_done.hpp: makes a transfer awaitable.
#pragma once
#include <coroutine>

#include "async/resumption.hpp"
#include "swap/drive.hpp"
#include "swap/extents.hpp"

namespace headrace::swap {
// co_await starts the transfer, and resumes on the conductor when the drive has ended it. Returns
// the outcome and throws nothing. The object must stay in place until then.
class TransferDone : private async::Resumption<Transfer> {
 public:
  // `purpose` (for stall messages) and `drive` outlive it. For a sync: null, and an empty extent.
  TransferDone(Drive& drive, IoKind of, std::byte* at, const Extent& extent, Priority when,
               const char* purpose)
      : drive_(drive) {
    kind = of;
    priority = when;
    data = at;
    offset_bytes = extent.offset_bytes;
    size_bytes = extent.size_bytes;
    what = purpose;
  }
  using Resumption::await_ready;
  void await_suspend(std::coroutine_handle<> handle) noexcept {
    wait(handle);
    drive_.start(*this);
  }
  const Transfer& await_resume() const noexcept { return *this; }

 private:
  Drive& drive_;
};
}  // namespace headrace::swap
