// SPDX-License-Identifier: Apache-2.0
#include "engine/stretch.hpp"

#include <cstring>

#include "kernels/random_bits.hpp"
#include "optimizer_cpu/masters.hpp"

namespace headrace::engine {
using optimizer_cpu::MasterKind;

std::byte* Stretch::weight() const noexcept { return at.weight_at(first); }

std::byte* Stretch::master() const noexcept {
  return at.master == nullptr ? nullptr : at.master + first * master_bytes(at.kind);
}

optimizer_cpu::StoredMoment Stretch::moment(Content content) const noexcept {
  return at.stored_moment(content == Content::kExpAvg ? 0 : 1, first);
}

const std::byte* Stretch::stored(Content content) const noexcept {
  if (content == Content::kWeight) return weight();
  if (content == Content::kMaster) {
    if (at.kind == MasterKind::kWeightItself) return weight();
    return at.kind == MasterKind::kSplitResidual ? nullptr : master();
  }
  if (at.codec != MomentCodec::kF32) return nullptr;
  return static_cast<const std::byte*>(moment(content).data);
}

std::byte* Stretch::to_fill(Content content) const noexcept {
  if (content == Content::kMaster && at.kind != MasterKind::kWeightItself) return nullptr;
  return const_cast<std::byte*>(stored(content));
}

void Stretch::read(Content content, std::span<std::byte> out) const noexcept {
  auto* const values = reinterpret_cast<float*>(out.data());
  switch (content) {
    case Content::kWeight:
      std::memcpy(out.data(), weight(), out.size());
      return;
    case Content::kMaster:
      optimizer_cpu::read_master(at.kind, weight(), master(), elements, values);
      return;
    case Content::kExpAvg:
    case Content::kExpAvgSq:
      decode_moment(moment(content), elements, values);
      return;
  }
}

bool Stretch::replace(Content content, std::span<const std::byte> in) const noexcept {
  const auto* const values = reinterpret_cast<const float*>(in.data());
  if (content == Content::kWeight && !at.has_state) {
    const bool changed = std::memcmp(weight(), in.data(), in.size()) != 0;
    std::memcpy(weight(), in.data(), in.size());
    return changed;
  }
  if (content == Content::kWeight)
    return optimizer_cpu::replace_weights(at.kind, in.data(), weight(), master(), elements);
  if (content == Content::kMaster)
    return optimizer_cpu::replace_masters(at.kind, values, weight(), master(), elements);
  const optimizer_cpu::StoredMoment stored = moment(content);
  if (at.codec == MomentCodec::kF32) {
    if (std::memcmp(stored.data, in.data(), in.size()) == 0) return false;
    std::memcpy(stored.data, in.data(), in.size());
  } else {
    encode_moment(stored, kernels::kLoadKey, values, elements);
  }
  return true;
}
}  // namespace headrace::engine
