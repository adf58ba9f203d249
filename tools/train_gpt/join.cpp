// SPDX-License-Identifier: Apache-2.0
#include "join.hpp"

#include <dlfcn.h>

#include <filesystem>
#include <headrace/torch/gloo.hpp>
#include <string>

#include "mpi_module.hpp"

namespace train_gpt {
namespace {
MpiModule mpi;  // loaded by join_ranks()

std::shared_ptr<headrace::Transport> join_over_mpi(const headrace::Launch& launch) {
  const std::string kind = launch.launcher == "Open MPI" ? "openmpi" : "mpich";
  const std::string file =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / ("train_gpt_" + kind + ".so");
  void* const module = ::dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (module == nullptr) {
    const char* const why = ::dlerror();
    throw headrace::Error(
        headrace::Code::kUnsupported,
        launch.launcher + " started this rank, and the module for its MPI cannot be loaded: " +
            (why == nullptr ? file : std::string(why)) +
            "; the run was not started. Install that MPI (Debian: apt install lib" + kind +
            "-dev) and build again, or start the ranks by torchrun, or with RANK, WORLD_SIZE, "
            "MASTER_ADDR and MASTER_PORT");
  }
  mpi = *static_cast<const MpiModule*>(::dlsym(module, "train_gpt_mpi_module"));
  return mpi.join();
}
}  // namespace

std::shared_ptr<headrace::Transport> join_ranks(const headrace::Launch& launch,
                                                const headrace::CollectiveOptions& ranks) {
  if (launch.kind == headrace::Launch::Kind::kMpi) return join_over_mpi(launch);
  return headrace::torch::make_gloo_transport(
      launch,
      {.join_within = ranks.deadline, .warn = ranks.warn, .interrupted = ranks.interrupted});
}

void leave_launch(int exit_code) noexcept {
  if (mpi.leave != nullptr) mpi.leave(exit_code);
}
}  // namespace train_gpt
