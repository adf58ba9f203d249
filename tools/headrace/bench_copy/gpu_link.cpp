// SPDX-License-Identifier: Apache-2.0
#include "bench_copy/gpu_link.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace headrace::tools {
namespace {
std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// The less of both that is known.
template <class T>
T less_known(T a, T b) {
  return a == T{} ? b : b == T{} ? a : std::min(a, b);
}

const char* generation(double speed_gt) {
  static constexpr std::array kGenerations{std::pair{64.0, "6.0"}, std::pair{32.0, "5.0"},
                                           std::pair{16.0, "4.0"}, std::pair{8.0, "3.0"},
                                           std::pair{5.0, "2.0"},  std::pair{2.5, "1.0"}};
  for (const auto& [speed, name] : kGenerations) {
    if (speed_gt >= speed) return name;
  }
  return "?";
}
}  // namespace

std::optional<GpuLink> gpu_link(const std::string& pci_bus_id, const GpuFacts& facts) {
  const auto found = std::ranges::find_if(
      facts.gpus, [&](const Gpu& gpu) { return lower(gpu.address) == lower(pci_bus_id); });
  if (found == facts.gpus.end() || !found->link) return std::nullopt;
  const PcieLink& link = *found->link;
  const double speed = less_known(link.max_speed_gt, link.slot_max_speed_gt);
  // Lanes are not switched off by an idle GPU.
  const std::uint32_t width =
      link.width > 0 ? link.width : less_known(link.max_width, link.slot_max_width);
  if (speed <= 0 || width == 0) return std::nullopt;
  return GpuLink{fmt::format("PCIe {} x{}", generation(speed), width),
                 1e9 * link_gb_per_second(speed, width)};
}
}  // namespace headrace::tools
