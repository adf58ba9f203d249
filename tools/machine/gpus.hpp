// SPDX-License-Identifier: Apache-2.0
// gpus.hpp: the GPUs that are plugged in, and their driver.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "machine/disks.hpp"

namespace headrace::tools {
struct Gpu {
  std::string address;  // "0000:17:00.0"
  std::string model;    // "NVIDIA H200"; without a driver that says, the maker: "NVIDIA"
  std::string driver;   // the kernel's driver that has it: "nvidia", "vfio-pci"; empty: none
  std::optional<PcieLink> link;
};

struct GpuFacts {
  bool bus_readable = false;  // /sys/bus/pci: without it there is no telling
  std::vector<Gpu> gpus;      // display and compute devices of NVIDIA and AMD on the PCI bus
};
// Reads /sys/bus/pci and /proc/driver/nvidia. `root` prefixes both: for tests.
GpuFacts gpu_facts(const std::string& root = "");
}  // namespace headrace::tools
