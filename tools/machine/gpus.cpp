// SPDX-License-Identifier: Apache-2.0
#include "machine/gpus.hpp"

#include <filesystem>

#include "platform/proc_files.hpp"

namespace headrace::tools {
using platform::names_in;
using platform::read_line;
using platform::read_text;
using platform::split;
using platform::trimmed;

namespace {
// "Model: 		 NVIDIA H200"
std::string nvidia_model(const std::string& address, const std::string& root) {
  const std::string file = root + "/proc/driver/nvidia/gpus/" + address + "/information";
  const std::string text = read_text(file).value_or("");
  for (const std::string_view line : split(text, '\n')) {
    if (line.starts_with("Model:")) return std::string(trimmed(line.substr(6)));
  }
  return "NVIDIA";
}

std::string driver_of(const std::string& folder) {
  std::error_code error;
  const auto target = std::filesystem::read_symlink(folder + "/driver", error);
  return error ? "" : target.filename().string();
}
}  // namespace

GpuFacts gpu_facts(const std::string& root) {
  GpuFacts facts;
  const std::string devices = "/sys/bus/pci/devices/";
  std::error_code missing;
  facts.bus_readable = std::filesystem::is_directory(root + devices, missing);
  for (const std::string& address : names_in(root + devices)) {
    const std::string folder = root + devices + address;
    const std::string maker = read_line(folder + "/vendor").value_or("");
    const std::string kind = read_line(folder + "/class").value_or("");
    const bool display = kind.starts_with("0x03");
    const bool accelerator = kind.starts_with("0x12");
    if (!display && !accelerator) continue;
    if (maker != "0x10de" && maker != "0x1002") continue;
    Gpu gpu;
    gpu.address = address;
    gpu.model = maker == "0x10de" ? nvidia_model(address, root) : "AMD";
    gpu.driver = driver_of(folder);
    std::error_code error;
    const std::string real = std::filesystem::canonical(folder, error).string();
    if (!error) gpu.link = pcie_link(real);
    facts.gpus.push_back(std::move(gpu));
  }
  return facts;
}
}  // namespace headrace::tools
