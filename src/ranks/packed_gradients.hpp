// SPDX-License-Identifier: Apache-2.0
// packed_gradients.hpp: gradients on their way between ranks in 4 bits (qgZ: Wang et al., ZeRO++,
// 2023, section 3.3, of which one hop is made here): each rank packs the parts of the others and
// its own, and the owner of a part unpacks them one after the other and adds them.
//
// The random bits of an element depend on the seed, the parameter, its updates so far, the element,
// and the number of the term in the parameter's sum. They do not depend on the rank, so W ranks
// make the sums of W' ranks with the same micro-batches.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "device/packing.hpp"
#include "ranks/gradient_sums.hpp"

namespace headrace::ranks {
// A stretch of a rank's shard of a section, of at most Plan::exchange_elements.
struct ShardPart {
  const partition::Section& section;
  std::uint64_t first_element = 0;  // in the section
  std::uint64_t elements = 0;
};

// Calls each(index in the group, first, end) for the group's parameters that have elements in the
// part: those from `first` to `end` of the section.
template <class Each>
void each_parameter(const GradientParts& parts, const ShardPart& part, const Each& each) {
  const std::uint64_t begin = part.first_element, end = begin + part.elements;
  const std::vector<ParameterId>& group = parts.registry.group({part.section.group}).parameters;
  for (std::size_t i = 0; i < group.size(); ++i) {
    const partition::Parameter& parameter = parts.partition.parameters[group[i].index];
    if (&parts.partition.sections[parameter.section] != &part.section) continue;
    const std::uint64_t first = std::max(begin, parameter.first_element);
    const std::uint64_t last = std::min(end, parameter.first_element + parameter.elements);
    if (first < last) each(i, first, last);
  }
}

// Threads: as the bucket's.
class PackedGradients {
 public:
  // Throws kUnsupported if the plan packs gradients, and the device cannot. `parts` outlives this.
  explicit PackedGradients(const GradientParts& parts);
  bool used() const noexcept { return packer_.has_value(); }
  void use_memory(std::byte* memory) noexcept { memory_ = memory; }

  // What this rank gives to rank r.
  DeviceSpan given(std::uint32_t r, std::uint64_t elements) const;
  // Where the others' parts are taken to.
  std::byte* taken() const;
  // Packs what rank r gets. `section`: the section's gradients, as `dtype`. Parameters that this
  // rank has no gradient of are left out.
  void pack(std::uint32_t r, const ShardPart& part, const std::byte* section, DType dtype,
            Stream stream) const;
  // Of what rank r has given, as f32. Until the next call.
  const float* unpack(std::uint32_t r, std::uint64_t elements, Stream stream) const;

  // The ranks have added what they agreed on to the sums of the group's parameters.
  void note_added(GroupId group);
  void forget();

  static std::uint64_t bookkeeping_bytes(const partition::Partition& partition) noexcept {
    return partition.parameters.size() * sizeof(std::uint32_t);
  }

 private:
  std::uint64_t part_bytes() const;
  device::PackWork work(std::uint8_t* packed, std::uint64_t elements) const;

  const GradientParts& p_;
  std::optional<device::Packer> packer_;
  std::byte* memory_ = nullptr;
  std::vector<std::uint32_t> terms_;  // per parameter: of the step's sum so far
};
}  // namespace headrace::ranks
