// SPDX-License-Identifier: Apache-2.0
#include "ranks/joining.hpp"

#include <filesystem>
#include <string_view>

#include "headrace/error.hpp"

namespace headrace::tools {
namespace {
const RankModule* joined_by = nullptr;  // since join_ranks()

const char* other_way(const Launch& launch) {
  return launch.kind == Launch::Kind::kMpi
             ? "start the ranks by torchrun, or with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
             : "start the ranks by mpirun";
}

struct Loaded {
  const RankModuleFile& file;
  const RankModule& module;
  std::string others;  // why those before it were not
};
Loaded load(const Launch& launch) {
  std::string whys, what, remedy;
  for (const RankModuleFile* const file : modules_of(launch)) {
    std::string why;
    const RankModule* const module = load_module(*file, why);
    if (module != nullptr) return {*file, *module, whys};
    whys += (whys.empty() ? "" : "; ") + why;
    what += (what.empty() ? "" : " or ") + std::string(file->what);
    if (remedy.empty()) remedy = file->remedy;
  }
  throw Error(Code::kUnsupported, launch.launcher + " started this rank, and no module for " +
                                      what + " can be loaded: " + whys +
                                      "; the run was not started. " + remedy + ", or " +
                                      other_way(launch));
}

// An MPI that another launcher's variables mislead finds itself alone: each rank would train as if
// there were no others.
void require_same_place(const Launch& launch, const Loaded& by, const Transport& transport) {
  const bool same_size = launch.world_size == 0 || launch.world_size == transport.world_size();
  if (launch.rank == transport.rank() && same_size) return;
  const auto place = [](std::uint32_t rank, std::uint32_t size) {
    return "rank " + std::to_string(rank) + (size == 0 ? "" : " of " + std::to_string(size));
  };
  throw Error(Code::kUnsupported,
              launch.launcher + "'s variables say that this is " +
                  place(launch.rank, launch.world_size) + ", but the " + by.file.what +
                  " that this program loaded says " +
                  place(transport.rank(), transport.world_size()) +
                  (by.others.empty() ? "" : " (another MPI was not loaded: " + by.others + ")") +
                  "; no step was made. Start the ranks by the mpirun of " + by.file.what +
                  " (srun: by the --mpi that it was built for; srun --mpi=list), or by torchrun");
}

[[noreturn]] void fail(const RankModule::Failure& failure) {
  throw Error(failure.code, failure.text, failure.sys_errno);
}
}  // namespace

std::span<const RankModuleFile* const> modules_of(const Launch& launch) noexcept {
  static constexpr const RankModuleFile *kOpenMpi = &kRankModuleFiles[0],
                                        *kMpich = &kRankModuleFiles[1],
                                        *kGloo = &kRankModuleFiles[2];
  static constexpr const RankModuleFile* kOpenMpiFirst[] = {kOpenMpi, kMpich};
  static constexpr const RankModuleFile* kMpichFirst[] = {kMpich, kOpenMpi};
  if (launch.kind == Launch::Kind::kTorch) return {&kGloo, 1};
  if (launch.launcher == "Open MPI") return std::span(kOpenMpiFirst).first(1);
  if (launch.launcher == "PMI") return kMpichFirst;
  return kOpenMpiFirst;
}

std::string path_of(const RankModuleFile& file) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() /
         (std::string("headrace_") + file.kind + ".so");
}

const RankModule* load_module(const RankModuleFile& file, std::string& why) {
  void* const module = ::dlopen(path_of(file).c_str(), RTLD_NOW | file.scope);
  const void* const symbol = module == nullptr ? nullptr : ::dlsym(module, RankModule::kSymbol);
  const char* const error = symbol == nullptr ? ::dlerror() : "";
  why = error == nullptr ? path_of(file) : error;
  return static_cast<const RankModule*>(symbol);
}

std::shared_ptr<Transport> join_ranks(const Launch& launch, const CollectiveOptions& ranks) {
  const Loaded loaded = load(launch);
  joined_by = &loaded.module;
  RankModule::Failure failure;
  auto transport = joined_by->join(launch, ranks, failure);
  if (transport == nullptr) fail(failure);
  require_same_place(launch, loaded, *transport);
  return transport;
}

std::unique_ptr<RawCalls> make_raw_calls(const Launch& launch) {
  RankModule::Failure failure;
  auto calls = joined_by->make_raw_calls(launch, failure);
  if (calls == nullptr) fail(failure);
  return calls;
}

void leave_launch(int exit_code) noexcept {
  if (joined_by != nullptr) joined_by->leave(exit_code);
}
}  // namespace headrace::tools
