// SPDX-License-Identifier: Apache-2.0
// consumer.cpp: one parameter through one step, by an installed Headrace. With the name of a new
// folder, saved there and loaded.
#include <headrace/checkpoint.hpp>
#include <headrace/engine.hpp>
#include <headrace/version.hpp>

#include <cstdio>
#include <cstring>
#include <exception>
#include <span>
#include <string>

namespace {
// Trains one f32 value.
float train(const headrace::Settings& settings, const char* folder) {
  headrace::Engine engine(settings);
  const headrace::GroupId group = engine.add_group("g", {{"w", headrace::DType::kF32, {1}}});
  engine.set_default_hyperparameters({.weight_decay = 0});
  engine.freeze();
  const float start = 1, gradient = 1;
  engine.load(group, [&](headrace::ParameterId, std::span<std::byte> values) {
    std::memcpy(values.data(), &start, sizeof start);
  });
  const headrace::ParameterId id = engine.parameter("g.w");
  engine.add_gradient(id, &gradient, headrace::DType::kF32);
  engine.step({.learning_rate = 0.1f});
  float result = 0;
  engine.store(id, headrace::Content::kWeight, [&](std::uint64_t, std::span<const std::byte> v) {
    std::memcpy(&result, v.data(), sizeof result);
  });
  if (folder != nullptr) {
    headrace::save_checkpoint(engine, folder);
    headrace::load_checkpoint(engine, folder);
    headrace::load_weights(engine, folder);
  }
  engine.close();
  return result;
}
}  // namespace

int main(int argc, char** argv) {
  try {
    const float weight = train({}, argc > 1 ? argv[1] : nullptr);
    std::printf("headrace %s: the weight went from 1 to %g\n", headrace::version(), weight);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "consumer: %s\n", error.what());
    return 1;
  }
}
