// SPDX-License-Identifier: Apache-2.0
#include "collective/nccl_memory.hpp"

#include <utility>

#include "base/units.hpp"
#include "collective/launch_order.hpp"

namespace headrace::collective {
NcclMemory::NcclMemory(NcclCommunicator& communicator, const NcclLibrary& library, bool wanted,
                       std::function<void(const std::string& cause)> warn)
    : communicator_(communicator), library_(library), warn_(std::move(warn)), wanted_(wanted) {}

void NcclMemory::use(DeviceSpan memory) {
  if (!wanted_ || memory.size_bytes == 0) return;
  Registered made{memory.size_bytes, nullptr};
  const NcclResult result =
      communicator_.register_memory(memory.data, memory.size_bytes, &made.handle);
  if (result == kNcclEnded) return;  // so have all calls
  if (result == kNcclSuccess && made.handle != nullptr) {
    handles_[static_cast<const std::byte*>(memory.data)] = made;
    return;
  }
  // The others learn of it with the next call.
  stop(base::format_bytes(memory.size_bytes) + " could not be registered: " +
       (result == kNcclSuccess ? "it is switched off (NCCL_LOCAL_REGISTER)"
                               : library_.describe(result)));
}

void NcclMemory::forget(DeviceSpan memory) noexcept {
  const auto found = handles_.find(static_cast<const std::byte*>(memory.data));
  if (found == handles_.end()) return;
  void* const handle = found->second.handle;
  handles_.erase(found);
  deregister(handle);
}

bool NcclMemory::holds(const Transport::Piece& piece) const {
  const auto* const first = static_cast<const std::byte*>(piece.data);
  auto found = handles_.upper_bound(first);
  if (found == handles_.begin()) return false;
  --found;
  return first + piece.size_bytes <= found->first + found->second.bytes;
}

std::uint8_t NcclMemory::facts_of(const std::vector<Transport::Piece>& give,
                                  const std::vector<Transport::Piece>& take,
                                  std::uint32_t own) const {
  std::uint8_t facts = LaunchOrder::kRegistered | LaunchOrder::kUnregistered;
  const auto look = [&](const Transport::Piece& piece) {
    if (piece.size_bytes == 0) return;
    facts &= holds(piece) ? LaunchOrder::kRegistered : LaunchOrder::kUnregistered;
  };
  for (std::uint32_t r = 0; r < give.size(); ++r) {
    if (r == own) continue;
    look(give[r]);
    look(take[r]);
  }
  return facts;
}

void NcclMemory::give_up() {
  if (wanted_) stop("another rank passes memory that is not registered");
}

void NcclMemory::stop(const std::string& cause) noexcept {
  wanted_ = false;
  while (!handles_.empty()) {
    void* const handle = handles_.begin()->second.handle;
    handles_.erase(handles_.begin());
    deregister(handle);
  }
  warn_(cause);
}

// NCCL might take memory that it still knows for what lies there later.
void NcclMemory::deregister(void* handle) noexcept {
  const NcclResult result = communicator_.deregister(handle);
  if (!is_error(result) || result == kNcclEnded || !wanted_) return;
  stop("memory could not be deregistered: " + library_.describe(result));
}
}  // namespace headrace::collective
