// SPDX-License-Identifier: Apache-2.0
// headrace/launch.hpp: what the launcher of this process says in its environment: whether there are
// other ranks, and which one this is.
//
//   torchrun, deepspeed, accelerate, by hand   RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
//   mpirun of Open MPI                         OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE
//   mpiexec of MPICH, srun --mpi=pmi2          PMI_RANK, PMI_SIZE
//   srun --mpi=pmix                            PMIX_RANK
//   srun                                       SLURM_PROCID, SLURM_STEP_ID, SLURM_NTASKS
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace headrace {
struct Launch {
  enum class Kind : std::uint8_t {
    kNone,   // one process, by itself
    kTorch,  // ranks meet at a store at master_address:master_port
    kMpi,    // MPI_Init() says the rest
  };
  Kind kind = Kind::kNone;
  std::string launcher;  // "torchrun", "RANK", "Open MPI", "PMI", "PMIx", "Slurm"; of none: ""
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;  // 0: only MPI_Init() says
  // Among the ranks of this machine, where the launcher counts them.
  std::optional<std::uint32_t> local_rank = {}, local_world_size = {};
  std::string master_address;  // kTorch, as the next ones
  std::uint16_t master_port = 0;
  bool agent_serves_store = false;  // torchrun's agent does; else rank 0
  std::string attempt;              // differs whenever torchrun starts the ranks again
};

// Which of them counts; kAuto takes what is there.
enum class LaunchChoice : std::uint8_t { kAuto, kNone, kMpi, kTorch };

// variable(name) is its value, or null. Reads nothing else.
// The launcher that started this process itself counts: torchrun's variables over those of an srun
// or mpirun around it, and all others over Slurm's. An allocation's shell is no launch.
// Throws headrace::Error with code kInvalidArgument: variables of torch's and of MPI's that name
// another rank or world; part of what a launcher sets; a value that is no such number; the choice
// of a launcher whose variables are not set.
Launch find_launch(const std::function<const char*(const char* name)>& variable,
                   LaunchChoice choice = LaunchChoice::kAuto);
// In this process's environment.
Launch find_launch(LaunchChoice choice = LaunchChoice::kAuto);

// Of kTorch: the address of this machine by which it reaches the master's, as a number. "" where no
// way leads there. Sends nothing but what it takes to look a name up.
std::string own_address(const Launch& launch);
}  // namespace headrace
