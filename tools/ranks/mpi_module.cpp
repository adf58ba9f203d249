// SPDX-License-Identifier: Apache-2.0
// mpi_module.cpp: ranks over MPI; compiled once for each MPI that is found, as a module of its own.
#include <chrono>
#include <headrace/mpi.hpp>
#include <optional>
#include <thread>
#include <vector>

#include "ranks/rank_module.hpp"

namespace headrace::tools {
namespace {
// Never destroyed: MPI_Abort() may call exit(), and MPI_Finalize() must not run within it.
std::optional<MpiSession>& session() {
  static auto* const of_this_process = new std::optional<MpiSession>;
  return *of_this_process;
}

bool is_alone() noexcept {
  int world_size = 0;
  return MPI_Comm_size(MPI_COMM_WORLD, &world_size) == MPI_SUCCESS && world_size == 1;
}

std::string failure_of(int code, const char* function) {
  return code == MPI_SUCCESS ? "" : std::string(function) + ": " + mpi_detail::text_of(code);
}

class RawMpi final : public RawCalls {
 public:
  RawMpi() {
    MPI_Comm_dup(MPI_COMM_WORLD, &communicator_);
    MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(communicator_, &rank_);
    int world_size = 0;
    MPI_Comm_size(communicator_, &world_size);
    bytes_.resize(static_cast<std::size_t>(world_size));
    at_.resize(bytes_.size());
  }
  ~RawMpi() override { MPI_Comm_free(&communicator_); }
  Names names() const noexcept override {
    return {"MPI_Allgather", "MPI_Alltoallv", "MPI_Allgather"};
  }
  std::string all_gather(void* whole, std::uint64_t piece_bytes) noexcept override {
    return failure_of(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, whole,
                                    static_cast<int>(piece_bytes), MPI_BYTE, communicator_),
                      "MPI_Allgather");
  }
  std::string all_to_all(const void* give, void* take,
                         std::uint64_t piece_bytes) noexcept override {
    int at = 0;
    for (std::size_t r = 0; r < bytes_.size(); ++r) {
      at_[r] = at;
      bytes_[r] = static_cast<int>(r) == rank_ ? 0 : static_cast<int>(piece_bytes);
      at += bytes_[r];
    }
    return failure_of(MPI_Alltoallv(give, bytes_.data(), at_.data(), MPI_BYTE, take, bytes_.data(),
                                    at_.data(), MPI_BYTE, communicator_),
                      "MPI_Alltoallv");
  }
  std::string exchange(const void* mine, void* all, std::uint64_t size_bytes) noexcept override {
    const int bytes = static_cast<int>(size_bytes);
    return failure_of(MPI_Allgather(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, communicator_),
                      "MPI_Allgather");
  }

 private:
  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0;
  std::vector<int> bytes_, at_;  // of an all_to_all, by rank
};

std::shared_ptr<Transport> join(const Launch&, const CollectiveOptions&,
                                RankModule::Failure& failure) noexcept {
  return without_exceptions(failure, [] {
    session().emplace(MPI_THREAD_MULTIPLE);
    // A rank that stands still has done so for its deadline before anyone aborts.
    return make_mpi_transport(MPI_COMM_WORLD, {.stand_still = std::chrono::seconds(2)});
  });
}

std::unique_ptr<RawCalls> make_raw_calls(const Launch&, RankModule::Failure& failure) noexcept {
  return without_exceptions(
      failure, []() -> std::unique_ptr<RawCalls> { return std::make_unique<RawMpi>(); });
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
  if (exit_code != 0 && !is_alone()) {
    let_the_others_end();
    MPI_Abort(MPI_COMM_WORLD, exit_code);  // does not return
  }
  session().reset();
}
}  // namespace
}  // namespace headrace::tools

extern "C" {
extern const headrace::tools::RankModule headrace_rank_module;
const headrace::tools::RankModule headrace_rank_module = {
    headrace::tools::join, headrace::tools::make_raw_calls, headrace::tools::leave};

int headrace_rank_module_version(int* version);
int headrace_rank_module_version(int* version) {
  int major = 0, minor = 0;
  const int code = MPI_Get_version(&major, &minor);
  *version = 100 * major + 10 * minor;
  return code;
}
}
