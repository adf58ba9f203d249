// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/deepspeed/values.hpp"

#include <cstring>

#include "base/check.hpp"
#include "kernels/number_formats.hpp"

namespace headrace::tools {
namespace {
template <class Format>
void widen_all(std::span<const std::byte> from, std::vector<float>& out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Format value;
    std::memcpy(&value, from.data() + i * sizeof value, sizeof value);
    out[i] = kernels::widen(value);
  }
}
template <class Format>
void round_all(std::span<const float> from, std::vector<std::byte>& out) {
  out.resize(from.size() * sizeof(Format));
  for (std::size_t i = 0; i < from.size(); ++i) {
    Format value;
    kernels::round_to(value, from[i]);
    std::memcpy(out.data() + i * sizeof value, &value, sizeof value);
  }
}
}  // namespace

bool widens(std::string_view dtype) noexcept {
  return dtype == "F32" || dtype == "BF16" || dtype == "F16";
}

void widen(std::string_view dtype, std::span<const std::byte> from, std::vector<float>& out) {
  HEADRACE_CHECK(widens(dtype), "the caller has refused other dtypes");
  out.resize(from.size() / (dtype == "F32" ? 4 : 2));
  if (dtype == "F32") std::memcpy(out.data(), from.data(), from.size());
  if (dtype == "BF16") widen_all<kernels::Bfloat>(from, out);
  if (dtype == "F16") widen_all<kernels::Half>(from, out);
}

void round_to(std::string_view dtype, std::span<const float> from, std::vector<std::byte>& out) {
  HEADRACE_CHECK(widens(dtype), "the caller has refused other dtypes");
  if (dtype == "F32") {
    const auto bytes = std::as_bytes(from);
    out.assign(bytes.begin(), bytes.end());
  }
  if (dtype == "BF16") round_all<kernels::Bfloat>(from, out);
  if (dtype == "F16") round_all<kernels::Half>(from, out);
}
}  // namespace headrace::tools
