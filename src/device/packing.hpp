// SPDX-License-Identifier: Apache-2.0
// packing.hpp: the seam for a device that packs values for other ranks in its own memory
// (kernels/packed_values.hpp).
#pragma once
#include "headrace/device.hpp"
#include "kernels/packed_values.hpp"

namespace headrace::device {
using kernels::Packing;
using kernels::PackWork;

// A second base class of the engine's own devices, as SpanUpdates is. Both calls copy `work`, whose
// arrays are device memory, valid until the stream has passed this point. Threads and errors: as in
// Device.
class ValuePacking {
 public:
  virtual void pack(Stream stream, const PackWork& work) = 0;
  virtual void unpack(Stream stream, const PackWork& work) = 0;

 protected:
  ~ValuePacking() = default;

 private:
  friend ValuePacking* packing_of(Device& device);
  // A device that forwards calls returns that of the other device, or null.
  virtual ValuePacking* packs() noexcept { return this; }
};

inline ValuePacking* packing_of(Device& device) {
  auto* const own = dynamic_cast<ValuePacking*>(&device);
  return own == nullptr ? nullptr : own->packs();
}

// Values that any device packs whose memory the CPU shares: there the calling thread does it.
class Packer {
 public:
  // Throws kUnsupported if the device cannot. It outlives this.
  explicit Packer(Device& device);
  void pack(Stream stream, const PackWork& work) const;
  void unpack(Stream stream, const PackWork& work) const;

 private:
  ValuePacking* const own_;  // null: the CPU
};
}  // namespace headrace::device
