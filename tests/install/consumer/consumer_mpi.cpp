// SPDX-License-Identifier: Apache-2.0
// Compiles and links: it takes mpirun to run it.
#include <memory>

#include "headrace/mpi.hpp"

int main() {
  const headrace::MpiSession session;
  const std::shared_ptr<headrace::Transport> transport =
      headrace::make_mpi_transport(MPI_COMM_WORLD);
  return transport->world_size() > 0 ? 0 : 1;
}
