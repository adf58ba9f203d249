// SPDX-License-Identifier: Apache-2.0
// durability.cpp: headrace/c.h, where a durable engine goes on, and what it commits.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "bindings/c/calls.hpp"
#include "bindings/c/handles_of_c.hpp"

namespace headrace::bindings {
namespace {
headrace_resumed resumed_in_c(const std::optional<Resumed>& resumed) {
  headrace_resumed c{};
  if (!resumed) return c;
  c.resumed = 1;
  c.step = resumed->step;
  c.skipped = resumed->skipped;
  c.trainer_state_bytes = resumed->trainer_state.size();
  return c;
}

void give_trainer_state(const std::optional<Resumed>& resumed, void* buffer, std::size_t capacity,
                        std::size_t& out_size_bytes) {
  const std::span<const std::byte> state =
      resumed ? std::span<const std::byte>(resumed->trainer_state) : std::span<const std::byte>();
  give_list(state, static_cast<std::byte*>(buffer), capacity, out_size_bytes,
            [](std::byte byte) { return byte; });
}
}  // namespace
}  // namespace headrace::bindings

using namespace headrace::bindings;

headrace_code headrace_engine_resumed(headrace_engine* engine, headrace_resumed* out_resumed,
                                      headrace_error* error) {
  return guarded(error,
                 [&] { give(out_resumed, resumed_in_c(look(engine)->resumed()), "out_resumed"); });
}
headrace_code headrace_engine_resumed_trainer_state(headrace_engine* engine, void* buffer,
                                                    size_t capacity, size_t* out_size_bytes,
                                                    headrace_error* error) {
  return guarded(error, [&] {
    auto& size_bytes = required(out_size_bytes, "out_size_bytes");
    give_trainer_state(look(engine)->resumed(), buffer, capacity, size_bytes);
  });
}
headrace_code headrace_engine_set_trainer_state(headrace_engine* engine, const void* state,
                                                size_t size_bytes, headrace_error* error) {
  return guarded(error, [&] {
    if (size_bytes > 0) require(state, "state");
    run(engine)->set_trainer_state({static_cast<const std::byte*>(state), size_bytes});
  });
}
headrace_code headrace_engine_commit(headrace_engine* engine, headrace_error* error) {
  return guarded(error, [&] { run(engine)->commit(); });
}
headrace_code headrace_engine_durable_step(headrace_engine* engine, uint64_t* out_step,
                                           headrace_error* error) {
  return guarded(error, [&] { required(out_step, "out_step") = look(engine)->durable_step(); });
}
