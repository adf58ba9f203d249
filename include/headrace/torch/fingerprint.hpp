// SPDX-License-Identifier: Apache-2.0
// headrace/torch/fingerprint.hpp: detects whether bytes have changed, at about memory speed.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace headrace::torch::detail {
// The result differs if a single 8-byte word differs, and almost surely if several do. Do not store
// it.
inline std::uint64_t fingerprint(const void* data, std::size_t size_bytes) noexcept {
  constexpr std::size_t kChains = 4;  // side by side: a multiplication takes a few cycles
  std::uint64_t chain[kChains] = {1, 2, 3, 4};
  const auto add = [](std::uint64_t& to, std::uint64_t word) {
    to = std::rotl((to ^ word) * 0x9e3779b97f4a7c15u, 29);
  };
  const auto* at = static_cast<const unsigned char*>(data);
  for (; size_bytes >= sizeof chain; size_bytes -= sizeof chain, at += sizeof chain) {
    std::uint64_t word[kChains];
    std::memcpy(word, at, sizeof word);
    for (std::size_t i = 0; i < kChains; ++i) add(chain[i], word[i]);
  }
  for (; size_bytes > 0; --size_bytes, ++at) add(chain[0], *at);
  for (std::size_t i = 1; i < kChains; ++i) add(chain[0], chain[i]);
  return chain[0];
}
}  // namespace headrace::torch::detail
