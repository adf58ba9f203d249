// SPDX-License-Identifier: Apache-2.0
// registration.cpp: headrace/c.h, what is registered and what was.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "bindings/c/calls.hpp"
#include "bindings/c/handles_of_c.hpp"
#include "bindings/c/host_tables.hpp"
#include "bindings/c/updates.hpp"

namespace headrace::bindings {
namespace {
constexpr std::uint32_t kMostDimensions = 64;

ParameterSpec spec_of(const headrace_parameter_spec* given) {
  const headrace_parameter_spec spec = taken(given, headrace_parameter_spec_init, "parameters",
                                             offsetof(headrace_parameter_spec, frozen));
  ParameterSpec result;
  result.name = name_in(spec.name, "a parameter's name");
  result.dtype = dtype_from_c(spec.dtype);
  if (spec.dimensions > kMostDimensions) {
    refuse("parameter '" + result.name + "': " + std::to_string(spec.dimensions) +
           " dimensions, 64 are the most; the struct is set up by its _init()");
  }
  if (spec.dimensions > 0) {
    require(spec.shape, "a parameter's shape");
    result.shape.assign(spec.shape, spec.shape + spec.dimensions);
  }
  result.hyperparameters = {spec.hyperparameters};
  result.frozen = spec.frozen != 0;
  return result;
}

std::vector<ParameterSpec> specs_of(const headrace_parameter_spec* parameters, std::size_t count) {
  std::vector<ParameterSpec> specs;
  for_each_struct(parameters, count, "parameters", "headrace_parameter_spec_init()",
                  [&](const headrace_parameter_spec* one) { specs.push_back(spec_of(one)); });
  return specs;
}

headrace_parameter_facts facts_of(Engine& engine, ParameterId id) {
  headrace_parameter_facts facts{};
  const ParameterSpec& spec = engine.spec(id);
  facts.dtype = dtype_to_c(spec.dtype);
  facts.group = engine.group_of(id).index;
  facts.hyperparameters = spec.hyperparameters.index;
  facts.elements = spec.elements();
  facts.size_bytes = spec.elements() * size_bytes(spec.dtype);
  try {
    facts.section_offset_bytes = engine.section_offset_bytes(id);
  } catch (const Error& error) {
    if (error.code() != Code::kWrongState) throw;
    facts.section_offset_bytes = UINT64_MAX;
  }
  return facts;
}
}  // namespace
}  // namespace headrace::bindings

using namespace headrace::bindings;

headrace_code headrace_engine_set_default_hyperparameters(headrace_engine* engine,
                                                          const headrace_hyperparameters* values,
                                                          headrace_error* error) {
  return guarded(error,
                 [&] { shape(engine)->set_default_hyperparameters(hyperparameters_of(values)); });
}
headrace_code headrace_engine_add_hyperparameters(headrace_engine* engine,
                                                  const headrace_hyperparameters* values,
                                                  headrace_hyperparameter_set* out_set,
                                                  headrace_error* error) {
  return guarded(error, [&] {
    auto& set = required(out_set, "out_set");
    set = shape(engine)->add_hyperparameters(hyperparameters_of(values)).index;
  });
}
headrace_code headrace_engine_set_hyperparameters(headrace_engine* engine,
                                                  headrace_hyperparameter_set set,
                                                  const headrace_hyperparameters* values,
                                                  headrace_error* error) {
  return guarded(error,
                 [&] { run(engine)->set_hyperparameters({set}, hyperparameters_of(values)); });
}
headrace_code headrace_engine_add_group(headrace_engine* engine, const char* name,
                                        const headrace_parameter_spec* parameters, size_t count,
                                        headrace_group* out_group, headrace_error* error) {
  return guarded(error, [&] {
    auto& group = required(out_group, "out_group");
    group = shape(engine)->add_group(name_in(name, "name"), specs_of(parameters, count)).index;
  });
}
headrace_code headrace_engine_expect_no_gradients(headrace_engine* engine, headrace_group group,
                                                  headrace_error* error) {
  return guarded(error, [&] { shape(engine)->expect_no_gradients({group}); });
}
headrace_code headrace_engine_expect_repeated_gradients(headrace_engine* engine,
                                                        headrace_group group,
                                                        headrace_error* error) {
  return guarded(error, [&] { shape(engine)->expect_repeated_gradients({group}); });
}
headrace_code headrace_engine_keep_bound(headrace_engine* engine, headrace_group group,
                                         headrace_error* error) {
  return guarded(error, [&] { shape(engine)->keep_bound({group}); });
}
headrace_code headrace_engine_expect_lent_gradients(headrace_engine* engine, headrace_group group,
                                                    headrace_error* error) {
  return guarded(error, [&] { shape(engine)->expect_lent_gradients({group}); });
}
headrace_code headrace_engine_expect_lent_weights(headrace_engine* engine, headrace_group group,
                                                  headrace_error* error) {
  return guarded(error, [&] { shape(engine)->expect_lent_weights({group}); });
}

headrace_code headrace_engine_group_count(headrace_engine* engine, uint32_t* out_count,
                                          headrace_error* error) {
  return guarded(error, [&] { required(out_count, "out_count") = look(engine)->group_count(); });
}
headrace_code headrace_engine_parameter_count(headrace_engine* engine, uint32_t* out_count,
                                              headrace_error* error) {
  return guarded(error,
                 [&] { required(out_count, "out_count") = look(engine)->parameter_count(); });
}
headrace_code headrace_engine_group_name(headrace_engine* engine, headrace_group group,
                                         char* buffer, size_t capacity, size_t* out_needed,
                                         headrace_error* error) {
  return guarded(
      error, [&] { give_text(look(engine)->group_name({group}), buffer, capacity, out_needed); });
}
headrace_code headrace_engine_group_parameters(headrace_engine* engine, headrace_group group,
                                               headrace_parameter* buffer, size_t capacity,
                                               size_t* out_count, headrace_error* error) {
  return guarded(error, [&] {
    const auto used = look(engine);
    give_list(used->parameters({group}), buffer, capacity, required(out_count, "out_count"),
              [](headrace::ParameterId id) { return id.index; });
  });
}
headrace_code headrace_engine_parameter(headrace_engine* engine, const char* full_name,
                                        headrace_parameter* out_parameter, headrace_error* error) {
  return guarded(error, [&] {
    auto& parameter = required(out_parameter, "out_parameter");
    parameter =
        look(engine)->parameter(name_in(full_name, "full_name", 2 * kLongestName + 1)).index;
  });
}
headrace_code headrace_engine_parameter_name(headrace_engine* engine, headrace_parameter parameter,
                                             char* buffer, size_t capacity, size_t* out_needed,
                                             headrace_error* error) {
  return guarded(error, [&] {
    give_text(look(engine)->full_name({parameter}), buffer, capacity, out_needed);
  });
}
headrace_code headrace_engine_parameter_facts(headrace_engine* engine, headrace_parameter parameter,
                                              headrace_parameter_facts* out_facts,
                                              headrace_error* error) {
  return guarded(error,
                 [&] { give(out_facts, facts_of(*look(engine), {parameter}), "out_facts"); });
}
headrace_code headrace_engine_parameter_shape(headrace_engine* engine, headrace_parameter parameter,
                                              int64_t* buffer, size_t capacity,
                                              size_t* out_dimensions, headrace_error* error) {
  return guarded(error, [&] {
    const auto used = look(engine);
    give_list(used->spec({parameter}).shape, buffer, capacity,
              required(out_dimensions, "out_dimensions"), [](std::int64_t size) { return size; });
  });
}
headrace_code headrace_engine_section_size_bytes(headrace_engine* engine, headrace_group group,
                                                 headrace_dtype dtype, uint64_t* out_size_bytes,
                                                 headrace_error* error) {
  return guarded(error, [&] {
    auto& size = required(out_size_bytes, "out_size_bytes");
    size = look(engine)->section_size_bytes({group}, dtype_from_c(dtype));
  });
}
