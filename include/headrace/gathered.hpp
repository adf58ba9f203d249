// SPDX-License-Identifier: Apache-2.0
// headrace/gathered.hpp: a group's whole parameters, on the device for as long as they are needed.
//
// Every rank owns one shard of every group, but a layer needs the whole group for a moment.
// Engine::gather() joins the shards and returns a Gathered. When that object is destroyed, it gives
// the device memory back. The rank's own shard stays in its tier.
#pragma once
#include <cstdint>

#include "headrace/device.hpp"
#include "headrace/tensor.hpp"

namespace headrace {
namespace engine {
class Leases;
}

// A move-only lease.
// Ownership: the engine owns the bytes, and the lease keeps them in place. Release every lease
//            before you close the engine: while a lease is open, close() throws and names the
//            group.
// Threads:   use a lease from one thread at a time. Two leases share no state.
class Gathered {
 public:
  Gathered() = default;
  Gathered(Gathered&& other) noexcept;
  Gathered& operator=(Gathered&& other) noexcept;
  ~Gathered();

  explicit operator bool() const noexcept { return leases_ != nullptr; }
  GroupId group() const noexcept { return group_; }

  // One parameter's elements, row-major, 256-byte aligned (512 for f32). On a GPU, this is a device
  // address, and work queued on the stream passed to gather() can read the bytes there. Do not
  // write to them: a write is either lost, or seen by other users of the bytes.
  DeviceSpan bytes(ParameterId id) const;
  // All parameters of `dtype` in this group as one buffer, each at Engine::section_offset_bytes().
  // An adapter points its tensors into this buffer.
  DeviceSpan section(DType dtype) const;
  // Gives the lease back now; the object is empty afterwards.
  void release() noexcept;

 private:
  friend class engine::Leases;
  Gathered(engine::Leases* leases, GroupId group, std::uint32_t slot, Stream stream)
      : leases_(leases), group_(group), slot_(slot), stream_(stream) {}
  engine::Leases* leases_ = nullptr;
  GroupId group_;
  std::uint32_t slot_ = 0;
  Stream stream_;
};
}  // namespace headrace
