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
#include "swap/dead_runs.hpp"
#include "swap/store_file.hpp"

namespace headrace::tools {
namespace {
constexpr double kGB = 1e9, kTera = 1e12;
constexpr std::uint64_t kTB = 1'000'000'000'000;
constexpr const char* kSource = "a known machine";
const char* const kZero = "published: ZeRO-Infinity, arXiv 2104.07857";
const char* const kNvidia = "published: NVIDIA";
const char* const kEightDrives = "published: DeepSpeed's DeepNVMe, eight Gen5 drives";
const char* const kFourDrives = "published: DeepSpeed's DeepNVMe, four Gen4 drives";

// GPUs' flop/s are what large models have been trained at, not the peak.
Machine dgx2() {
  return {.name = "dgx-2",
          .source = kSource,
          .gpus = 16,
          .cpus = 48,
          .gpu_memory_bytes = 32 * base::kGiB,
          .host_bytes = 1536 * base::kGiB,
          .nvme_bytes = 28 * kTB,
          .drives = 8,
          .nvme_read = {25.6 * kGB, kZero},
          .nvme_write = {25.6 * kGB, std::string("assumed: as reading; ") + kZero},
          .memory = {200 * kGB, "assumed: of 256 GB/s, twelve channels of DDR4-2666"},
          .flops = {70 * kTera, kZero},
          .link = {3 * kGB, kZero},
          .network = {100 * kGB, kNvidia},
          .peers = {150 * kGB, kNvidia}};
}

Machine dgx_h100() {
  return {.name = "dgx-h100",
          .source = kSource,
          .gpus = 8,
          .cpus = 112,
          .gpu_memory_bytes = 80 * base::kGiB,
          .host_bytes = 2048 * base::kGiB,
          .nvme_bytes = 307 * kTB / 10,
          .drives = 8,
          .nvme_read = {48 * kGB, kEightDrives},
          .nvme_write = {26 * kGB, kEightDrives},
          .memory = {450 * kGB, "assumed: of 614 GB/s, sixteen channels of DDR5-4800"},
          .flops = {400 * kTera, "assumed: 0.4 of the peak"},
          .link = {55 * kGB, "assumed: PCIe Gen5 x16"},
          .network = {400 * kGB, kNvidia},
          .peers = {450 * kGB, kNvidia}};
}

Machine azure_a100() {
  return {.name = "nc96ads-a100-v4",
          .source = kSource,
          .gpus = 4,
          .cpus = 96,
          .gpu_memory_bytes = 80 * base::kGiB,
          .host_bytes = 880 * base::kGiB,
          .nvme_bytes = 384 * kTB / 100,
          .drives = 4,
          .nvme_read = {10 * kGB, kFourDrives},
          .nvme_write = {5 * kGB, kFourDrives},
          .memory = {200 * kGB, "assumed"},
          .flops = {140 * kTera, "assumed: 0.45 of the peak"},
          .link = {25 * kGB, "assumed: PCIe Gen4 x16"},
          .network = {10 * kGB, "published: Azure, 80 Gb/s"}};
}

Machine workstation() {
  return {.name = "workstation",
          .source = kSource,
          .gpus = 1,
          .cpus = 16,
          .gpu_memory_bytes = 24 * base::kGiB,
          .host_bytes = 64 * base::kGiB,
          .nvme_bytes = 2 * kTB,
          .drive_tbw = 1200,
          .nvme_read = {7 * kGB, "assumed: one Gen4 drive"},
          .nvme_write = {4 * kGB, "assumed: one Gen4 drive beyond its cache"},
          .memory = {60 * kGB, "assumed: two channels of DDR5"},
          .flops = {140 * kTera, "assumed: a GPU of 24 GiB"},
          .link = {25 * kGB, "assumed: PCIe Gen4 x16"},
          .network = {1.25 * kGB, "assumed: 10 Gbit/s"}};
}

const std::vector<Machine>& all_known() {
  static const std::vector<Machine> all{dgx2(), dgx_h100(), azure_a100(), workstation()};
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
      {"backward_flops", "flop/s", "the same in backward, where it differs",
       &Machine::backward_flops, 1e6, 1e21},
      {"link", "bytes/s", "host to each GPU, each way", &Machine::link, 1e6, 1e15},
      {"network", "bytes/s", "into a node", &Machine::network, 1e6, 1e15},
      {"peers", "bytes/s", "into each rank, from the others of its node", &Machine::peers, 1e6,
       1e15},
      {"call", "s", "a collective call without bytes", &Machine::call, 1e-7, 60},
      {"transport", "bytes/s", "what a core can carry into a rank whose CPU computes",
       &Machine::transport, 1e6, 1e15},
      {"flush", "s", "until the drives keep what is written (headrace.durable)", &Machine::flush,
       1e-7, 60},
  };
  return all;
}

bool is_used(const FigureName& figure, const Settings& settings, std::uint32_t ranks,
             std::uint32_t nodes, bool on_cpu) {
  if (figure.figure == &Machine::flush) return settings.durable_every > 0;
  if (figure.figure == &Machine::peers) return ranks > nodes;
  if (figure.figure == &Machine::call) return ranks > 1;
  if (figure.figure == &Machine::transport) return ranks > 1 && on_cpu;
  return true;
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
  assume(m.update_checked, m.update.value / 1.9, "checksums take 0.9 of an update more");
  assume(m.verify, std::min(m.memory.value, 10 * kGB * cpus), "10 GB/s a CPU, memory at most");
  assume(m.flops, m.gpus > 0 ? 100 * kTera : 30e9 * cpus,
         m.gpus > 0 ? "100 Tflop/s a GPU" : "30 Gflop/s a CPU");
  assume(m.backward_flops, m.flops.value, "as flops");
  if (m.gpus > 0) assume(m.link, 12 * kGB, "PCIe Gen3 x16");
  assume(m.network, 1.25 * kGB, "10 Gbit/s");
  assume(m.peers, m.gpus > 0 ? m.link.value : m.memory.value / 4,
         m.gpus > 0 ? "as link" : "a quarter of memory");
  assume(m.call, 5e-5, "50 us");
  assume(m.transport, 1 * kGB, "1 GB/s a core");
  assume(m.flush, 2e-3, "2 ms");
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
  if (std::filesystem::is_regular_file(word, ignored)) return machine_of_file(word);
  throw Error(Code::kNotFound, "--machine '" + word +
                                   "' is no machine that is known and no file; nothing was "
                                   "planned. Give one of " +
                                   known_machines() + ", or what headrace doctor --json wrote.");
}

namespace {
// Of the store that settings name, below one path; 0 where none is.
std::uint64_t bytes_of_store(const std::string& path, const Settings& settings) {
  if (settings.durable_every == 0) return 0;
  const std::filesystem::path folder = std::filesystem::path(path) / swap::user_directory_name() /
                                       swap::StoreName{settings.store}.directory();
  std::uint64_t bytes = 0;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(folder, error)) {
    if (file.path().extension() != ".store" || !file.is_regular_file(error)) continue;
    const std::uintmax_t size = file.file_size(error);
    if (!error) bytes += size;
  }
  return bytes;
}
}  // namespace

void look_at_drives(Machine& machine, const Settings& settings) {
  if (!machine.here) return;
  std::set<dev_t> devices;
  std::uint64_t free = 0;
  for (const std::string& path : settings.nvme_paths) {
    struct stat file {};
    struct statvfs space {};
    if (::stat(path.c_str(), &file) != 0 || ::statvfs(path.c_str(), &space) != 0) return;
    if (devices.insert(file.st_dev).second) free += std::uint64_t{space.f_bavail} * space.f_frsize;
    free += bytes_of_store(path, settings);
  }
  machine.nvme_bytes = free;
  // Of a report, over its drives.
  const auto measured = [](const Figure& rate) { return rate.value > 0; };
  if (measured(machine.nvme_read) || measured(machine.nvme_write) || measured(machine.nvme_mixed))
    return;
  machine.drives = std::max<std::uint32_t>(1, static_cast<std::uint32_t>(devices.size()));
}
}  // namespace headrace::tools
