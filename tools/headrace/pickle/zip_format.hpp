// SPDX-License-Identifier: Apache-2.0
// zip_format.hpp: the numbers of zip files, as far as torch.save() uses them.
//
// A local header and its data for each entry, then the central directory, which lists them again,
// then its end. What does not fit 32 bits is in extra fields and in a longer end (zip64).
#pragma once
#include <cstddef>
#include <cstdint>

namespace headrace::tools::pickle {
inline constexpr std::uint32_t kLocalMark = 0x04034b50, kCentralMark = 0x02014b50,
                               kEndMark = 0x06054b50, kEnd64Mark = 0x06064b50,
                               kLocator64Mark = 0x07064b50;
inline constexpr std::size_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56,
                             kLocator64Bytes = 20;
inline constexpr std::uint32_t kIn64 = 0xffffffffu;  // the 64-bit field has the value
inline constexpr std::uint16_t kCountIn64 = 0xffffu;
inline constexpr std::uint16_t kExtra64 = 1;  // the extra field with 64-bit sizes
inline constexpr std::size_t kExtraHeadBytes = 4;
}  // namespace headrace::tools::pickle
