// SPDX-License-Identifier: Apache-2.0
// headrace/mpi/requests.hpp: the sends and receives that MPI is carrying out for one rank.
#pragma once
#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace headrace {
namespace mpi_detail {
// In progress in MPI.
struct Operation {
  enum class What { kHear, kTell, kGive, kTake } what;
  std::uint32_t peer = 0;
  std::size_t lane = 0;
  std::uint64_t size_bytes = 0;
  bool is_small = false, cancelled = false, over = false;
  std::unique_ptr<std::byte[]> own = nullptr;  // the memory that MPI uses; null: the program's
};
using What = Operation::What;

inline std::string text_of(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
    return "MPI error " + std::to_string(code);
  return {text, static_cast<std::size_t>(length)};
}

// For one thread only.
class Requests {
 public:
  // These return whether MPI has begun it; if not, failure() says why.
  bool receive(Operation operation, void* data, std::uint64_t size_bytes, int source,
               MPI_Comm communicator);
  bool send(decltype(&MPI_Isend) how, Operation operation, const void* data,
            std::uint64_t size_bytes, MPI_Comm communicator);
  // The first failure, without that of an operation, which its end has; "" if there is none.
  const std::string& failure() const noexcept { return failure_; }
  // ended(operation, status, code) for each that has ended, which may begin others. Returns whether
  // any has.
  template <class Ended>
  bool test(const Ended& ended);
  // MPI either cancels an operation, or it ends.
  template <class Chosen>
  void cancel(const Chosen& chosen);
  // The first that uses the program's memory; null: none does.
  const Operation* in_programs_memory() const noexcept;
  bool empty() const noexcept { return requests_.empty(); }
  // Memory that MPI still uses outlives this: the rank is gone, or has not received its bytes.
  void leave_to_mpi();

 private:
  bool started(const char* function, int code, MPI_Request request, Operation operation);
  void remove_ended();

  std::vector<MPI_Request> requests_;
  std::vector<Operation> operations_;  // of requests_
  std::vector<int> ended_;
  std::vector<MPI_Status> statuses_;
  std::string failure_;
};

inline bool Requests::receive(Operation operation, void* data, std::uint64_t size_bytes, int source,
                              MPI_Comm communicator) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int code =
      MPI_Irecv(data, static_cast<int>(size_bytes), MPI_BYTE, source, 0, communicator, &request);
  return started("MPI_Irecv", code, request, std::move(operation));
}

inline bool Requests::send(decltype(&MPI_Isend) how, Operation operation, const void* data,
                           std::uint64_t size_bytes, MPI_Comm communicator) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = how(data, static_cast<int>(size_bytes), MPI_BYTE,
                       static_cast<int>(operation.peer), 0, communicator, &request);
  return started("MPI_Isend", code, request, std::move(operation));
}

inline bool Requests::started(const char* function, int code, MPI_Request request,
                              Operation operation) {
  if (code != MPI_SUCCESS) {
    if (failure_.empty()) failure_ = std::string(function) + ": " + text_of(code);
    return false;
  }
  requests_.push_back(request);
  operations_.push_back(std::move(operation));
  return true;
}

template <class Ended>
bool Requests::test(const Ended& ended) {
  ended_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                ended_.data(), statuses_.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS && failure_.empty())
    failure_ = "MPI_Testsome: " + text_of(code);
  if (count == MPI_UNDEFINED || count <= 0) return false;
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(ended_[static_cast<std::size_t>(i)]);
    const MPI_Status& status = statuses_[static_cast<std::size_t>(i)];
    operations_[at].over = true;
    const Operation operation = std::move(operations_[at]);
    ended(operation, status, code == MPI_ERR_IN_STATUS ? status.MPI_ERROR : MPI_SUCCESS);
  }
  remove_ended();
  return true;
}

inline void Requests::remove_ended() {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (operations_[i].over) continue;
    if (kept != i) {
      requests_[kept] = requests_[i];
      operations_[kept] = std::move(operations_[i]);
    }
    ++kept;
  }
  requests_.resize(kept);
  operations_.erase(operations_.begin() + static_cast<std::ptrdiff_t>(kept), operations_.end());
}

template <class Chosen>
void Requests::cancel(const Chosen& chosen) {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (operations_[i].cancelled || !chosen(operations_[i])) continue;
    operations_[i].cancelled = true;
    MPI_Cancel(&requests_[i]);
  }
}

inline const Operation* Requests::in_programs_memory() const noexcept {
  for (const Operation& operation : operations_) {
    if (operation.own == nullptr) return &operation;
  }
  return nullptr;
}

inline void Requests::leave_to_mpi() {
  static std::mutex mutex;
  static auto& kept = *new std::vector<Operation>;
  const std::lock_guard lock(mutex);
  std::ranges::move(operations_, std::back_inserter(kept));
}
}  // namespace mpi_detail
}  // namespace headrace
