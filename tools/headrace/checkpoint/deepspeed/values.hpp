// SPDX-License-Identifier: Apache-2.0
// values.hpp: values of one dtype as values of another, part by part.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace headrace::tools {
// The values of a tensor that are held at a time.
inline constexpr std::uint64_t kPartElements = std::uint64_t{1} << 18;

// Whether its values widen to f32 exactly: F32, BF16, F16.
bool widens(std::string_view dtype) noexcept;
// Appends nothing, replaces `out`. A NaN stays one.
void widen(std::string_view dtype, std::span<const std::byte> from, std::vector<float>& out);
// To nearest, ties to even. Of F32: the same bits.
void round_to(std::string_view dtype, std::span<const float> from, std::vector<std::byte>& out);
}  // namespace headrace::tools
