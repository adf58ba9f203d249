// SPDX-License-Identifier: Apache-2.0
// Ranks: what a launcher said, what would carry bytes between them, and what they share here.
#include <fmt/core.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <sys/statvfs.h>

#include <filesystem>
#include <memory>

#include "base/units.hpp"
#include "doctor/rows.hpp"
#include "doctor/shared_library.hpp"
#include "headrace/error.hpp"
#include "machine/cpu_facts.hpp"
#include "platform/machine.hpp"
#include "ranks/joining.hpp"

namespace headrace::tools {
namespace {
// Those that find_launch() reads, and the interface that Gloo does.
constexpr const char* kVariables[] = {"RANK",
                                      "WORLD_SIZE",
                                      "LOCAL_RANK",
                                      "LOCAL_WORLD_SIZE",
                                      "MASTER_ADDR",
                                      "MASTER_PORT",
                                      "TORCHELASTIC_RUN_ID",
                                      "TORCHELASTIC_RESTART_COUNT",
                                      "TORCHELASTIC_USE_AGENT_STORE",
                                      "OMPI_COMM_WORLD_RANK",
                                      "OMPI_COMM_WORLD_SIZE",
                                      "OMPI_COMM_WORLD_LOCAL_RANK",
                                      "OMPI_COMM_WORLD_LOCAL_SIZE",
                                      "PMI_RANK",
                                      "PMI_SIZE",
                                      "MPI_LOCALRANKID",
                                      "MPI_LOCALNRANKS",
                                      "PMIX_RANK",
                                      "SLURM_PROCID",
                                      "SLURM_STEP_ID",
                                      "SLURM_STEP_NUM_TASKS",
                                      "SLURM_NTASKS",
                                      "SLURM_LOCALID",
                                      "GLOO_SOCKET_IFNAME"};

std::string text_of(const Variable& variable, const char* name) {
  const char* const value = variable(name);
  return value == nullptr ? "" : value;
}

Row variables_row(const Variable& variable) {
  Row row{.name = "variables", .value = ""};
  for (const char* const name : kVariables) {
    const std::string value = text_of(variable, name);
    if (value.empty()) continue;
    row.value += fmt::format("{}{}={}", row.value.empty() ? "" : " ", name, value);
    row.values[name] = value;
  }
  if (row.value.empty()) row.value = "none of a launcher's is set";
  return row;
}

Row launcher_row(const Launch& launch) {
  Row row{.name = "launcher", .value = "none: one process"};
  row.values = {{"launcher", launch.launcher},
                {"rank", launch.rank},
                {"world_size", launch.world_size},
                {"local_rank", or_null(launch.local_rank)},
                {"local_world_size", or_null(launch.local_world_size)}};
  if (launch.kind == Launch::Kind::kNone) return row;
  row.value = fmt::format("{}: rank {}", launch.launcher, launch.rank);
  if (launch.world_size > 0) row.value += fmt::format(" of {}", launch.world_size);
  if (launch.local_rank) row.value += fmt::format(", on this machine rank {}", *launch.local_rank);
  if (launch.local_rank && launch.local_world_size)
    row.value += fmt::format(" of {}", *launch.local_world_size);
  return row;
}

std::string version_text(const RankModuleFile& file, int version) {
  return std::string(file.kind) == "gloo"
             ? fmt::format("torch {}.{}.{}", version / 10000, version / 100 % 100, version % 100)
             : fmt::format("MPI {}.{}", version / 100, version / 10 % 10);
}

// The first of those that may serve that loads, as join_ranks() takes it; else the likeliest.
// Null: one process.
const RankModuleFile* needed_by(const Launch& launch) {
  if (launch.kind == Launch::Kind::kNone) return nullptr;
  for (const RankModuleFile* const file : modules_of(launch)) {
    if (try_library(path_of(*file), RankModule::kVersionSymbol).loads) return file;
  }
  return modules_of(launch).front();
}

Row module_row(const RankModuleFile& file, bool needed) {
  const std::string path = path_of(file), name = std::filesystem::path(path).filename();
  const bool there = std::filesystem::exists(path);
  const LibraryTrial trial =
      there ? try_library(path, RankModule::kVersionSymbol) : LibraryTrial{.error = ""};
  Row row{.name = file.what, .value = "no " + name};
  row.values = {{"module", path}, {"loads", trial.loads}, {"version_code", trial.version}};
  if (trial.loads) {
    row.value = fmt::format("{}, {}", name, version_text(file, trial.version));
    return row;
  }
  if (there) row.value = name + " does not load";
  row.detail = trial.error;
  if (!there && !needed) return row;
  row.mark = needed ? Mark::kGap : Mark::kNote;
  row.consequence =
      needed ? "the ranks of this launch cannot join" : "ranks that it carries could not join";
  row.fix = file.remedy;
  return row;
}

// The interface of this name or address, and the names of all interfaces.
struct FoundInterface {
  std::string name, address, known;
};
FoundInterface find_interface(const std::string& name, const std::string& address) {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> all(first, ::freeifaddrs);
  FoundInterface found;
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr) continue;
    const bool four = at->ifa_addr->sa_family == AF_INET;
    if (!four && at->ifa_addr->sa_family != AF_INET6) continue;
    char text[NI_MAXHOST] = "";
    const auto size = static_cast<socklen_t>(four ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (::getnameinfo(at->ifa_addr, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0)
      continue;
    const std::string own = at->ifa_name;
    if ((" " + found.known + ",").find(" " + own + ",") == std::string::npos)
      found.known += (found.known.empty() ? "" : ", ") + own;
    if (found.name.empty() && (own == name || text == address)) {
      found.name = own;
      found.address = text;
    }
  }
  return found;
}

Row network_row(const Variable& variable, const Launch& launch) {
  const std::string list = text_of(variable, "GLOO_SOCKET_IFNAME");
  const std::string asked = list.substr(0, list.find(','));
  const std::string address = asked.empty() ? own_address(launch) : "";
  const FoundInterface found = find_interface(asked, address);
  Row row{.name = "Gloo's network", .value = fmt::format("{} at {}", found.name, found.address)};
  row.detail = asked.empty() ? "it leads to MASTER_ADDR " + launch.master_address
                             : "GLOO_SOCKET_IFNAME names it";
  row.values = {{"interface", found.name}, {"address", found.address}};
  if (found.address.starts_with("127.") || found.address == "::1")
    row.detail += "; ranks of other machines do not reach it";
  if (!found.name.empty()) return row;
  row.mark = Mark::kGap;
  row.value = "none";
  row.consequence = "the ranks of this launch cannot join";
  row.detail = asked.empty() ? "no way leads to MASTER_ADDR '" + launch.master_address + "'"
                             : "GLOO_SOCKET_IFNAME names '" + asked + "', which has no address";
  row.fix = asked.empty() ? "set MASTER_ADDR to the name or address of rank 0's machine"
                          : "name one of: " + found.known;
  return row;
}

// Open MPI takes 4 MiB of it for a rank, and MPICH about as much.
Row shared_memory_row(const Launch& launch, const std::string& root) {
  constexpr std::uint64_t kOfRank = 16 * base::kMiB;
  Row row{.name = "/dev/shm", .value = "", .mark = Mark::kUnknown};
  struct statvfs space {};
  if (::statvfs((root + "/dev/shm").c_str(), &space) != 0) return row;
  const std::uint64_t left = std::uint64_t{space.f_bavail} * space.f_frsize,
                      size = std::uint64_t{space.f_blocks} * space.f_frsize;
  row.mark = Mark::kOk;
  row.value = fmt::format("{} free of {}", base::format_bytes(left), base::format_bytes(size));
  row.values = {{"free_bytes", left}, {"size_bytes", size}};
  if (left >= kOfRank * launch.local_world_size.value_or(1)) return row;
  row.mark = Mark::kNote;
  row.consequence = "an MPI may fail to start its ranks, which share memory there";
  row.fix = "remove old files there; of a container: --shm-size=1g";
  return row;
}

Row cpus_row(const Launch& launch, const std::string& root) try {
  const platform::Limit usable = platform::usable_cpus(1, root);
  const std::uint64_t threads = cpu_facts(root).threads,
                      ranks = launch.local_world_size.value_or(1);
  Row row{.name = "CPUs of this rank", .value = ""};
  row.values = {{"cpus", usable.value}, {"of", threads}, {"local_world_size", ranks}};
  row.value = fmt::format("{} of {} ({})", usable.value, threads, usable.source);
  if (ranks == 1) return row;
  const bool bound = usable.value < threads;
  row.detail = bound ? fmt::format(
                           "ranks that are bound to the same share them; {} are on this "
                           "machine",
                           ranks)
                     : fmt::format("{} ranks of this machine share them: {} each", ranks,
                                   std::max<std::uint64_t>(1, usable.value / ranks));
  if (bound && usable.value == 1) {
    row.mark = Mark::kNote;
    row.consequence = "one CPU does this rank's training, updates and I/O in turn";
    row.fix = "mpirun --bind-to none, or more CPUs for each rank (--map-by slot:PE=N)";
  } else if (!bound && usable.value < ranks) {
    row.mark = Mark::kNote;
    row.consequence = "ranks wait for each other's CPUs, also where an MPI's waits spin";
    row.fix = "start fewer ranks on this machine";
  }
  return row;
} catch (const Error& error) {  // the row of usable CPUs says what to do
  return {.name = "CPUs of this rank",
          .value = "refused",
          .mark = Mark::kGap,
          .detail = error.what(),
          .consequence = "no rank can start",
          .fix = "unset SLURM_CPUS_PER_TASK"};
}
}  // namespace

Section ranks_section(const Variable& variable, const std::string& root) {
  Section section{.title = "Ranks", .path = "", .rows = {}};
  std::vector<Row>& rows = section.rows;
  Launch launch;
  try {
    launch = find_launch(variable);
    rows.push_back(launcher_row(launch));
  } catch (const Error& error) {
    rows.push_back({.name = "launcher", .value = "refused", .mark = Mark::kGap});
    tell_error(rows.back(), error.what());
  }
  rows.push_back(variables_row(variable));
  const RankModuleFile* const needed = needed_by(launch);
  for (const RankModuleFile& file : kRankModuleFiles)
    rows.push_back(module_row(file, &file == needed));
  if (launch.kind == Launch::Kind::kTorch || !text_of(variable, "GLOO_SOCKET_IFNAME").empty())
    rows.push_back(network_row(variable, launch));
  rows.push_back(shared_memory_row(launch, root));
  rows.push_back(cpus_row(launch, root));
  return section;
}
}  // namespace headrace::tools
