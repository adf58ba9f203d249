// SPDX-License-Identifier: Apache-2.0
#include "ranks/joining.hpp"

#include <dlfcn.h>

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

const RankModule& load(const Launch& launch) {
  const RankModuleFile& file = module_of(launch);
  // An MPI loads parts of its own, which look for its symbols among all.
  const int scope = launch.kind == Launch::Kind::kMpi ? RTLD_GLOBAL : RTLD_LOCAL;
  void* const module = ::dlopen(path_of(file).c_str(), RTLD_NOW | scope);
  const void* const symbol = module == nullptr ? nullptr : ::dlsym(module, RankModule::kSymbol);
  if (symbol != nullptr) return *static_cast<const RankModule*>(symbol);
  const char* const why = ::dlerror();
  throw Error(Code::kUnsupported,
              launch.launcher + " started this rank, and the module for " + file.what +
                  " cannot be loaded: " + (why == nullptr ? path_of(file) : std::string(why)) +
                  "; the run was not started. " + file.remedy + ", or " + other_way(launch));
}

[[noreturn]] void fail(const RankModule::Failure& failure) {
  throw Error(failure.code, failure.text, failure.sys_errno);
}
}  // namespace

const RankModuleFile& module_of(const Launch& launch) noexcept {
  if (launch.kind == Launch::Kind::kTorch) return kRankModuleFiles[2];
  return kRankModuleFiles[launch.launcher == "Open MPI" ? 0 : 1];
}

std::string path_of(const RankModuleFile& file) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() /
         (std::string("headrace_") + file.kind + ".so");
}

std::shared_ptr<Transport> join_ranks(const Launch& launch, const CollectiveOptions& ranks) {
  joined_by = &load(launch);
  RankModule::Failure failure;
  auto transport = joined_by->join(launch, ranks, failure);
  if (transport == nullptr) fail(failure);
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
