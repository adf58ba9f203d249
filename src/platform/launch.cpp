// SPDX-License-Identifier: Apache-2.0
#include "headrace/launch.hpp"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string_view>
#include <vector>

#include "base/error_text.hpp"
#include "headrace/error.hpp"

namespace headrace {
namespace {
constexpr std::uint32_t kRanksMax = std::numeric_limits<std::int32_t>::max();

[[noreturn]] void refuse(const std::string& cause, const std::string& cure) {
  throw Error(Code::kInvalidArgument, cause + "; no ranks were started; " + cure);
}

// The variables of a process, and what may stand in them.
class Variables {
 public:
  explicit Variables(const std::function<const char*(const char*)>& variable)
      : variable_(variable) {}
  // "" where it is not set, or empty.
  std::string text(const char* name) const {
    const char* const value = variable_(name);
    return value == nullptr ? "" : value;
  }
  bool has(const char* name) const { return !text(name).empty(); }
  bool has_any(const std::vector<const char*>& names) const {
    for (const char* const name : names) {
      if (has(name)) return true;
    }
    return false;
  }
  void need_all(const std::vector<const char*>& names) const {
    std::string set, missing;
    for (const char* const name : names) {
      std::string& list = has(name) ? set : missing;
      list += (list.empty() ? "" : ", ") + std::string(name);
    }
    if (missing.empty()) return;
    const char* const are = set.find(',') == std::string::npos ? " is" : " are";
    refuse(set.empty() ? missing + " are not set" : set + are + " set, but not " + missing,
           set.empty() ? "start the ranks with torchrun, or set them for each rank"
                       : "set all of them for each rank, or unset " + set);
  }
  std::uint32_t number(const char* name, std::uint32_t least, std::uint32_t most) const {
    const std::string value = text(name);
    std::uint32_t number = 0;
    const auto end = std::from_chars(value.data(), value.data() + value.size(), number);
    if (end.ec != std::errc() || end.ptr != value.data() + value.size() || number < least ||
        number > most) {
      refuse(std::string(name) + " is '" + value + "', not a number from " + std::to_string(least) +
                 " to " + std::to_string(most),
             "set it to one, or unset the launcher's variables to run one process");
    }
    return number;
  }
  std::optional<std::uint32_t> number_if_set(const char* name, std::uint32_t least,
                                             std::uint32_t most) const {
    if (!has(name)) return {};
    return number(name, least, most);
  }

 private:
  const std::function<const char*(const char*)>& variable_;
};

// The names of one launcher's variables.
struct Names {
  const char* launcher;
  const char *rank, *size, *local_rank, *local_size;
};
constexpr Names kTorch = {"RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpi = {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kPmi = {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

Launch read_ranks(const Variables& variables, const Names& names, Launch::Kind kind) {
  Launch launch;
  launch.kind = kind;
  launch.launcher = names.launcher;
  launch.world_size = variables.number(names.size, 1, kRanksMax);
  launch.rank = variables.number(names.rank, 0, launch.world_size - 1);
  launch.local_world_size = variables.number_if_set(names.local_size, 1, launch.world_size);
  launch.local_rank = variables.number_if_set(
      names.local_rank, 0, launch.local_world_size.value_or(launch.world_size) - 1);
  return launch;
}

std::optional<Launch> find_torch(const Variables& variables) {
  if (!variables.has_any({kTorch.rank, kTorch.size})) return {};
  variables.need_all({kTorch.rank, kTorch.size, "MASTER_ADDR", "MASTER_PORT"});
  Launch launch = read_ranks(variables, kTorch, Launch::Kind::kTorch);
  launch.master_address = variables.text("MASTER_ADDR");
  launch.master_port = static_cast<std::uint16_t>(
      variables.number("MASTER_PORT", 1, std::numeric_limits<std::uint16_t>::max()));
  if (!variables.has("TORCHELASTIC_RUN_ID")) return launch;
  launch.launcher = "torchrun";
  launch.agent_serves_store = variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  launch.attempt =
      variables.text("TORCHELASTIC_RUN_ID") + "/" + variables.text("TORCHELASTIC_RESTART_COUNT");
  return launch;
}

// Whether srun started this process as one of several. An allocation's shell has no step, and
// another number of tasks than a step in it.
bool in_slurm_step(const Variables& variables) {
  return variables.has("SLURM_PROCID") && variables.has("SLURM_STEP_ID");
}
const char* slurm_size(const Variables& variables) {
  return variables.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
}

// PMIx alone does not say how many ranks there are. Where srun is its server, Slurm does; under
// prterun, Slurm's variables would count the daemons.
std::optional<Launch> find_pmix(const Variables& variables) {
  if (!variables.has("PMIX_RANK")) return {};
  Launch launch;
  launch.kind = Launch::Kind::kMpi;
  launch.launcher = "PMIx";
  const char* const size = slurm_size(variables);
  const bool by_srun = variables.has("PMIX_NAMESPACE") &&
                       variables.text("PMIX_NAMESPACE").starts_with("slurm.pmix.") &&
                       variables.has(size);
  launch.world_size = by_srun ? variables.number(size, 1, kRanksMax) : 0;
  launch.rank = variables.number("PMIX_RANK", 0, (by_srun ? launch.world_size : kRanksMax) - 1);
  return launch;
}

std::optional<Launch> find_slurm(const Variables& variables) {
  const char* const size = slurm_size(variables);
  if (!in_slurm_step(variables) || !variables.has(size)) return {};
  const Names names = {"Slurm", "SLURM_PROCID", size, "SLURM_LOCALID", ""};
  Launch launch = read_ranks(variables, names, Launch::Kind::kMpi);
  if (launch.world_size == 1) return {};
  return launch;
}

std::optional<Launch> find_mpi(const Variables& variables) {
  for (const Names& names : {kOpenMpi, kPmi}) {
    if (!variables.has_any({names.rank, names.size})) continue;
    variables.need_all({names.rank, names.size});
    return read_ranks(variables, names, Launch::Kind::kMpi);
  }
  return find_pmix(variables);
}

std::string place_of(const Launch& launch) {
  return "rank " + std::to_string(launch.rank) +
         (launch.world_size == 0 ? "" : " of " + std::to_string(launch.world_size));
}

Launch choose(const Launch& torch, const std::optional<Launch>& mpi) {
  if (mpi &&
      (mpi->rank != torch.rank || (mpi->world_size != 0 && mpi->world_size != torch.world_size))) {
    refuse("RANK and WORLD_SIZE say " + place_of(torch) + ", but " + mpi->launcher + " says " +
               place_of(*mpi),
           "unset RANK and WORLD_SIZE, or choose torch or mpi by name");
  }
  return torch;
}

Launch find_any(const Variables& variables) {
  const std::optional<Launch> torch = find_torch(variables);
  // An srun or mpirun may have started torchrun, once for each machine.
  if (torch && torch->launcher == "torchrun") return *torch;
  const std::optional<Launch> mpi = find_mpi(variables);
  if (torch) return choose(*torch, mpi);
  if (mpi) return *mpi;
  if (const auto slurm = find_slurm(variables)) return *slurm;
  if (variables.has_any({"MASTER_ADDR", "MASTER_PORT"}))
    variables.need_all({kTorch.rank, kTorch.size, "MASTER_ADDR", "MASTER_PORT"});
  return {};
}
}  // namespace

Launch find_launch(const std::function<const char*(const char* name)>& variable,
                   LaunchChoice choice) {
  const Variables variables(variable);
  if (choice == LaunchChoice::kAuto) return find_any(variables);
  if (choice == LaunchChoice::kNone) return {};
  if (choice == LaunchChoice::kTorch) {
    variables.need_all({kTorch.rank, kTorch.size, "MASTER_ADDR", "MASTER_PORT"});
    return *find_torch(variables);
  }
  std::optional<Launch> mpi = find_mpi(variables);
  if (!mpi) mpi = find_slurm(variables);
  if (mpi) return *mpi;
  refuse("no variable of a launcher of MPI programs is set", "start the ranks with mpirun");
}

Launch find_launch(LaunchChoice choice) {
  return find_launch([](const char* name) { return static_cast<const char*>(std::getenv(name)); },
                     choice);
}

namespace {
[[noreturn]] void refuse_open_files(int error) {
  throw Error(Code::kIo,
              "no socket could be opened to reach the other ranks: " + base::errno_text(error) +
                  "; no ranks were joined; raise the limit on open files (ulimit -n)",
              error);
}

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;
Addresses master_addresses(const Launch& launch, int type, int& error) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = type;
  const std::string port = std::to_string(launch.master_port);
  error = ::getaddrinfo(launch.master_address.c_str(), port.c_str(), &hints, &found);
  return {error == 0 ? found : nullptr, ::freeaddrinfo};
}

// Calls use(socket, address) for each of the master's addresses until one call returns true.
template <class Use>
bool any_way_to_the_master(const Launch& launch, int type, const Use& use) {
  int error = 0;
  const Addresses all = master_addresses(launch, type, error);
  for (const addrinfo* at = all.get(); at != nullptr; at = at->ai_next) {
    const int socket = ::socket(at->ai_family, type | SOCK_CLOEXEC, 0);
    if (socket < 0 && (errno == EMFILE || errno == ENFILE)) refuse_open_files(errno);
    if (socket < 0) continue;
    const bool done = use(socket, *at);
    ::close(socket);
    if (done) return true;
  }
  return false;
}
}  // namespace

std::string master_fault(const Launch& launch) {
  int error = 0;
  const Addresses all = master_addresses(launch, SOCK_STREAM, error);
  if (error == EAI_SYSTEM) return base::errno_text(errno);
  return error == 0 ? "" : ::gai_strerror(error);
}

std::string own_address(const Launch& launch) {
  char text[NI_MAXHOST] = "";
  // Sends nothing: the kernel only chooses the route.
  any_way_to_the_master(launch, SOCK_DGRAM, [&](int socket, const addrinfo& to) {
    sockaddr_storage own = {};
    socklen_t size = sizeof(own);
    auto* const address = reinterpret_cast<sockaddr*>(&own);
    return ::connect(socket, to.ai_addr, to.ai_addrlen) == 0 &&
           ::getsockname(socket, address, &size) == 0 &&
           ::getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0;
  });
  return text;
}

bool master_answers(const Launch& launch) {
  return any_way_to_the_master(launch, SOCK_STREAM, [](int socket, const addrinfo& to) {
    const timeval limit = {.tv_sec = 1, .tv_usec = 0};
    ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    return ::connect(socket, to.ai_addr, to.ai_addrlen) == 0;
  });
}
}  // namespace headrace
