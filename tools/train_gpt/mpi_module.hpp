// SPDX-License-Identifier: Apache-2.0
// mpi_module.hpp: what a module for one MPI gives this program: its symbol train_gpt_mpi_module.
#pragma once
#include <memory>

#include "headrace/transport.hpp"

namespace train_gpt {
struct MpiModule {
  // Begins MPI; blocks until all ranks have. Throws headrace::Error.
  std::shared_ptr<headrace::Transport> (*join)() = nullptr;
  // Ends it: exit code 0 after a clean end of all transports, else the job ends with it.
  void (*leave)(int exit_code) noexcept = nullptr;
};
}  // namespace train_gpt
