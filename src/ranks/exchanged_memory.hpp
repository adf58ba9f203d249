// SPDX-License-Identifier: Apache-2.0
// exchanged_memory.hpp: the device memory of an engine from which and into which ranks exchange
// bytes, as its collective knows it.
#pragma once
#include <vector>

#include "headrace/collective.hpp"

namespace headrace::ranks {
// Destroy it before the memory is given back.
class ExchangedMemory {
 public:
  explicit ExchangedMemory(Collective& collective) : collective_(collective) {}
  ~ExchangedMemory() { forget(); }
  ExchangedMemory(const ExchangedMemory&) = delete;
  ExchangedMemory& operator=(const ExchangedMemory&) = delete;

  void use(DeviceSpan memory) {
    if (memory.size_bytes == 0 || collective_.world_size() == 1) return;
    used_.push_back(memory);
    collective_.use_memory(memory);
  }
  // While no collective call is pending.
  void forget() noexcept {
    for (const DeviceSpan& memory : used_) collective_.forget_memory(memory);
    used_.clear();
  }

 private:
  Collective& collective_;
  std::vector<DeviceSpan> used_;
};
}  // namespace headrace::ranks
