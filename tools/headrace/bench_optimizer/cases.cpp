// SPDX-License-Identifier: Apache-2.0
#include "bench_optimizer/cases.hpp"

#include <fmt/core.h>

namespace headrace::tools {
using base::kScaleElements;

std::vector<Stream> streams_of(const Case& of) {
  constexpr auto kBlock = static_cast<std::uint32_t>(base::kScaleElements);
  std::vector<Stream> streams;
  streams.push_back({.role = Role::kWeight,
                     .weight = of.weight,
                     .bytes_per_scale = weight_bytes(of.weight) * kBlock});
  if (const std::uint32_t bytes = master_bytes(of.weight); bytes > 0)
    streams.push_back(
        {.role = Role::kMaster, .weight = of.weight, .bytes_per_scale = bytes * kBlock});
  for (std::uint32_t k = 0; k < moments(of.arithmetic()); ++k) {
    Stream moment{.role = Role::kMoment,
                  .codec = of.moments,
                  .square = is_square(of.arithmetic(), k),
                  .bytes_per_scale = optimizer_cpu::moment_bytes(of.moments) * kBlock};
    streams.push_back(moment);
    if (!optimizer_cpu::has_scales(of.moments)) continue;
    moment.role = Role::kScale;
    moment.bytes_per_scale = 1;
    streams.push_back(moment);
  }
  streams.push_back(
      {.role = Role::kGradient,
       .gradient = of.gradient,
       .bytes_per_scale = static_cast<std::uint32_t>(size_bytes(of.gradient)) * kBlock});
  return streams;
}

Moved moved_per_parameter(const Case& of) {
  const bool master_apart = of.weight == MasterKind::kF32 || of.weight == MasterKind::kF32OfF16;
  Moved moved;
  for (const Stream& stream : streams_of(of)) {
    const double bytes =
        static_cast<double>(stream.bytes_per_scale) / static_cast<double>(base::kScaleElements);
    if (stream.role != Role::kWeight || !master_apart) moved.read += bytes;
    if (stream.role != Role::kGradient) moved.written += bytes;
  }
  return moved;
}

std::string moments_text(const Case& of) { return of.has_moments() ? name_of(of.moments) : "-"; }

std::string text_of(const Case& of) {
  return fmt::format("{}, {}{} weight, {} gradient, {}, {} thread{}{}", name_of(of.rule),
                     of.has_moments() ? moments_text(of) + " moments, " : "",
                     word_of(kWeights, of.weight), word_of(kGradients, of.gradient),
                     name_of(of.simd), of.threads, of.threads == 1 ? "" : "s",
                     of.checksums ? ", checksums" : "");
}
}  // namespace headrace::tools
