// SPDX-License-Identifier: Apache-2.0
// mpi_module.cpp: compiled once for each MPI that is found, as a module of its own.
#include "mpi_module.hpp"

#include <headrace/mpi.hpp>
#include <optional>

namespace {
std::optional<headrace::MpiSession>& session() {
  static std::optional<headrace::MpiSession> of_this_process;
  return of_this_process;
}

std::shared_ptr<headrace::Transport> join() {
  session().emplace(MPI_THREAD_MULTIPLE);
  return headrace::make_mpi_transport(MPI_COMM_WORLD);
}

void leave(int exit_code) noexcept {
  if (!session()) return;
  if (exit_code != 0) MPI_Abort(MPI_COMM_WORLD, exit_code);  // does not return
  session().reset();
}
}  // namespace

extern "C" {
extern const train_gpt::MpiModule train_gpt_mpi_module;
const train_gpt::MpiModule train_gpt_mpi_module = {join, leave};
}
