// SPDX-License-Identifier: Apache-2.0
// nccl_memory.hpp: the memory that a rank has registered with NCCL, which then sends from it and
// receives into it without buffers of its own.
//
// NCCL allows this for a call only if all ranks pass registered memory, or none does. Each rank
// says which of the two it does when it comes to a call (launch_order.hpp). Example: NCCL on rank 1
// has refused to register its memory:
//
//   rank 0  comes with registered pieces       rank 1  comes with others
//   both    neither is so on every rank: they deregister all, and come to the call once more
//   both    launch it, and go on without
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "collective/nccl_communicator.hpp"
#include "headrace/transport.hpp"

namespace headrace::collective {
// Threads: one at a time, and never while a call is being issued.
class NcclMemory {
 public:
  // `wanted`: NcclOptions::register_memory. `warn` gets the cause if this rank gives it up.
  NcclMemory(NcclCommunicator& communicator, const NcclLibrary& library, bool wanted,
             std::function<void(const std::string& cause)> warn);
  NcclMemory(const NcclMemory&) = delete;
  NcclMemory& operator=(const NcclMemory&) = delete;

  // While no call is pending.
  void use(DeviceSpan memory);
  void forget(DeviceSpan memory) noexcept;
  // Of LaunchOrder::Facts: kRegistered and kUnregistered. A rank's own piece is not sent.
  std::uint8_t facts_of(const std::vector<Transport::Piece>& give,
                        const std::vector<Transport::Piece>& take, std::uint32_t own) const;
  // For good: once a call came that is mixed. While nothing that was issued is pending.
  void give_up();

 private:
  struct Registered {
    std::uint64_t bytes = 0;
    void* handle = nullptr;
  };
  bool holds(const Transport::Piece& piece) const;
  void deregister(void* handle) noexcept;
  void stop(const std::string& cause) noexcept;

  NcclCommunicator& communicator_;
  const NcclLibrary& library_;
  const std::function<void(const std::string&)> warn_;
  bool wanted_;
  std::map<const std::byte*, Registered> handles_;  // by address
};
}  // namespace headrace::collective
