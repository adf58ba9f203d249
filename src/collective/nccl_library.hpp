// SPDX-License-Identifier: Apache-2.0
// nccl_library.hpp: NCCL's functions, found at run time. The declarations are our own, as much as
// is used; names and numbers are those of nccl.h.
#pragma once
#include <climits>
#include <cstddef>
#include <cstdint>
#include <string>

#include "headrace/nccl.hpp"

namespace headrace::collective {
enum NcclResult : int {
  kNcclEnded = -1,  // our own: of a communicator that this rank has given up
  kNcclSuccess = 0,
  kNcclInvalidUsage = 5,
  kNcclRemoteError = 6,
  kNcclInProgress = 7
};
inline constexpr int kNcclInt8 = 0;
constexpr bool is_error(NcclResult result) {
  return result != kNcclSuccess && result != kNcclInProgress;
}

using NcclCommHandle = void*;
using NcclStream = void*;
static_assert(sizeof(NcclId) == 128);

// ncclConfig_t as NCCL 2.17 has it. Newer ones take it by its size and version, and fill in
// defaults for what they have added.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21700;
  int blocking = 0;
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
};
static_assert(sizeof(NcclConfig) == 40);

struct NcclLibrary {
  NcclResult (*get_version)(int* version);
  NcclResult (*get_unique_id)(NcclId* id);
  NcclResult (*comm_init_rank_config)(NcclCommHandle* comm, int ranks, NcclId id, int rank,
                                      NcclConfig* config);
  NcclResult (*comm_get_async_error)(NcclCommHandle comm, NcclResult* error);
  NcclResult (*comm_cu_device)(NcclCommHandle comm, int* ordinal);
  NcclResult (*comm_abort)(NcclCommHandle comm);
  NcclResult (*comm_finalize)(NcclCommHandle comm);
  NcclResult (*comm_destroy)(NcclCommHandle comm);
  NcclResult (*all_gather)(const void* source, void* target, std::size_t count, int type,
                           NcclCommHandle comm, NcclStream stream);
  NcclResult (*broadcast)(const void* source, void* target, std::size_t count, int type, int root,
                          NcclCommHandle comm, NcclStream stream);
  NcclResult (*send)(const void* source, std::size_t count, int type, int peer, NcclCommHandle comm,
                     NcclStream stream);
  NcclResult (*recv)(void* target, std::size_t count, int type, int peer, NcclCommHandle comm,
                     NcclStream stream);
  // Null before NCCL 2.19.
  NcclResult (*comm_register)(NcclCommHandle comm, void* data, std::size_t bytes, void** handle);
  NcclResult (*comm_deregister)(NcclCommHandle comm, void* handle);
  NcclResult (*group_start)();
  NcclResult (*group_end)();
  const char* (*get_error_string)(NcclResult result);
  const char* (*get_last_error)(NcclCommHandle comm);

  bool registers_memory() const noexcept { return comm_register != nullptr; }
  // "unhandled cuda error (Cuda failure 'out of memory')".
  std::string describe(NcclResult result) const;
};

// Loads `path`, or libnccl.so.2 where that is empty. It stays loaded: its threads may outlive every
// communicator. Throws kUnsupported.
NcclLibrary load_nccl(const std::string& path);
}  // namespace headrace::collective
