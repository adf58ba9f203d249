// SPDX-License-Identifier: Apache-2.0
#include "ranks/packed_gradients.hpp"

#include <algorithm>

namespace headrace::ranks {
using base::packed_bytes;
using partition::Wire;

PackedGradients::PackedGradients(const GradientParts& parts) : p_(parts) {
  if (!p_.plan.wire.packed_gradients) return;
  packer_.emplace(p_.device);
  terms_.resize(p_.partition.parameters.size());
}

std::uint64_t PackedGradients::part_bytes() const {
  return packed_bytes(Wire::kGradientBits, p_.plan.exchange_elements);
}

DeviceSpan PackedGradients::given(std::uint32_t r, std::uint64_t elements) const {
  return {memory_ + r * part_bytes(), packed_bytes(Wire::kGradientBits, elements)};
}

std::byte* PackedGradients::taken() const {
  return memory_ + p_.partition.world_size * part_bytes();
}

// Parts are whole scale blocks.
device::PackWork PackedGradients::work(std::uint8_t* packed, std::uint64_t elements) const {
  device::PackWork work;
  work.packing = device::Packing::kInt4;
  work.elements = elements;
  work.codes = packed;
  work.scales = packed + kernels::code_bytes(work.packing, elements);
  return work;
}

void PackedGradients::pack(std::uint32_t r, const ShardPart& part, const std::byte* section,
                           DType dtype, Stream stream) const {
  const std::uint32_t own = p_.partition.rank;
  const device::PackWork whole =
      work(static_cast<std::uint8_t*>(given(r, part.elements).data), part.elements);
  const std::vector<ParameterId>& group = p_.registry.group({part.section.group}).parameters;
  each_parameter(p_, part, [&](std::size_t i, std::uint64_t first, std::uint64_t end) {
    if (!p_.ranks.present(own, i)) return;
    const std::uint32_t parameter = group[i].index;
    const std::uint64_t in_part = first - part.first_element;
    device::PackWork one = whole;
    one.dtype = dtype;
    one.values = const_cast<std::byte*>(section) + first * size_bytes(dtype);
    one.elements = end - first;
    one.codes += kernels::code_bytes(one.packing, in_part);
    one.scales += in_part / base::kScaleElements;
    one.first_element = first - p_.partition.parameters[parameter].first_element;
    one.random_key = kernels::packing_key(p_.rounding_seed, parameter, p_.update_counts[parameter],
                                          terms_[parameter] + p_.ranks.present_below(own, i));
    packer_->pack(stream, one);
  });
}

const float* PackedGradients::unpack(std::uint32_t r, std::uint64_t elements, Stream stream) const {
  const std::uint32_t own = p_.partition.rank;
  std::byte* const packed =
      r == own ? static_cast<std::byte*>(given(own, elements).data)
               : taken() + (r < own ? r : r - 1) * packed_bytes(Wire::kGradientBits, elements);
  std::byte* const values = taken() + (p_.partition.world_size - 1) * part_bytes();
  device::PackWork one = work(reinterpret_cast<std::uint8_t*>(packed), elements);
  one.dtype = DType::kF32;
  one.values = values;
  packer_->unpack(stream, one);
  return reinterpret_cast<const float*>(values);
}

void PackedGradients::note_added(GroupId group) {
  if (!used()) return;
  const std::vector<ParameterId>& parameters = p_.registry.group(group).parameters;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    terms_[parameters[i].index] += p_.ranks.present_below(p_.partition.world_size, i);
}

void PackedGradients::forget() { std::ranges::fill(terms_, 0); }
}  // namespace headrace::ranks
