// SPDX-License-Identifier: Apache-2.0
// cases.hpp: the cases that are measured: a rule over streams of some precisions, by one
// implementation; and the bytes of those streams that a pass has to move.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "optimizer_cpu/state_streams.hpp"
#include "optimizer_cpu/update.hpp"

namespace headrace::tools {
using optimizer_cpu::MasterKind;

// By the words of options and reports.
inline const std::vector<std::pair<std::string, OptimizerRule>> kRules = {
    {"adamw", OptimizerRule::kAdamW}, {"adam", OptimizerRule::kAdam},
    {"lion", OptimizerRule::kLion},   {"adagrad", OptimizerRule::kAdagrad},
    {"sgd", OptimizerRule::kSgd},     {"sgd_momentum", OptimizerRule::kSgdMomentum}};
inline const std::vector<std::pair<std::string, MomentCodec>> kMomentCodecs = {
    {name_of(MomentCodec::kF32), MomentCodec::kF32},
    {name_of(MomentCodec::kBf16), MomentCodec::kBf16},
    {name_of(MomentCodec::kBlock8), MomentCodec::kBlock8}};
inline const std::vector<std::pair<std::string, MasterKind>> kWeights = {
    {"bf16-split", MasterKind::kSplitResidual},
    {"bf16", MasterKind::kF32},
    {"fp16", MasterKind::kF32OfF16},
    {"f32", MasterKind::kWeightItself}};
inline const std::vector<std::pair<std::string, DType>> kGradients = {
    {"bf16", DType::kBf16}, {"fp16", DType::kF16}, {"f32", DType::kF32}};

template <class T>
const std::string& word_of(const std::vector<std::pair<std::string, T>>& words, T value) {
  for (const auto& [word, meaning] : words) {
    if (meaning == value) return word;
  }
  return words.front().first;
}

struct Case {
  OptimizerRule rule = OptimizerRule::kAdamW;
  MomentCodec moments = MomentCodec::kF32;  // of a rule that has some
  MasterKind weight = MasterKind::kSplitResidual;
  DType gradient = DType::kBf16;
  Simd simd = Simd::kScalar;
  std::uint32_t threads = 1;
  // The old checksums of weight and state are verified and new ones computed, inside the pass.
  bool checksums = false;
  friend bool operator==(const Case&, const Case&) = default;

  optimizer_cpu::Arithmetic arithmetic() const { return optimizer_cpu::arithmetic_of(rule); }
  bool has_moments() const { return optimizer_cpu::moments(arithmetic()) > 0; }
};

enum class Role : std::uint8_t { kWeight, kMaster, kMoment, kScale, kGradient };
// An array over all parameters. Cases whose streams mean the same share it.
struct Stream {
  Role role = Role::kWeight;
  MasterKind weight = {};             // kWeight, kMaster
  MomentCodec codec = {};             // kMoment, kScale
  bool square = false;                // kMoment, kScale: of a sum of squares
  DType gradient = {};                // kGradient
  std::uint32_t bytes_per_scale = 0;  // of kScaleElements elements
  friend bool operator==(const Stream&, const Stream&) = default;

  std::uint64_t bytes(std::uint64_t elements) const {
    return elements / base::kScaleElements * bytes_per_scale;
  }
};
// A weight, what a record may hold, a gradient.
inline constexpr std::size_t kMostStreams = optimizer_cpu::kMaxStateStreams + 2;
// Weight, master, then each moment with its scales, last the gradient.
std::vector<Stream> streams_of(const Case& of);

// Of one parameter. A bf16 or fp16 weight beside an f32 master is only written, a gradient only
// read.
struct Moved {
  double read = 0, written = 0;
  double all() const { return read + written; }
};
Moved moved_per_parameter(const Case& of);

// "adamw, f32 moments, bf16-split weight, bf16 gradient, avx512, 2 threads, checksums".
std::string text_of(const Case& of);
// The name of its moments in a table: "f32"; "-" if the rule has none.
std::string moments_text(const Case& of);
}  // namespace headrace::tools
