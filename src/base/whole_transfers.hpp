// SPDX-License-Identifier: Apache-2.0
// whole_transfers.hpp: reads and writes at an offset of a file that continue after a short transfer
// or a signal until all bytes are moved.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace::base {
struct Moved {
  std::size_t size_bytes = 0;
  int error = 0;  // the errno of the call that failed
};

// Fewer bytes without an error: the file ends there.
Moved read_at(int file, std::uint64_t offset_bytes, std::span<std::byte> out) noexcept;
// All bytes, or an error.
Moved write_at(int file, std::uint64_t offset_bytes, std::span<const std::byte> bytes) noexcept;
}  // namespace headrace::base
