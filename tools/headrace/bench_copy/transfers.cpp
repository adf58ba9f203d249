// SPDX-License-Identifier: Apache-2.0
#include "bench_copy/transfers.hpp"

#include <fmt/core.h>

#include "base/units.hpp"

namespace headrace::tools {
std::vector<Transfer> transfers_of(const std::vector<std::uint64_t>& sizes, bool gradients,
                                   std::uint64_t gradient_bytes) {
  std::vector<Transfer> all;
  for (const Way way : {Way::kToDevice, Way::kToHost, Way::kBoth}) {
    for (const HostMemory memory : {HostMemory::kPinned, HostMemory::kPageable}) {
      for (const std::uint64_t bytes : sizes)
        all.push_back({.way = way, .memory = memory, .bytes = bytes});
    }
  }
  if (!gradients) return all;
  for (const Transfers kind : {Transfers::kWritten, Transfers::kAdded})
    all.push_back({.kind = kind, .way = Way::kToHost, .bytes = gradient_bytes});
  return all;
}

const char* name_of(Way way) noexcept {
  return way == Way::kToDevice ? "to_device" : way == Way::kToHost ? "to_host" : "both";
}
const char* title_of(Way way) noexcept {
  return way == Way::kToDevice ? "to the device"
         : way == Way::kToHost ? "to the host"
                               : "both at once";
}
const char* name_of(HostMemory memory) noexcept {
  return memory == HostMemory::kPinned ? "pinned" : "pageable";
}
const char* name_of(Transfers kind) noexcept {
  return kind == Transfers::kCopies    ? "copies"
         : kind == Transfers::kWritten ? "gradients written"
                                       : "gradients added";
}

std::string text_of(const Transfer& transfer) {
  const std::string size = base::format_bytes(transfer.bytes);
  if (transfer.kind != Transfers::kCopies)
    return fmt::format("{}, {}", name_of(transfer.kind), size);
  return fmt::format("{}, {}, {}", title_of(transfer.way), name_of(transfer.memory), size);
}
}  // namespace headrace::tools
