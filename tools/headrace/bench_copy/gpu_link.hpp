// SPDX-License-Identifier: Apache-2.0
// gpu_link.hpp: the PCIe link of a GPU, as /sys tells it.
#pragma once
#include <optional>
#include <string>

#include "machine/gpus.hpp"

namespace headrace::tools {
struct GpuLink {
  std::string name;             // "PCIe 5.0 x16"
  double bytes_per_second = 0;  // that it carries at most, each way
};
// The speed on which device and slot agree under load: idle GPUs slow their links down. No value if
// /sys does not know `pci_bus_id`, or the link.
std::optional<GpuLink> gpu_link(const std::string& pci_bus_id, const GpuFacts& facts);
}  // namespace headrace::tools
