// SPDX-License-Identifier: Apache-2.0
// registration.cpp: headrace/c.h, what is registered and what was.
#include <algorithm>
#include <string>
#include <vector>

#include "bindings/c/calls.hpp"
#include "bindings/c/handles_of_c.hpp"
#include "bindings/c/host_tables.hpp"

namespace headrace::bindings {
namespace {
Hyperparameters hyperparameters_of(const headrace_hyperparameters* given) {
  headrace_hyperparameters values;
  headrace_hyperparameters_init(&values);
  values = taken(given, values, "values");
  return {.learning_rate_scale = values.learning_rate_scale,
          .beta1 = values.beta1,
          .beta2 = values.beta2,
          .eps = values.eps,
          .weight_decay = values.weight_decay};
}

ParameterSpec spec_of(const headrace_parameter_spec* given) {
  headrace_parameter_spec spec;
  headrace_parameter_spec_init(&spec);
  spec = taken(given, spec, "parameters");
  ParameterSpec result;
  result.name = &required(spec.name, "a parameter's name");
  result.dtype = dtype_from_c(spec.dtype);
  if (spec.dimensions > 0) {
    require(spec.shape, "a parameter's shape");
    result.shape.assign(spec.shape, spec.shape + spec.dimensions);
  }
  result.hyperparameters = {spec.hyperparameters};
  return result;
}

// The array's stride is the caller's size of its struct.
std::vector<ParameterSpec> specs_of(const headrace_parameter_spec* parameters, std::size_t count) {
  std::vector<ParameterSpec> specs;
  if (count == 0) return specs;
  const std::size_t stride = required(parameters, "parameters").struct_size;
  const auto* bytes = reinterpret_cast<const unsigned char*>(parameters);
  for (std::size_t i = 0; i < count; ++i) {
    const auto* one = reinterpret_cast<const headrace_parameter_spec*>(bytes + i * stride);
    specs.push_back(spec_of(one));
    if (one->struct_size != stride) {
      refuse("parameters: entry " + std::to_string(i) + " has struct_size " +
             std::to_string(one->struct_size) + ", the first has " + std::to_string(stride) +
             "; all are set up by headrace_parameter_spec_init()");
    }
  }
  return specs;
}

headrace_parameter_facts facts_of(Engine& engine, ParameterId id) {
  headrace_parameter_facts facts{};
  const ParameterSpec& spec = engine.spec(id);
  facts.dtype = spec.dtype == DType::kF32 ? HEADRACE_F32 : HEADRACE_BF16;
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
                 [&] { use(engine)->set_default_hyperparameters(hyperparameters_of(values)); });
}
headrace_code headrace_engine_add_hyperparameters(headrace_engine* engine,
                                                  const headrace_hyperparameters* values,
                                                  headrace_hyperparameter_set* out_set,
                                                  headrace_error* error) {
  return guarded(error, [&] {
    auto& set = required(out_set, "out_set");
    set = use(engine)->add_hyperparameters(hyperparameters_of(values)).index;
  });
}
headrace_code headrace_engine_add_group(headrace_engine* engine, const char* name,
                                        const headrace_parameter_spec* parameters, size_t count,
                                        headrace_group* out_group, headrace_error* error) {
  return guarded(error, [&] {
    auto& group = required(out_group, "out_group");
    group = use(engine)->add_group(&required(name, "name"), specs_of(parameters, count)).index;
  });
}
headrace_code headrace_engine_expect_repeated_gradients(headrace_engine* engine,
                                                        headrace_group group,
                                                        headrace_error* error) {
  return guarded(error, [&] { use(engine)->expect_repeated_gradients({group}); });
}
headrace_code headrace_engine_keep_bound(headrace_engine* engine, headrace_group group,
                                         headrace_error* error) {
  return guarded(error, [&] { use(engine)->keep_bound({group}); });
}

headrace_code headrace_engine_group_count(headrace_engine* engine, uint32_t* out_count,
                                          headrace_error* error) {
  return guarded(error, [&] { required(out_count, "out_count") = use(engine)->group_count(); });
}
headrace_code headrace_engine_parameter_count(headrace_engine* engine, uint32_t* out_count,
                                              headrace_error* error) {
  return guarded(error, [&] { required(out_count, "out_count") = use(engine)->parameter_count(); });
}
headrace_code headrace_engine_group_name(headrace_engine* engine, headrace_group group,
                                         char* buffer, size_t capacity, size_t* out_needed,
                                         headrace_error* error) {
  return guarded(
      error, [&] { give_text(use(engine)->group_name({group}), buffer, capacity, out_needed); });
}
headrace_code headrace_engine_group_parameters(headrace_engine* engine, headrace_group group,
                                               headrace_parameter* buffer, size_t capacity,
                                               size_t* out_count, headrace_error* error) {
  return guarded(error, [&] {
    const auto used = use(engine);
    const auto ids = used->parameters({group});
    required(out_count, "out_count") = ids.size();
    if (capacity == 0) return;
    if (capacity < ids.size()) {
      refuse("group '" + used->group_name({group}) + "' has " + std::to_string(ids.size()) +
             " parameters, capacity is " + std::to_string(capacity) +
             "; ask with capacity 0 for the count first");
    }
    std::transform(ids.begin(), ids.end(), &required(buffer, "buffer"),
                   [](headrace::ParameterId id) { return id.index; });
  });
}
headrace_code headrace_engine_parameter(headrace_engine* engine, const char* full_name,
                                        headrace_parameter* out_parameter, headrace_error* error) {
  return guarded(error, [&] {
    auto& parameter = required(out_parameter, "out_parameter");
    parameter = use(engine)->parameter(&required(full_name, "full_name")).index;
  });
}
headrace_code headrace_engine_parameter_name(headrace_engine* engine, headrace_parameter parameter,
                                             char* buffer, size_t capacity, size_t* out_needed,
                                             headrace_error* error) {
  return guarded(
      error, [&] { give_text(use(engine)->full_name({parameter}), buffer, capacity, out_needed); });
}
headrace_code headrace_engine_parameter_facts(headrace_engine* engine, headrace_parameter parameter,
                                              headrace_parameter_facts* out_facts,
                                              headrace_error* error) {
  return guarded(error, [&] { give(out_facts, facts_of(*use(engine), {parameter}), "out_facts"); });
}
