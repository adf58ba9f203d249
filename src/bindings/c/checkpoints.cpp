// SPDX-License-Identifier: Apache-2.0
// checkpoints.cpp: headrace/c.h, a checkpoint saved, also beside training, and loaded.
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings/c/calls.hpp"
#include "bindings/c/handles_of_c.hpp"
#include "headrace/checkpoint.hpp"

namespace headrace::bindings {
namespace {
bool flag_in(std::uint32_t value, const char* name) {
  if (value > 1) refuse(std::string(name) + " is " + std::to_string(value) + "; it must be 0 or 1");
  return value != 0;
}

SaveOptions options_in(const headrace_save_options* given) {
  const headrace_save_options options =
      taken_or_defaults(given, headrace_save_options_init, "options");
  return {.file_bytes = options.file_bytes,
          .trainer_state =
              bytes_in(options.trainer_state, options.trainer_state_bytes, "options.trainer_state"),
          .latest = flag_in(options.latest, "options.latest")};
}

WeightOptions options_in(const headrace_weight_options* given) {
  const headrace_weight_options options =
      taken_or_defaults(given, headrace_weight_options_init, "options");
  WeightOptions weights;
  weights.allow_unused = flag_in(options.allow_unused, "options.allow_unused");
  if (options.tensor_name == nullptr) return weights;
  weights.tensor_name = [options](const std::string& full_name) {
    std::array<char, kLongestName + 1> name{};
    check_answer(options.tensor_name(options.context, full_name.c_str(), name.data(), name.size()),
                 "the tensor_name function");
    return name_in(name.data(), "the name that the tensor_name function gave");
  };
  return weights;
}

struct BackgroundSaveOfC {
  std::optional<BackgroundSave> save = {};  // none while it begins
  pid_t owner = getpid();
};
constinit HandleTable<BackgroundSaveOfC, 256> background_saves(5, "background save", "destroy");

auto used(headrace_background_save* handle) {
  auto use = background_saves.use(handle);
  refuse_in_child(use->owner, "background save", "the save and its engine are");
  return use;
}
}  // namespace
}  // namespace headrace::bindings

using namespace headrace::bindings;

headrace_code headrace_engine_save_checkpoint(headrace_engine* engine, const char* directory,
                                              const headrace_save_options* options,
                                              headrace_error* error) {
  return guarded(error, [&] {
    const std::string path = path_in(directory, "directory");
    const headrace::SaveOptions save = options_in(options);
    headrace::save_checkpoint(*run(engine), path, save);
  });
}
headrace_code headrace_engine_save_checkpoint_in_background(headrace_engine* engine,
                                                            const char* directory,
                                                            const headrace_save_options* options,
                                                            headrace_background_save** out_save,
                                                            headrace_error* error) {
  return guarded(error, [&] {
    auto& out = required(out_save, "out_save");
    const std::string path = path_in(directory, "directory");
    const headrace::SaveOptions save = options_in(options);
    EngineCall call = run(engine);
    void* const handle = background_saves.add(std::make_unique<BackgroundSaveOfC>());
    try {
      background_saves.use(handle)->save =
          headrace::save_checkpoint_in_background(*call, path, save);
    } catch (...) {
      background_saves.remove(handle, [](const BackgroundSaveOfC&) {});
      throw;
    }
    out = static_cast<headrace_background_save*>(handle);
  });
}
headrace_code headrace_background_save_done(headrace_background_save* save, int32_t* out_done,
                                            headrace_error* error) {
  return guarded(error, [&] {
    auto& out = required(out_done, "out_done");
    out = used(save)->save->done() ? 1 : 0;
  });
}
headrace_code headrace_background_save_wait(headrace_background_save* save, headrace_error* error) {
  return guarded(error, [&] { used(save)->save->wait(); });
}
headrace_code headrace_background_save_destroy(headrace_background_save* save,
                                               headrace_error* error) {
  return guarded(error, [&] { background_saves.remove(save, [](const BackgroundSaveOfC&) {}); });
}

headrace_code headrace_engine_load_checkpoint(headrace_engine* engine, const char* directory,
                                              headrace_error* error) {
  return guarded(error, [&] {
    const std::string path = path_in(directory, "directory");
    EngineCall call = run(engine);
    call.loaded_trainer_state().clear();
    call.loaded_trainer_state() = headrace::load_checkpoint(*call, path).trainer_state;
  });
}
headrace_code headrace_engine_load_weights(headrace_engine* engine, const char* path,
                                           const headrace_weight_options* options,
                                           headrace_error* error) {
  return guarded(error, [&] {
    const std::string from = path_in(path, "path");
    const headrace::WeightOptions weights = options_in(options);
    headrace::load_weights(*run(engine), from, weights);
  });
}
headrace_code headrace_engine_loaded_trainer_state(headrace_engine* engine, void* buffer,
                                                   size_t capacity, size_t* out_size_bytes,
                                                   headrace_error* error) {
  return guarded(error, [&] {
    auto& size_bytes = required(out_size_bytes, "out_size_bytes");
    give_bytes(run(engine).loaded_trainer_state(), buffer, capacity, size_bytes);
  });
}
