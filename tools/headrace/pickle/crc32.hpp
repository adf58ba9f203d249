// SPDX-License-Identifier: Apache-2.0
// crc32.hpp: the checksum of zip files: CRC-32 with the polynomial of IEEE 802.3.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace::tools::pickle {
// Of `bytes`, after those whose checksum is `before` (0: after none).
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept;
}  // namespace headrace::tools::pickle
