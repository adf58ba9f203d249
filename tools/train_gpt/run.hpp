// SPDX-License-Identifier: Apache-2.0
// run.hpp: the program from command line to exit code, with what needs torch passed in.
#pragma once
#include "training.hpp"

namespace train_gpt {
struct TorchParts {
  TorchFacts (*warm_up)(const Options& options) = nullptr;
  std::uint64_t (*device_peak)(const Options& options) = nullptr;
  std::unique_ptr<Training> (*make_offloaded)(const TrainingSetup& setup) = nullptr;
  std::unique_ptr<Training> (*make_plain)(const TrainingSetup& setup) = nullptr;
  World::Join join = nullptr;
  // Leaves what join() joined, with the program's exit code.
  void (*leave)(int exit_code) noexcept = nullptr;
  // LibTorch's version if it threw `error`, else empty.
  std::string (*version_that_threw)(const std::exception& error) = nullptr;
};

// Everything but signal handlers, which are main's. Prints; gives the exit code; throws nothing.
int run_program(int argc, const char* const* argv, const TorchParts& torch);
}  // namespace train_gpt
