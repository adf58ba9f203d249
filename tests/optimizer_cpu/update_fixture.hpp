// SPDX-License-Identifier: Apache-2.0
// update_fixture.hpp: the buffers of an update, with bytes around them that must stay as they are.
#pragma once
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/number_formats.hpp"
#include "optimizer_cpu/masters.hpp"
#include "optimizer_cpu/moment_codecs.hpp"
#include "optimizer_cpu/update.hpp"

namespace headrace::optimizer_cpu {
constexpr MasterKind kAllKinds[] = {MasterKind::kSplitResidual, MasterKind::kF32,
                                    MasterKind::kWeightItself, MasterKind::kF32OfF16};
constexpr DType kAllDTypes[] = {DType::kF32, DType::kBf16, DType::kF16};
constexpr Simd kAllSets[] = {Simd::kScalar, Simd::kAvx2, Simd::kAvx512};
constexpr OptimizerRule kAllRules[] = {OptimizerRule::kAdamW,   OptimizerRule::kAdam,
                                       OptimizerRule::kAdagrad, OptimizerRule::kLion,
                                       OptimizerRule::kSgd,     OptimizerRule::kSgdMomentum};
constexpr MomentCodec kAllCodecs[] = {MomentCodec::kF32, MomentCodec::kBf16, MomentCodec::kBlock8};

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

// What an update is of, beside its bytes.
struct UpdateCase {
  OptimizerRule rule = OptimizerRule::kAdamW;
  MasterKind kind = MasterKind::kSplitResidual;
  DType gradient_dtype = DType::kBf16;
  MomentCodec codec = MomentCodec::kF32;
  std::uint64_t elements = 0;
  std::uint64_t offset = 0;         // of every array, in elements
  std::uint64_t first_element = 0;  // in the parameter
};
inline std::string text_of(const UpdateCase& c) {
  return std::string(name_of(c.rule)) + " kind " + std::to_string(int(c.kind)) + " gradient " +
         name_of(c.gradient_dtype) + " codec " + name_of(c.codec) + " elements " +
         std::to_string(c.elements) + " offset " + std::to_string(c.offset) + " first " +
         std::to_string(c.first_element);
}

struct UpdateBuffers {
  explicit UpdateBuffers(const UpdateCase& of)
      : of(of),
        weight(of.elements, weight_bytes(of.kind), of.offset),
        master(of.elements, master_bytes(of.kind), of.offset),
        moment{{of.elements, moment_bytes(of.codec), of.offset},
               {of.elements, moment_bytes(of.codec), of.offset}},
        scale{{of.elements / kScaleElements + 1, 1, of.offset},
              {of.elements / kScaleElements + 1, 1, of.offset}},
        gradient(of.elements, size_bytes(of.gradient_dtype), of.offset) {}
  UpdateBuffers(std::uint64_t elements, MasterKind kind, DType gradient_dtype, std::uint64_t offset)
      : UpdateBuffers(UpdateCase{.kind = kind,
                                 .gradient_dtype = gradient_dtype,
                                 .elements = elements,
                                 .offset = offset}) {}

  UpdateSpan span() {
    UpdateSpan span;
    span.elements = of.elements;
    span.kind = of.kind;
    span.codec = of.codec;
    span.gradient_dtype = of.gradient_dtype;
    span.first_element = of.first_element;
    span.weight = weight.data();
    span.master = master_bytes(of.kind) == 0 ? nullptr : master.data();
    for (std::uint32_t k = 0; k < moments(arithmetic_of(of.rule)); ++k) {
      span.moment[k] = moment[k].data();
      if (has_scales(of.codec)) span.moment_scale[k] = static_cast<std::uint8_t*>(scale[k].data());
    }
    span.gradient = gradient.data();
    return span;
  }
  StoredMoment stored(std::uint32_t k) {
    return {.codec = of.codec,
            .square = is_square(arithmetic_of(of.rule), k),
            .index = k,
            .first_element = of.first_element,
            .data = moment[k].data(),
            .scale = static_cast<std::uint8_t*>(scale[k].data())};
  }
  float* f32_moment(std::uint32_t k) { return static_cast<float*>(moment[k].data()); }
  void set_gradient(std::uint64_t i, float value) {
    if (of.gradient_dtype == DType::kF32) {
      static_cast<float*>(gradient.data())[i] = value;
    } else {
      static_cast<std::uint16_t*>(gradient.data())[i] = of.gradient_dtype == DType::kBf16
                                                            ? kernels::f32_to_bf16(value)
                                                            : kernels::f32_to_f16(value);
    }
  }
  void set_master(std::uint64_t i, float value) {
    if (of.kind == MasterKind::kWeightItself) {
      static_cast<float*>(weight.data())[i] = value;
    } else if (of.kind == MasterKind::kSplitResidual) {
      const kernels::SplitMaster split = kernels::split_master(value);
      static_cast<std::uint16_t*>(weight.data())[i] = split.weight;
      static_cast<std::uint16_t*>(master.data())[i] = split.residual;
    } else {
      static_cast<std::uint16_t*>(weight.data())[i] =
          of.kind == MasterKind::kF32 ? kernels::f32_to_bf16(value) : kernels::f32_to_f16(value);
      static_cast<float*>(master.data())[i] = value;
    }
  }
  std::vector<float> masters() {
    std::vector<float> values(of.elements);
    read_master(of.kind, weight.data(), master.data(), of.elements, values.data());
    return values;
  }
  bool operator==(const UpdateBuffers& other) const {
    return weight == other.weight && master == other.master && moment[0] == other.moment[0] &&
           moment[1] == other.moment[1] && scale[0] == other.scale[0] &&
           scale[1] == other.scale[1] && gradient == other.gradient;
  }

  UpdateCase of;
  GuardedArray weight, master, moment[2], scale[2], gradient;
};
}  // namespace headrace::optimizer_cpu
