// SPDX-License-Identifier: Apache-2.0
#include "plan/machines.hpp"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error_text.hpp"
#include "base/units.hpp"
#include "headrace/error.hpp"
#include "platform/machine.hpp"

namespace headrace::tools {
namespace {
constexpr double kTB = 1e12, kGB = 1e9, kTera = 1e12;
const char* const kZero = "published: ZeRO-Infinity, arXiv 2104.07857";
const char* const kNvidia = "published: NVIDIA";
const char* const kDeepNvme = "published: DeepSpeed's DeepNVMe";

// GPUs' flop/s are what large models have been trained at, not the peak.
std::vector<Machine> make_known() {
  Machine dgx2;
  dgx2.name = "dgx-2";
  dgx2.gpus = 16;
  dgx2.cpus = 48;
  dgx2.gpu_memory_bytes = 32ull << 30;
  dgx2.host_bytes = 1536ull << 30;
  dgx2.nvme_bytes = static_cast<std::uint64_t>(28 * kTB);
  dgx2.drives = 8;
  dgx2.nvme_read = {25.6 * kGB, kZero};
  dgx2.nvme_write = {25.6 * kGB, std::string("assumed: as reading; ") + kZero};
  dgx2.flops = {70 * kTera, kZero};
  dgx2.link = {3 * kGB, kZero};
  dgx2.network = {100 * kGB, kNvidia};
  dgx2.memory = {200 * kGB, "assumed: of 256 GB/s, twelve channels of DDR4-2666"};

  Machine h100;
  h100.name = "dgx-h100";
  h100.gpus = 8;
  h100.cpus = 112;
  h100.gpu_memory_bytes = 80ull << 30;
  h100.host_bytes = 2048ull << 30;
  h100.nvme_bytes = static_cast<std::uint64_t>(30.7 * kTB);
  h100.drives = 8;
  h100.nvme_read = {48 * kGB, std::string(kDeepNvme) + ", eight Gen5 drives"};
  h100.nvme_write = {26 * kGB, std::string(kDeepNvme) + ", eight Gen5 drives"};
  h100.flops = {400 * kTera, "assumed: 0.4 of the peak"};
  h100.link = {55 * kGB, "assumed: PCIe Gen5 x16"};
  h100.network = {400 * kGB, kNvidia};
  h100.memory = {450 * kGB, "assumed: of 614 GB/s, sixteen channels of DDR5-4800"};

  Machine a100;
  a100.name = "nc96ads-a100-v4";
  a100.gpus = 4;
  a100.cpus = 96;
  a100.gpu_memory_bytes = 80ull << 30;
  a100.host_bytes = 880ull << 30;
  a100.nvme_bytes = static_cast<std::uint64_t>(3.84 * kTB);
  a100.drives = 4;
  a100.nvme_read = {10 * kGB, std::string(kDeepNvme) + ", four Gen4 drives"};
  a100.nvme_write = {5 * kGB, std::string(kDeepNvme) + ", four Gen4 drives"};
  a100.flops = {140 * kTera, "assumed: 0.45 of the peak"};
  a100.link = {25 * kGB, "assumed: PCIe Gen4 x16"};
  a100.network = {10 * kGB, "published: Azure, 80 Gb/s"};
  a100.memory = {200 * kGB, "assumed"};

  Machine workstation;
  workstation.name = "workstation";
  workstation.gpus = 1;
  workstation.cpus = 16;
  workstation.gpu_memory_bytes = 24ull << 30;
  workstation.host_bytes = 64ull << 30;
  workstation.nvme_bytes = 2 * static_cast<std::uint64_t>(kTB);
  workstation.drive_tbw = 1200;
  workstation.nvme_read = {7 * kGB, "assumed: one Gen4 drive"};
  workstation.nvme_write = {4 * kGB, "assumed: one Gen4 drive beyond its cache"};
  workstation.flops = {140 * kTera, "assumed: a GPU of 24 GiB"};
  workstation.link = {25 * kGB, "assumed: PCIe Gen4 x16"};
  workstation.network = {1.25 * kGB, "assumed: 10 Gb/s"};
  workstation.memory = {60 * kGB, "assumed: two channels of DDR5"};

  std::vector<Machine> all{dgx2, h100, a100, workstation};
  for (Machine& machine : all) machine.source = "a known machine";
  return all;
}
const std::vector<Machine>& all_known() {
  static const std::vector<Machine> all = make_known();
  return all;
}
}  // namespace

const std::vector<FigureName>& figure_names() {
  static const std::vector<FigureName> all = {
      {"nvme_read", "bytes/s", "all drives of a node, reading alone", &Machine::nvme_read, 1e6,
       1e15},
      {"nvme_write", "bytes/s", "all drives, writing alone", &Machine::nvme_write, 1e6, 1e15},
      {"nvme_mixed", "bytes/s", "all drives, both at once, together", &Machine::nvme_mixed, 1e6,
       1e15},
      {"memory", "bytes/s", "what the CPUs read and write", &Machine::memory, 1e6, 1e15},
      {"update", "elements/s", "the update in memory, all CPUs", &Machine::update, 1e3, 1e15},
      {"update_checked", "elements/s", "the same with checksums", &Machine::update_checked, 1e3,
       1e15},
      {"verify", "bytes/s", "checksums of gathered weights, all CPUs", &Machine::verify, 1e6, 1e15},
      {"flops", "flop/s", "one GPU, or all CPUs, as training reaches them", &Machine::flops, 1e6,
       1e21},
      {"link", "bytes/s", "host to each GPU, each way", &Machine::link, 1e6, 1e15},
      {"network", "bytes/s", "into a node", &Machine::network, 1e6, 1e15},
  };
  return all;
}

Figure* figure_of(Machine& machine, const std::string& name) {
  for (const FigureName& one : figure_names()) {
    if (name == one.name) return &(machine.*one.figure);
  }
  return nullptr;
}

void assume_the_rest(Machine& m) {
  const auto assume = [](Figure& figure, double value, const char* why) {
    if (figure.value <= 0) figure = {value, std::string("assumed: ") + why};
  };
  const double cpus = m.cpus;
  assume(m.nvme_read, 3 * kGB * m.drives, "3 GB/s a drive");
  assume(m.nvme_write, 1.5 * kGB * m.drives, "1.5 GB/s a drive");
  assume(m.memory, std::min(10 * kGB * cpus, 200 * kGB), "10 GB/s a CPU, 200 at most");
  // 26 bytes an element: docs/optimizers.md.
  assume(m.update, std::min(m.memory.value / 26, 1.5e9 * cpus), "AdamW by memory, 26 B an element");
  assume(m.update_checked, m.update.value / 1.6, "checksums take 0.6 of an update more");
  assume(m.verify, std::min(m.memory.value, 10 * kGB * cpus), "10 GB/s a CPU, memory at most");
  assume(m.flops, m.gpus > 0 ? 100 * kTera : 30e9 * cpus,
         m.gpus > 0 ? "100 Tflop/s a GPU" : "30 Gflop/s a CPU");
  if (m.gpus > 0) assume(m.link, 12 * kGB, "PCIe Gen3 x16");
  assume(m.network, 1.25 * kGB, "10 Gb/s");
}

const Machine* known_machine(const std::string& name) {
  const auto found = std::ranges::find(all_known(), name, &Machine::name);
  return found == all_known().end() ? nullptr : &*found;
}

std::string known_machines() {
  std::string text;
  for (const Machine& machine : all_known()) text += (text.empty() ? "" : ", ") + machine.name;
  return text;
}

Machine this_machine() {
  Machine machine;
  machine.name = "this machine";
  machine.here = true;
  const platform::Limit memory = platform::memory_left(), cpus = platform::usable_cpus();
  machine.source = memory.source + ", " + cpus.source;
  machine.host_bytes = memory.value;
  machine.cpus = static_cast<std::uint32_t>(cpus.value);
  return machine;
}

Machine machine_of(const std::string& word) {
  if (word.empty()) return this_machine();
  if (const Machine* known = known_machine(word)) return *known;
  std::error_code ignored;
  if (std::filesystem::exists(word, ignored)) return machine_of_file(word);
  throw Error(Code::kNotFound, "--machine '" + word +
                                   "' is no machine that is known and no file; nothing was "
                                   "planned. Give one of " +
                                   known_machines() + ", or what headrace doctor --json wrote.");
}

void look_at_drives(Machine& machine, const Settings& settings) {
  if (!machine.here) return;
  std::set<dev_t> devices;
  std::uint64_t free = 0;
  for (const std::string& path : settings.nvme_paths) {
    struct stat file {};
    struct statvfs space {};
    if (::stat(path.c_str(), &file) != 0 || ::statvfs(path.c_str(), &space) != 0) return;
    if (devices.insert(file.st_dev).second) free += std::uint64_t{space.f_bavail} * space.f_frsize;
  }
  machine.nvme_bytes = free;
}
}  // namespace headrace::tools
