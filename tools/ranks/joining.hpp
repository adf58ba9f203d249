// SPDX-License-Identifier: Apache-2.0
// joining.hpp: joins a program to the other ranks of its launch.
#pragma once
#include <dlfcn.h>

#include <memory>
#include <span>
#include <string>

#include "headrace/launch.hpp"
#include "headrace/transport.hpp"
#include "ranks/rank_module.hpp"

namespace headrace::tools {
// A module beside the program: headrace_openmpi.so, headrace_mpich.so, headrace_gloo.so.
struct RankModuleFile {
  const char* kind;    // "openmpi", "mpich", "gloo"
  const char* what;    // "Open MPI", "MPICH", "torch's Gloo"
  const char* remedy;  // what makes the module be there
  int scope;           // of its symbols: RTLD_LOCAL or RTLD_GLOBAL
};
// An MPI loads parts of its own, which look for its symbols among all.
inline constexpr RankModuleFile kRankModuleFiles[] = {
    {"openmpi", "Open MPI",
     "Install that MPI (Debian: apt install openmpi-bin libopenmpi-dev) and build again",
     RTLD_GLOBAL},
    {"mpich", "MPICH", "Install that MPI (Debian: apt install mpich libmpich-dev) and build again",
     RTLD_GLOBAL},
    {"gloo", "torch's Gloo",
     "Build with LibTorch (./quickstart, or -DHEADRACE_TORCH_ROOT=FOLDER that holds torch/)",
     RTLD_LOCAL}};
// Those that may serve a launch of several ranks, the likeliest first: PMI, PMIx and Slurm start
// the ranks of more than one MPI. The first that loads is used.
std::span<const RankModuleFile* const> modules_of(const Launch& launch) noexcept;
std::string path_of(const RankModuleFile& file);
// Loads the module, which stays loaded until the process ends. Null, and `why`, where it is not
// there or does not load.
const RankModule* load_module(const RankModuleFile& file, std::string& why);

// Over the MPI that started this process, or over torch's Gloo. Blocks until all ranks are there:
// RankModule::join says how long. Throws headrace::Error: kUnsupported where there is no such
// module, or where the MPI that was loaded finds another rank or world than the launcher set; and
// what joining throws.
std::shared_ptr<Transport> join_ranks(const Launch& launch, const CollectiveOptions& ranks);
// Collective, after join_ranks(). Throws headrace::Error.
std::unique_ptr<RawCalls> make_raw_calls(const Launch& launch);
// Ends MPI, if it was begun: after a failure the launcher ends the ranks that still wait.
void leave_launch(int exit_code) noexcept;
}  // namespace headrace::tools
