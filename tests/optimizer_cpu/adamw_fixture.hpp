// SPDX-License-Identifier: Apache-2.0
// adamw_fixture.hpp: the buffers of an update, with bytes around them that must stay as they are.
#pragma once
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/number_formats.hpp"
#include "optimizer_cpu/adamw.hpp"
#include "optimizer_cpu/adamw_targets.hpp"

namespace headrace::optimizer_cpu {
constexpr MasterKind kAllKinds[] = {MasterKind::kSplitResidual, MasterKind::kF32,
                                    MasterKind::kWeightItself};
constexpr DType kAllDTypes[] = {DType::kF32, DType::kBf16};
constexpr InstructionSet kAllSets[] = {InstructionSet::kScalar, InstructionSet::kAvx2,
                                       InstructionSet::kAvx512};

// One array at `offset` elements past a 64-byte boundary, between two stretches of 0x5a.
class GuardedArray {
 public:
  GuardedArray(std::uint64_t elements, std::uint64_t element_bytes, std::uint64_t offset)
      : begin_(kGuard + offset * element_bytes),
        bytes_(begin_ + elements * element_bytes + kGuard + 64, 0x5a) {}
  void* data() { return aligned() + begin_; }
  bool operator==(const GuardedArray& other) const {
    return std::memcmp(aligned(), other.aligned(), used()) == 0;
  }
  // The copy lands elsewhere, so its aligned start is copied onto, not its vector.
  GuardedArray(const GuardedArray& other) : begin_(other.begin_), bytes_(other.bytes_) {
    std::memcpy(aligned(), other.aligned(), used());
  }

 private:
  static constexpr std::uint64_t kGuard = 128;
  std::uint64_t used() const { return bytes_.size() - 64; }
  unsigned char* aligned() const {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
    return const_cast<unsigned char*>(bytes_.data()) + ((address + 63) / 64 * 64 - address);
  }
  std::uint64_t begin_;
  std::vector<unsigned char> bytes_;
};

struct UpdateBuffers {
  UpdateBuffers(std::uint64_t elements, MasterKind kind, DType gradient_dtype, std::uint64_t offset)
      : elements(elements),
        kind(kind),
        gradient_dtype(gradient_dtype),
        weight(elements, kind == MasterKind::kWeightItself ? 4 : 2, offset),
        master(elements, kind == MasterKind::kF32 ? 4 : 2, offset),
        exp_avg(elements, 4, offset),
        exp_avg_sq(elements, 4, offset),
        gradient(elements, size_bytes(gradient_dtype), offset) {}

  AdamWSpan span() {
    return {.elements = elements,
            .kind = kind,
            .weight = weight.data(),
            .master = kind == MasterKind::kWeightItself ? nullptr : master.data(),
            .exp_avg = static_cast<float*>(exp_avg.data()),
            .exp_avg_sq = static_cast<float*>(exp_avg_sq.data()),
            .gradient = gradient.data(),
            .gradient_dtype = gradient_dtype};
  }
  void set_gradient(std::uint64_t i, float value) {
    if (gradient_dtype == DType::kF32) {
      static_cast<float*>(gradient.data())[i] = value;
    } else {
      static_cast<std::uint16_t*>(gradient.data())[i] = base::f32_to_bf16(value);
    }
  }
  void set_master(std::uint64_t i, float value) {
    if (kind == MasterKind::kWeightItself) {
      static_cast<float*>(weight.data())[i] = value;
    } else if (kind == MasterKind::kF32) {
      static_cast<std::uint16_t*>(weight.data())[i] = base::f32_to_bf16(value);
      static_cast<float*>(master.data())[i] = value;
    } else {
      const base::SplitMaster split = base::split_master(value);
      static_cast<std::uint16_t*>(weight.data())[i] = split.weight;
      static_cast<std::uint16_t*>(master.data())[i] = split.residual;
    }
  }
  bool operator==(const UpdateBuffers& other) const {
    return weight == other.weight && master == other.master && exp_avg == other.exp_avg &&
           exp_avg_sq == other.exp_avg_sq && gradient == other.gradient;
  }

  std::uint64_t elements;
  MasterKind kind;
  DType gradient_dtype;
  GuardedArray weight, master, exp_avg, exp_avg_sq, gradient;
};
}  // namespace headrace::optimizer_cpu
