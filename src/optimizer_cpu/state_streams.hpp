// SPDX-License-Identifier: Apache-2.0
// state_streams.hpp: the streams that make up a parameter's optimizer state. The weight is not one
// of them: it is read without the state, so it is stored separately.
#pragma once
#include <cstdint>
#include <span>

#include "headrace/settings.hpp"
#include "headrace/tensor.hpp"
#include "optimizer_cpu/update.hpp"

namespace headrace::optimizer_cpu {
struct StateStream {
  const char* name = "";              // torch.optim's name if torch has the stream
  const char* codec = "";             // "u16", "f32", "bf16", "e4m3", "e5m3", "e8m0"
  std::uint32_t bytes_per_scale = 0;  // of kScaleElements elements
};
inline constexpr std::uint32_t kMaxStateStreams = 5;  // a master, two moments, a scale for each

// In the order of a record: the master, if it is a stream, then each moment and its scales, if any.
struct StateStreams {
  StateStream stream[kMaxStateStreams];
  std::uint32_t count = 0;
  std::uint32_t first_moment = 0;        // 0: the master is not a stream
  std::uint32_t streams_per_moment = 1;  // 2 with scales

  constexpr std::span<const StateStream> all() const& { return {stream, count}; }
  // the span would outlive its streams
  constexpr std::span<const StateStream> all() const&& = delete;
};

constexpr MasterKind master_kind(DType dtype, MasterLayout layout) {
  if (dtype == DType::kF32) return MasterKind::kWeightItself;
  if (dtype == DType::kF16) return MasterKind::kF32OfF16;
  return layout == MasterLayout::kSplit ? MasterKind::kSplitResidual : MasterKind::kF32;
}

// "exp_avg": the name in torch.optim's state_dict().
constexpr const char* moment_name(Arithmetic arithmetic, std::uint32_t moment) {
  if (arithmetic == Arithmetic::kAdagrad) return "sum";
  if (arithmetic == Arithmetic::kMomentum) return "momentum_buffer";
  return moment == 0 ? "exp_avg" : "exp_avg_sq";
}

// "e4m3": the codec of a stored moment, as a record's header names it.
constexpr const char* codec_name(MomentCodec codec, bool square) {
  switch (codec) {
    case MomentCodec::kF32:
      return "f32";
    case MomentCodec::kBf16:
      return "bf16";
    case MomentCodec::kBlock8:
      break;
  }
  return square ? "e5m3" : "e4m3";
}

constexpr StateStreams state_streams(Arithmetic arithmetic, MasterKind kind, MomentCodec codec) {
  constexpr auto kBlock = static_cast<std::uint32_t>(kScaleElements);
  StateStreams streams;
  const auto add = [&](const char* name, const char* of, std::uint32_t bytes_per_scale) {
    streams.stream[streams.count++] = {name, of, bytes_per_scale};
  };
  if (kind == MasterKind::kSplitResidual) add("residual", "u16", 2 * kBlock);
  if (kind == MasterKind::kF32 || kind == MasterKind::kF32OfF16) add("master", "f32", 4 * kBlock);
  streams.first_moment = streams.count;
  streams.streams_per_moment = has_scales(codec) ? 2 : 1;
  for (std::uint32_t moment = 0; moment < moments(arithmetic); ++moment) {
    add(moment_name(arithmetic, moment), codec_name(codec, is_square(arithmetic, moment)),
        moment_bytes(codec) * kBlock);
    if (has_scales(codec)) add(moment == 0 ? "scale" : "scale_sq", "e8m0", 1);
  }
  return streams;
}
constexpr StateStreams state_streams(const Settings& settings, DType dtype) {
  return state_streams(arithmetic_of(settings.optimizer), master_kind(dtype, settings.master),
                       settings.moments);
}
}  // namespace headrace::optimizer_cpu
