// SPDX-License-Identifier: Apache-2.0
// mpi_module.cpp: compiled once for each MPI that is found, as a module of its own.
#include "mpi_module.hpp"

#include <chrono>
#include <headrace/mpi.hpp>
#include <optional>
#include <thread>

namespace {
std::optional<headrace::MpiSession>& session() {
  static std::optional<headrace::MpiSession> of_this_process;
  return of_this_process;
}

std::shared_ptr<headrace::Transport> join() {
  session().emplace(MPI_THREAD_MULTIPLE);
  return headrace::make_mpi_transport(MPI_COMM_WORLD);
}

// All ranks know of the failure by now, and end. MPI_Abort() would kill them while they do.
void let_the_others_end() noexcept {
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Request all_are_here = MPI_REQUEST_NULL;
  int done = MPI_Ibarrier(MPI_COMM_WORLD, &all_are_here) != MPI_SUCCESS;
  for (int i = 0; i < 200 && done == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (MPI_Test(&all_are_here, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return;
  }
}

void leave(int exit_code) noexcept {
  if (!session()) return;
  if (exit_code != 0) {
    let_the_others_end();
    MPI_Abort(MPI_COMM_WORLD, exit_code);  // does not return
  }
  session().reset();
}
}  // namespace

extern "C" {
extern const train_gpt::MpiModule train_gpt_mpi_module;
const train_gpt::MpiModule train_gpt_mpi_module = {join, leave};
}
