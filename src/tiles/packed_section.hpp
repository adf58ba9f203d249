// SPDX-License-Identifier: Apache-2.0
// packed_section.hpp: a section's parameters on their way between ranks in 8 bits (qwZ: Wang et
// al., ZeRO++, 2023, section 3.1): each rank packs its shard, and unpacks those that it takes, its
// own too, so that all ranks compute with the same values.
//
// The packed shards lie one after the other, in rank order. Only one section at a time has room.
#pragma once
#include <cstddef>
#include <optional>

#include "device/packing.hpp"
#include "headrace/device.hpp"
#include "partition/partition.hpp"
#include "residency/plan.hpp"

namespace headrace::tiles {
// Threads: the one that joins.
class PackedSection {
 public:
  // Throws kUnsupported if the plan packs parameters, and the device cannot.
  PackedSection(const residency::Plan& plan, Device& device);

  // `memory`: of the plan's packed_bytes. Work on `stream` waits until the section before has left
  // it. `joined`: the section's first element in a gather slot.
  void begin(const partition::Section& section, std::byte* joined, std::byte* memory,
             Stream stream);
  DeviceSpan packed(const partition::Shard& shard) const;
  void pack(const partition::Shard& shard) const { packer_->pack(stream_, work(shard)); }
  void unpack(const partition::Shard& shard) const { packer_->unpack(stream_, work(shard)); }
  void end() { free_ = device_.record(stream_); }

 private:
  device::PackWork work(const partition::Shard& shard) const;

  Device& device_;
  std::optional<device::Packer> packer_;
  DType dtype_ = DType::kF32;
  std::byte* joined_ = nullptr;
  std::byte* memory_ = nullptr;
  Stream stream_;
  Event free_;  // the last section's unpacking
};
}  // namespace headrace::tiles
