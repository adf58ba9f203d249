// SPDX-License-Identifier: Apache-2.0
// training.cpp: headrace/c.h, values in and out, and a step.
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>

#include "bindings/c/calls.hpp"
#include "bindings/c/handles_of_c.hpp"
#include "bindings/c/host_tables.hpp"
#include "bindings/c/updates.hpp"
#include "kernels/gradient_pass.hpp"

namespace headrace::bindings {
namespace {
Content content_of(headrace_content content) {
  if (content < HEADRACE_WEIGHT || content > HEADRACE_EXP_AVG_SQ) {
    refuse("content " + std::to_string(content) +
           " is not known; 0 is the weight, 1 the master, 2 and 3 the moments");
  }
  return static_cast<Content>(content);
}

void put_hash(const std::string& hash, char* out_hash) {
  std::memcpy(out_hash, hash.c_str(), HEADRACE_HASH_CAPACITY);
}

void put_span(headrace::DeviceSpan span, void** out_data, std::size_t* out_size_bytes) {
  require(out_data, "out_data");
  required(out_size_bytes, "out_size_bytes") = span.size_bytes;
  *out_data = span.data;
}

// Without `pieces` nothing is reported; with piece_elements 0 all is one piece.
void accumulate(const headrace_accumulation* given) {
  const Accumulation work = from_c(taken(given, headrace_accumulation{}, "work"));
  require(work.source, "work.source");
  require(work.sum, "work.sum");
  if (work.source_dtype == DType::kU8 || work.sum_dtype == DType::kU8)
    refuse("dtype U8 holds bytes, which are not added up; give F32, BF16 or F16");
  kernels::accumulate_on_host(work);
}

constexpr std::size_t kFirstResultBytes = offsetof(headrace_step_result, skipped);

headrace_step_result to_c(const StepResult& result) {
  headrace_step_result c{};
  c.step = result.step;
  c.gradient_norm = result.gradient_norm;
  c.clip_factor = result.clip_factor;
  c.parameters_updated = result.parameters_updated;
  c.parameters_left_alone = result.parameters_left_alone;
  c.skipped = result.skipped ? 1 : 0;
  c.non_finite_gradients = result.non_finite_gradients;
  return c;
}
}  // namespace
}  // namespace headrace::bindings

using namespace headrace::bindings;

headrace_code headrace_accumulate(const headrace_accumulation* work, headrace_error* error) {
  return guarded(error, [&] { accumulate(work); });
}

headrace_code headrace_engine_mark_written(headrace_engine* engine, headrace_group group,
                                           const char* cause, headrace_error* error) {
  return guarded(error, [&] { run(engine)->mark_written({group}, name_in(cause, "cause")); });
}
headrace_code headrace_engine_lend_weights(headrace_engine* engine, headrace_parameter parameter,
                                           void* values, headrace_error* error) {
  return guarded(error, [&] { run(engine)->lend_weights({parameter}, values); });
}
headrace_code headrace_engine_load(headrace_engine* engine, headrace_group group,
                                   headrace_fill fill, void* context, headrace_error* error) {
  return guarded(error, [&] {
    require(fill, "fill");
    run(engine)->load({group}, [&](headrace::ParameterId id, std::span<std::byte> values) {
      check_answer(fill(context, id.index, values.data(), values.size()), "the fill function");
    });
  });
}
headrace_code headrace_engine_load_shard(headrace_engine* engine, headrace_group group,
                                         headrace_fill_shard fill, void* context,
                                         headrace_error* error) {
  return guarded(error, [&] {
    require(fill, "fill");
    run(engine)->load(
        {group}, [&](headrace::ParameterId id, std::uint64_t first, std::span<std::byte> values) {
          check_answer(fill(context, id.index, first, values.data(), values.size()),
                       "the fill function");
        });
  });
}
headrace_code headrace_engine_store(headrace_engine* engine, headrace_parameter parameter,
                                    headrace_content content, headrace_sink sink, void* context,
                                    headrace_error* error) {
  return guarded(error, [&] {
    require(sink, "sink");
    run(engine)->store({parameter}, content_of(content),
                       [&](std::uint64_t first, std::span<const std::byte> values) {
                         check_answer(sink(context, first, values.data(), values.size()),
                                      "the sink function");
                       });
  });
}
headrace_code headrace_engine_load_content(headrace_engine* engine, headrace_parameter parameter,
                                           headrace_content content, headrace_source source,
                                           void* context, headrace_error* error) {
  return guarded(error, [&] {
    require(source, "source");
    run(engine)->load(
        {parameter}, content_of(content), [&](std::uint64_t first, std::span<std::byte> values) {
          check_answer(source(context, first, values.data(), values.size()), "the source function");
        });
  });
}
headrace_code headrace_engine_step_count(headrace_engine* engine, headrace_parameter parameter,
                                         uint64_t* out_steps, headrace_error* error) {
  return guarded(error, [&] {
    auto& steps = required(out_steps, "out_steps");
    steps = run(engine)->step_count({parameter});
  });
}
headrace_code headrace_engine_set_step_count(headrace_engine* engine, headrace_parameter parameter,
                                             uint64_t steps, headrace_error* error) {
  return guarded(error, [&] { run(engine)->set_step_count({parameter}, steps); });
}
headrace_code headrace_engine_hash_parameters(headrace_engine* engine,
                                              char out_hash[HEADRACE_HASH_CAPACITY],
                                              headrace_error* error) {
  return guarded(
      error, [&] { put_hash(run(engine)->hash_parameters(), &required(out_hash, "out_hash")); });
}
headrace_code headrace_engine_hash_optimizer_state(headrace_engine* engine,
                                                   char out_hash[HEADRACE_HASH_CAPACITY],
                                                   headrace_error* error) {
  return guarded(error, [&] {
    put_hash(run(engine)->hash_optimizer_state(), &required(out_hash, "out_hash"));
  });
}

headrace_code headrace_engine_gather(headrace_engine* engine, headrace_group group,
                                     headrace_stream stream, headrace_gathered** out_gathered,
                                     headrace_error* error) {
  return guarded(error, [&] {
    auto& gathered = required(out_gathered, "out_gathered");
    const auto used = feed(engine);
    std::unique_ptr<LeaseOfC> lease(new LeaseOfC{used->gather({group}, {stream}), engine});
    gathered = static_cast<headrace_gathered*>(leases.add(std::move(lease)));
  });
}
headrace_code headrace_gathered_bytes(headrace_gathered* gathered, headrace_parameter parameter,
                                      void** out_data, size_t* out_size_bytes,
                                      headrace_error* error) {
  return guarded(
      error, [&] { put_span(LeaseCall(gathered)->bytes({parameter}), out_data, out_size_bytes); });
}
headrace_code headrace_gathered_section(headrace_gathered* gathered, headrace_dtype dtype,
                                        void** out_data, size_t* out_size_bytes,
                                        headrace_error* error) {
  return guarded(error, [&] {
    put_span(LeaseCall(gathered)->section(dtype_from_c(dtype)), out_data, out_size_bytes);
  });
}
headrace_code headrace_gathered_release(headrace_gathered* gathered, headrace_error* error) {
  return guarded(error, [&] {
    if (gathered == nullptr) return;
    leases.remove(gathered, [](LeaseOfC& lease) {
      // A caller that unwinds cannot call again. So this waits for another thread's freeze or
      // destroy, which fails while a lease is open.
      refuse_in_child(lease);
      const auto use = engines.use_after_remove(lease.engine);
      use->gate.enter_to_look();
      lease.gathered.release();
      use->gate.leave(CallKind::kLook);
    });
  });
}
headrace_code headrace_engine_add_gradient(headrace_engine* engine, headrace_parameter parameter,
                                           const void* gradient, headrace_dtype dtype,
                                           headrace_stream stream, headrace_error* error) {
  return guarded(error, [&] {
    require(gradient, "gradient");
    feed(engine)->add_gradient({parameter}, gradient, dtype_from_c(dtype), {stream});
  });
}
headrace_code headrace_engine_lend_gradient(headrace_engine* engine, headrace_parameter parameter,
                                            const void* gradient, headrace_dtype dtype,
                                            headrace_error* error) {
  return guarded(error, [&] {
    require(gradient, "gradient");
    feed(engine)->lend_gradient({parameter}, gradient, dtype_from_c(dtype));
  });
}
headrace_code headrace_engine_discard_gradients(headrace_engine* engine, headrace_error* error) {
  return guarded(error, [&] { run(engine)->discard_gradients(); });
}
headrace_code headrace_engine_exchange(headrace_engine* engine, const void* mine, size_t size_bytes,
                                       void* all, size_t all_size_bytes, headrace_error* error) {
  return guarded(error, [&] {
    require(mine, "mine");
    require(all, "all");
    run(engine)->exchange({static_cast<const std::byte*>(mine), size_bytes},
                          {static_cast<std::byte*>(all), all_size_bytes});
  });
}
headrace_code headrace_engine_gradient_statistics(headrace_engine* engine,
                                                  headrace_parameter parameter,
                                                  headrace_gradient_piece* out_statistics,
                                                  headrace_error* error) {
  return guarded(error, [&] {
    auto& statistics = required(out_statistics, "out_statistics");
    const headrace::GradientPiece found = run(engine)->gradient_statistics({parameter});
    statistics = {found.sum_squares, found.non_finite};
  });
}
headrace_code headrace_engine_step(headrace_engine* engine, const headrace_step_options* options,
                                   headrace_step_result* out_result, headrace_error* error) {
  return guarded(error, [&] {
    // Looked at before the step is made: afterwards it could not be undone.
    if (out_result != nullptr) {
      check_struct_size(out_result->struct_size, kFirstResultBytes, "out_result");
    }
    const headrace::StepResult result = run(engine)->step(step_options_of(options));
    if (out_result != nullptr) give(out_result, to_c(result), "out_result", kFirstResultBytes);
  });
}
headrace_code headrace_engine_finish_step(headrace_engine* engine, headrace_error* error) {
  return guarded(error, [&] { run(engine)->finish_step(); });
}
