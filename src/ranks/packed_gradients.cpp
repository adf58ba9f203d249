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
  const std::uint64_t begin = part.first_element, end = begin + part.elements;
  const device::PackWork whole =
      work(static_cast<std::uint8_t*>(given(r, part.elements).data), part.elements);
  const std::vector<ParameterId>& group = p_.registry.group({part.section.group}).parameters;
  for (std::size_t i = 0; i < group.size(); ++i) {
    const partition::Parameter& parameter = p_.partition.parameters[group[i].index];
    if (&p_.partition.sections[parameter.section] != &part.section) continue;
    const std::uint64_t first = std::max(begin, parameter.first_element);
    const std::uint64_t last = std::min(end, parameter.first_element + parameter.elements);
    if (first >= last || !p_.ranks.present(own, i)) continue;
    std::uint32_t term = terms_[group[i].index];
    for (std::uint32_t before = 0; before < own; ++before)
      term += p_.ranks.present(before, i) ? 1 : 0;
    device::PackWork one = whole;
    one.dtype = dtype;
    one.values = const_cast<std::byte*>(section) + first * size_bytes(dtype);
    one.elements = last - first;
    one.codes += kernels::code_bytes(one.packing, first - begin);
    one.scales += (first - begin) / base::kScaleElements;
    one.first_element = first - parameter.first_element;
    one.random_key = kernels::packing_key(p_.rounding_seed, group[i].index,
                                          p_.update_counts[group[i].index], term);
    packer_->pack(stream, one);
  }
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
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    for (std::uint32_t r = 0; r < p_.partition.world_size; ++r)
      terms_[parameters[i].index] += p_.ranks.present(r, i) ? 1 : 0;
  }
}

void PackedGradients::forget() { std::ranges::fill(terms_, 0); }
}  // namespace headrace::ranks
