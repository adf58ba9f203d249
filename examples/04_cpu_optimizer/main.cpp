// SPDX-License-Identifier: Apache-2.0
// 04_cpu_optimizer: the optimizer alone, over a program's own arrays.
//
//   04_cpu_optimizer        on threads of the optimizer's own
//   04_cpu_optimizer pool   on the program's: the same output, bit for bit
// [program]
#include <headrace/cpu_optimizer.hpp>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <thread>
#include <vector>

// A pool: every second unit on a thread of its own.
void run_units(std::uint64_t units, void (*run)(void*, std::uint64_t), void* context) {
  std::jthread odd([=] {
    for (std::uint64_t unit = 1; unit < units; unit += 2) run(context, unit);
  });
  for (std::uint64_t unit = 0; unit < units; unit += 2) run(context, unit);
}

// y = a x + b, with a and b a parameter each: f32 weights, which are their own masters.
struct Parameter {
  const char* name;
  std::uint64_t number;
  std::vector<float> weight, gradient;
  std::array<std::vector<std::byte>, 2> moment = {}, scale = {};

  // Memory is the program's: state_bytes() says how much.
  headrace::ParameterState allocate(const headrace::CpuOptimizer& optimizer) {
    const auto bytes = optimizer.state_bytes(headrace::DType::kF32, {}, weight.size());
    headrace::ParameterState state = {.name = name,
                                      .number = number,
                                      .elements = weight.size(),
                                      .dtype = headrace::DType::kF32,
                                      .weight = std::as_writable_bytes(std::span(weight))};
    for (std::size_t k = 0; k < 2; ++k) {
      moment[k].resize(bytes.moment[k]);
      scale[k].resize(bytes.moment_scale[k]);
      state.moment[k] = moment[k];
      state.moment_scale[k] = scale[k];
    }
    return state;
  }

  // Its update number t, from 1.
  headrace::ParameterUpdate update(const headrace::ParameterState& state, std::uint64_t t) const {
    headrace::ParameterUpdate update = {.state = state, .gradient_dtype = headrace::DType::kF32};
    update.gradient = std::as_bytes(std::span(gradient));
    update.t = t;
    update.hyperparameters.weight_decay = 0;
    return update;
  }
};

// Returns the mean squared error at 16 points of y = 3 x - 1, and computes its gradients.
float compute_loss(std::array<Parameter, 2>& model) {
  const float a = model[0].weight[0], b = model[1].weight[0];
  float loss = 0, da = 0, db = 0;
  for (int i = 0; i < 16; ++i) {
    const float x = static_cast<float>(i) / 16, error = a * x + b - (3 * x - 1);
    loss += error * error / 16;
    da += 2 * error * x / 16;
    db += 2 * error / 16;
  }
  model[0].gradient[0] = da;
  model[1].gradient[0] = db;
  return loss;
}

int main(int argc, char** argv) try {
  const bool pool = argc == 2 && std::strcmp(argv[1], "pool") == 0;
  if (argc > 1 && !pool) {
    std::printf("usage: 04_cpu_optimizer [pool]\n");
    return std::strcmp(argv[1], "--help") == 0 ? 0 : 2;
  }
  headrace::CpuOptimizerOptions options;
  options.moments = headrace::MomentCodec::kBlock8;  // a byte each, where f32 would be four
  options.rounding_seed = 1;
  options.non_finite = headrace::NonFinite::kSkip;
  if (pool) options.run_units = run_units;
  headrace::CpuOptimizer optimizer(options);

  std::array<Parameter, 2> model = {{{"a", 0, {0}, {0}}, {"b", 1, {0}, {0}}}};
  const std::array states = {model[0].allocate(optimizer), model[1].allocate(optimizer)};
  optimizer.initialize(states);

  std::uint64_t t = 0;
  for (int step = 1; step <= 200; ++step) {
    const float loss = compute_loss(model);
    if (step == 100) model[0].gradient[0] = NAN;  // a loss scale that is too large can do this

    const std::array updates = {model[0].update(states[0], t + 1),
                                model[1].update(states[1], t + 1)};
    const headrace::CpuStepResult result =
        optimizer.step(updates, {.learning_rate = 0.05f, .max_norm = 1});
    if (result.skipped) {
      std::printf("step %3d: skipped: a gradient of '%s' is not finite\n", step,
                  model[result.gradients.first_non_finite].name);
      continue;
    }
    ++t;
    if (step % 50 == 0)
      std::printf("step %3d: loss %.6f, gradient norm %.4f\n", step, loss, result.gradient_norm);
  }
  std::printf("a = %.4f, b = %.4f\n", model[0].weight[0], model[1].weight[0]);
} catch (const std::exception& error) {
  std::fprintf(stderr, "04_cpu_optimizer: %s\n", error.what());
  return 1;
}
// [/program]
