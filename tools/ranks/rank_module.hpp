// SPDX-License-Identifier: Apache-2.0
// rank_module.hpp: the interface of a module beside a program: the ranks of one MPI, or of torch's
// Gloo. So a program needs neither where none is used.
//
// A program may hold another C++ runtime than a module: no exception passes between them.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "headrace/error.hpp"
#include "headrace/launch.hpp"
#include "headrace/transport.hpp"

namespace headrace::tools {
// The calls of MPI, or of torch, that do what Collective's do, made as they are: a measurement
// compares with them. Each blocks until it is done, and returns what failed, "" if nothing did.
// Threads: one at a time.
class RawCalls {
 public:
  virtual ~RawCalls() = default;
  // "MPI_Allgather": of all_gather(), all_to_all() and exchange().
  struct Names {
    const char *all_gather, *all_to_all, *exchange;
  };
  virtual Names names() const noexcept = 0;
  // `whole` has world_size pieces, this rank's own in its place.
  virtual std::string all_gather(void* whole, std::uint64_t piece_bytes) noexcept = 0;
  // A piece for, and from, each of the other ranks, one behind the other.
  virtual std::string all_to_all(const void* give, void* take,
                                 std::uint64_t piece_bytes) noexcept = 0;
  // all[r * size_bytes] becomes rank r's `mine`, apart from it.
  virtual std::string exchange(const void* mine, void* all, std::uint64_t size_bytes) noexcept = 0;
};

struct RankModule {
  static constexpr const char* kSymbol = "headrace_rank_module";
  // An int(int*): 310 for MPI 3.1, 21100 for torch 2.11.0.
  static constexpr const char* kVersionSymbol = "headrace_rank_module_version";
  struct Failure {
    Code code = Code::kOk;
    int sys_errno = 0;
    std::string text = {};
  };
  // Blocks until all ranks of the launch have come: over Gloo for the deadline of `ranks`, with its
  // warnings, unless `ranks.interrupted`. Null: `failure` says why.
  std::shared_ptr<Transport> (*join)(const Launch& launch, const CollectiveOptions& ranks,
                                     Failure& failure) noexcept = nullptr;
  // Collective, once join() is done. Gone before the transport is.
  std::unique_ptr<RawCalls> (*make_raw_calls)(const Launch& launch,
                                              Failure& failure) noexcept = nullptr;
  // Exit code 0 after a clean end of all transports; else an MPI job ends with it here.
  void (*leave)(int exit_code) noexcept = nullptr;
};

// Returns the result of make(), or null and the error that it throws.
template <class Make>
auto without_exceptions(RankModule::Failure& failure, const Make& make) noexcept
    -> decltype(make()) {
  try {
    return make();
  } catch (const Error& error) {
    failure = {error.code(), error.sys_errno(), error.what()};
  } catch (const std::exception& error) {
    failure = {Code::kIo, 0, std::string(error.what()) + "; no ranks were joined"};
  }
  return nullptr;
}
}  // namespace headrace::tools
