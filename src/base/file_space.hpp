// SPDX-License-Identifier: Apache-2.0
// file_space.hpp: the room that a file system has left, and its reservation.
#pragma once
#include <cstdint>
#include <optional>

namespace headrace::base {
// What this user may still write to the file system of an open file or directory. No value if it
// does not say.
std::optional<std::uint64_t> free_bytes(int file) noexcept;

// Gives all bytes of a file blocks, and the file that size. Returns 0 or an errno, EOPNOTSUPP if
// the file system has no such call. What surely does not fit is not tried: an attempt would fill
// the file system before it failed, and for that moment fail other programs' writes.
int reserve(int file, std::uint64_t size_bytes) noexcept;
}  // namespace headrace::base
