// SPDX-License-Identifier: Apache-2.0
#include "trained_model.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

#include "engine/parts.hpp"
#include "program/machine.hpp"

namespace headrace::tools {
namespace {
constexpr std::int64_t kHidden = 1024;
constexpr std::uint64_t kBlockParameters = 12 * kHidden * kHidden;

// bf16 numbers of either sign around 0.001, the same every time.
void fill(std::span<std::uint16_t> values) {
  std::uint32_t state = 2463534242u;
  for (std::uint16_t& value : values) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    value = static_cast<std::uint16_t>(((state & 1) << 15) | 0x3a00 | ((state >> 8) & 0xff));
  }
}
}  // namespace

void add_transformer_groups(Engine& engine, std::uint64_t parameters) {
  std::uint64_t left = parameters;
  for (int block = 0; left >= kBlockParameters; left -= kBlockParameters) {
    engine.add_group("h." + std::to_string(block++),
                     {{"qkv", DType::kBf16, {3 * kHidden, kHidden}},
                      {"proj", DType::kBf16, {kHidden, kHidden}},
                      {"up", DType::kBf16, {4 * kHidden, kHidden}},
                      {"down", DType::kBf16, {kHidden, 4 * kHidden}}});
  }
  if (left > 0) {
    engine.add_group("rest", {{"weight", DType::kBf16, {static_cast<std::int64_t>(left)}}});
  }
}

TrainedModel::TrainedModel(const Settings& settings, std::uint64_t parameters,
                           const engine::EngineParts& parts)
    : engine_(engine::engine_with_parts(settings, EngineOptions{}, parts)), watched_(engine_) {
  add_transformer_groups(engine_, parameters);
  engine_.freeze();
  std::uint64_t largest = 0;
  for (std::uint32_t p = 0; p < engine_.parameter_count(); ++p) {
    largest = std::max(largest, engine_.spec({p}).elements());
  }
  gradient_.resize(largest);
  fill(gradient_);
  for (std::uint32_t g = 0; g < engine_.group_count(); ++g) {
    engine_.load({g}, [&](ParameterId, std::span<std::byte> values) {
      std::memcpy(values.data(), gradient_.data(), values.size());
    });
  }
}

StepCost TrainedModel::step() {
  for (std::uint32_t p = 0; p < engine_.parameter_count(); ++p) {
    engine_.add_gradient({p}, gradient_.data(), DType::kBf16);
  }
  const Stats before = engine_.stats();
  const double cpu = cpu_seconds();
  const auto began = std::chrono::steady_clock::now();
  engine_.step({.learning_rate = 1e-4f, .max_norm = 1.0f});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  StepCost cost;
  cost.seconds = took.count();
  cost.cpu_seconds = cpu_seconds() - cpu;
  const Stats after = engine_.stats();
  cost.update_seconds = after.update_wall_seconds - before.update_wall_seconds;
  cost.compute_seconds = after.update_compute_seconds - before.update_compute_seconds;
  cost.read_busy_seconds = after.nvme_read_busy_seconds - before.nvme_read_busy_seconds;
  cost.write_busy_seconds = after.nvme_write_busy_seconds - before.nvme_write_busy_seconds;
  cost.read_bytes = after.nvme_read_bytes - before.nvme_read_bytes;
  cost.written_bytes = after.nvme_written_bytes - before.nvme_written_bytes;
  return cost;
}
}  // namespace headrace::tools
