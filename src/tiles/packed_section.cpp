// SPDX-License-Identifier: Apache-2.0
#include "tiles/packed_section.hpp"

namespace headrace::tiles {
using partition::Wire;

PackedSection::PackedSection(const residency::Plan& plan, Device& device) : device_(device) {
  if (plan.wire.packed_parameters) packer_.emplace(device);
}

void PackedSection::begin(const partition::Section& section, std::byte* joined, std::byte* memory,
                          Stream stream) {
  dtype_ = section.dtype;
  joined_ = joined;
  memory_ = memory;
  stream_ = stream;
  if (free_.id != 0) device_.wait(stream, free_);
}

// Shards are whole scale blocks, so the bytes of those before add up.
DeviceSpan PackedSection::packed(const partition::Shard& shard) const {
  return {memory_ + base::packed_bytes(Wire::kParameterBits, shard.first_element),
          base::packed_bytes(Wire::kParameterBits, shard.elements)};
}

device::PackWork PackedSection::work(const partition::Shard& shard) const {
  device::PackWork work;
  work.packing = device::Packing::kInt8;
  work.dtype = dtype_;
  work.values = joined_ + shard.first_element * size_bytes(dtype_);
  work.elements = shard.elements;
  work.codes = static_cast<std::uint8_t*>(packed(shard).data);
  work.scales = work.codes + shard.elements;
  return work;
}
}  // namespace headrace::tiles
