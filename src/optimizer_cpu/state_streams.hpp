// SPDX-License-Identifier: Apache-2.0
// state_streams.hpp: what a parameter's optimizer state is made of: a list of streams, one element
// of each per element of the parameter. The weight is no part of it: it is read without its state,
// so it lies apart.
#pragma once
#include <cstdint>
#include <span>

#include "headrace/settings.hpp"
#include "headrace/tensor.hpp"
#include "optimizer_cpu/adamw.hpp"

namespace headrace::optimizer_cpu {
struct StateStream {
  const char* name;
  const char* codec;
  std::uint32_t bytes_per_element;
};

inline constexpr StateStream kSplitStreams[] = {
    {"residual", "u16", 2}, {"exp_avg", "f32", 4}, {"exp_avg_sq", "f32", 4}};
inline constexpr StateStream kMasterStreams[] = {
    {"master", "f32", 4}, {"exp_avg", "f32", 4}, {"exp_avg_sq", "f32", 4}};
inline constexpr StateStream kMomentStreams[] = {{"exp_avg", "f32", 4}, {"exp_avg_sq", "f32", 4}};

constexpr MasterKind master_kind(DType dtype, MasterLayout layout) {
  if (dtype == DType::kF32) return MasterKind::kWeightItself;
  return layout == MasterLayout::kSplit ? MasterKind::kSplitResidual : MasterKind::kF32;
}
constexpr std::span<const StateStream> state_streams(MasterKind kind) {
  if (kind == MasterKind::kSplitResidual) return kSplitStreams;
  if (kind == MasterKind::kF32) return kMasterStreams;
  return kMomentStreams;
}
}  // namespace headrace::optimizer_cpu
