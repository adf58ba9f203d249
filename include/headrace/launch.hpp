// SPDX-License-Identifier: Apache-2.0
// headrace/launch.hpp: finds out whether there are other ranks, and which rank this is, from the
// environment variables that this process's launcher has set.
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
    kNone,   // a single process
    kTorch,  // ranks meet at a store at master_address:master_port
    kMpi,    // MPI_Init() gives the rest
  };
  Kind kind = Kind::kNone;
  std::string launcher;  // "torchrun", "RANK", "Open MPI", "PMI", "PMIx", "Slurm"; "" without one
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;  // 0: only MPI_Init() knows it
  // This rank's number among the ranks of this machine, and how many there are, if the launcher
  // gives them.
  std::optional<std::uint32_t> local_rank = {}, local_world_size = {};
  std::string master_address;  // for kTorch, like the members below
  std::uint16_t master_port = 0;
  bool agent_serves_store = false;  // torchrun's agent serves the store; otherwise rank 0 does
  std::string attempt;              // differs each time torchrun restarts the ranks
};

// The launcher to use; kAuto takes the one whose variables are set.
enum class LaunchChoice : std::uint8_t { kAuto, kNone, kMpi, kTorch };

// Finds the launcher that started this process directly. So torchrun's variables take precedence
// over those of an srun or mpirun around it, and the variables of any launcher over those of Slurm.
// A shell in a Slurm allocation is not a launch. variable(name) returns the value of a variable, or
// null. This function reads nothing else.
// Throws headrace::Error kInvalidArgument if
// - variables of torch and of MPI name different ranks or world sizes,
// - a launcher's variables are incomplete,
// - a value is not a valid number,
// - the variables of the chosen launcher are not set.
Launch find_launch(const std::function<const char*(const char* name)>& variable,
                   LaunchChoice choice = LaunchChoice::kAuto);
// Like the function above, but reads this process's environment.
Launch find_launch(LaunchChoice choice = LaunchChoice::kAuto);

// For kTorch: the numeric address that this machine uses when it connects to the master. "" if
// there is no route. The call sends nothing, except to look up the master's name.
std::string own_address(const Launch& launch);
// For kTorch: why the master's name or address cannot be resolved, as the system says it. "" if it
// can be.
std::string master_fault(const Launch& launch);
// For kTorch: whether something accepts connections at the master's address and port. Waits at most
// a second for each address. Throws headrace::Error kIo if this process may open no more files.
bool master_answers(const Launch& launch);
}  // namespace headrace
