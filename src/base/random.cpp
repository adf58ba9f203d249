// SPDX-License-Identifier: Apache-2.0
#include "base/random.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>

#include "base/error_text.hpp"
#include "headrace/error.hpp"

namespace headrace::base {
void fill_random(std::span<std::byte> bytes) {
  constexpr std::size_t kMost = 256;  // one call gives as many for sure
  while (!bytes.empty()) {
    const std::size_t size = std::min(kMost, bytes.size());
    if (::getrandom(bytes.data(), size, 0) != static_cast<ssize_t>(size))
      throw Error(Code::kUnsupported, "getrandom failed: " + errno_text(errno), errno);
    bytes = bytes.subspan(size);
  }
}

std::uint64_t random_number() {
  std::uint64_t number = 0;
  fill_random(std::as_writable_bytes(std::span(&number, 1)));
  return number;
}
}  // namespace headrace::base
