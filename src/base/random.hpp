// SPDX-License-Identifier: Apache-2.0
// random.hpp: random numbers of the system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace::base {
// Fills `bytes`. Throws Error (kUnsupported).
void fill_random(std::span<std::byte> bytes);

// For names and tokens that no other process may have by chance.
std::uint64_t random_number();
}  // namespace headrace::base
