// SPDX-License-Identifier: Apache-2.0
// transfers.hpp: the transfers that `headrace bench copy` measures: a direction, a kind of host
// memory, a size.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace headrace::tools {
enum class Way : std::uint8_t { kToDevice, kToHost, kBoth };
enum class HostMemory : std::uint8_t { kPinned, kPageable };
enum class Transfers : std::uint8_t {
  kCopies,
  kWritten,  // bf16 gradients that land over a bf16 sum, measured piece by piece
  kAdded,    // bf16 gradients that are added to an f32 sum
};

struct Transfer {
  Transfers kind = Transfers::kCopies;
  Way way = Way::kToDevice;
  HostMemory memory = HostMemory::kPinned;
  std::uint64_t bytes = 0;  // that one of them carries over the link, each way

  bool operator==(const Transfer&) const = default;
  // Over the link, by so many of them.
  double moved(std::uint64_t count) const {
    return static_cast<double>(bytes) * static_cast<double>(count) * (way == Way::kBoth ? 2 : 1);
  }
};

// Way by way, pinned memory first, by size; gradients last, if asked for.
std::vector<Transfer> transfers_of(const std::vector<std::uint64_t>& sizes, bool gradients,
                                   std::uint64_t gradient_bytes);

const char* name_of(Way way) noexcept;            // "to_device", "to_host", "both"
const char* name_of(HostMemory memory) noexcept;  // "pinned", "pageable"
const char* name_of(Transfers kind) noexcept;     // "copies", "gradients written", ...
std::string text_of(const Transfer& transfer);    // "to the device, pinned, 64 KiB"
const char* title_of(Way way) noexcept;           // "to the device", "to the host", "both at once"
}  // namespace headrace::tools
