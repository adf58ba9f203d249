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

std::span<const std::byte> trainer_state_of(const std::optional<Resumed>& resumed) {
  if (!resumed) return {};
  return resumed->trainer_state;
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
    give_bytes(trainer_state_of(look(engine)->resumed()), buffer, capacity, size_bytes);
  });
}
headrace_code headrace_engine_set_trainer_state(headrace_engine* engine, const void* state,
                                                size_t size_bytes, headrace_error* error) {
  return guarded(error,
                 [&] { run(engine)->set_trainer_state(bytes_in(state, size_bytes, "state")); });
}
headrace_code headrace_engine_commit(headrace_engine* engine, headrace_error* error) {
  return guarded(error, [&] { run(engine)->commit(); });
}
headrace_code headrace_engine_durable_step(headrace_engine* engine, uint64_t* out_step,
                                           headrace_error* error) {
  return guarded(error, [&] { required(out_step, "out_step") = look(engine)->durable_step(); });
}
