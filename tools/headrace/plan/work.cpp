// SPDX-License-Identifier: Apache-2.0
#include "plan/work.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "headrace/error.hpp"

namespace headrace::tools {
namespace {
bool holds(const std::string& name, std::initializer_list<const char*> parts) {
  return std::ranges::any_of(
      parts, [&](const char* part) { return name.find(part) != std::string::npos; });
}
bool is_token_table(const std::string& name) {
  return holds(name, {"wte", "embed_tokens", "word_embeddings", "embed_in", "shared"});
}
bool is_other_table(const std::string& name) {
  return holds(name, {"wpe", "position_embeddings", "relative_attention_bias"});
}
// GPT-2's, OPT's and BERT's names of a table with a row for each position.
bool is_positions(const ModelParameter& parameter) {
  if (parameter.shape.size() != 2) return false;
  return std::ranges::any_of(
      std::array{"wpe.weight", "embed_positions.weight", "position_embeddings.weight"},
      [&](const char* end) { return parameter.name.ends_with(end); });
}

bool is_output(const std::string& name) { return holds(name, {"lm_head", "embed_out"}); }

struct Query {
  double width = 0;         // of all heads
  std::uint64_t model = 0;  // what it is computed from
};
// Of the matrix that makes queries, under the names that are common; nothing for others.
Query query_of(const ModelParameter& parameter) {
  if (parameter.shape.size() != 2) return {};
  const auto [least, most] = std::minmax(parameter.shape[0], parameter.shape[1]);
  const std::string& name = parameter.name;
  const auto from = static_cast<std::uint64_t>(least);
  if (holds(name, {"c_attn.", "query_key_value.", "qkv.", "qkv_proj."}))
    return {static_cast<double>(most) / 3, from};
  if (holds(name, {"q_proj.", "Attention.q.", "attention.q.", "query."}))
    return {static_cast<double>(parameter.shape[0]), from};
  return {};
}

bool is_frozen(const std::string& name, const std::vector<std::string>& patterns,
               std::vector<bool>& used) {
  bool frozen = false;
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    if (::fnmatch(patterns[i].c_str(), name.c_str(), 0) != 0) continue;
    used[i] = frozen = true;
  }
  return frozen;
}

void count_group(PlannedModel& model, PlannedGroup& group, bool has_output) {
  bool attends = false;
  for (std::size_t i = 0; i < group.frozen.size(); ++i) {
    const ModelParameter& parameter = group.group.parameters[i];
    model.parameters += parameter.elements();
    if (group.frozen[i]) model.frozen_parameters += parameter.elements();
    if (const Query query = query_of(parameter); query.width > 0) {
      attends = true;
      // Scores and the sum they weigh: 2 operations each per element and position.
      group.attention_flops += 4 * query.width;
      model.width = std::max(model.width, query.model);
    }
    const bool table = is_token_table(parameter.name);
    if (parameter.shape.size() < 2 || is_other_table(parameter.name)) continue;
    if (table || is_output(parameter.name))
      model.vocabulary =
          std::max(model.vocabulary, static_cast<std::uint64_t>(std::ranges::max(parameter.shape)));
    // Looked up, not multiplied with; but a table that is the output layer too is.
    if (table && has_output) continue;
    const double flops = 2 * static_cast<double>(parameter.elements());
    group.matrix_flops += flops;
    if (!group.frozen[i]) group.trained_matrix_flops += flops;
  }
  if (attends) ++model.layers;
}
}  // namespace

std::uint32_t usual_sequence(const PlannedModel& model) {
  constexpr std::uint64_t kUsual = 2048;
  return static_cast<std::uint32_t>(model.positions > 0 ? std::min(kUsual, model.positions)
                                                        : kUsual);
}

PlannedModel planned_model(const Model& model, const std::vector<std::string>& frozen) {
  PlannedModel planned{model.name, model.source, {}};
  std::vector<bool> used(frozen.size(), false);
  bool has_output = false;
  for (const ModelGroup& group : model.groups) {
    PlannedGroup& to = planned.groups.emplace_back(PlannedGroup{group, {}});
    for (const ModelParameter& parameter : group.parameters) {
      has_output |= is_output(parameter.name);
      if (is_positions(parameter)) planned.positions = parameter.shape[0];
      to.frozen.push_back(is_frozen(parameter.name, frozen, used));
    }
  }
  for (std::size_t i = 0; i < frozen.size(); ++i) {
    if (used[i]) continue;
    throw Error(
        Code::kInvalidArgument,
        "--frozen '" + frozen[i] + "' matches no parameter of " + model.name +
            ", whose first is '" + model.groups.front().parameters.front().name +
            "'; nothing was planned. Give a pattern of names: * is any text, ? any letter.");
  }
  for (PlannedGroup& group : planned.groups) count_group(planned, group, has_output);
  return planned;
}

PlannedModel sliced(PlannedModel model, std::uint32_t ranks) {
  model.tensor_parallel = ranks;
  if (ranks == 1) return model;
  for (PlannedGroup& group : model.groups) {
    for (ModelParameter& parameter : group.group.parameters) {
      if (parameter.shape.size() < 2) continue;
      const std::uint64_t part = (parameter.elements() + ranks - 1) / ranks;
      parameter.shape = {static_cast<std::int64_t>(part)};
    }
    for (double* const flops :
         {&group.matrix_flops, &group.attention_flops, &group.trained_matrix_flops})
      *flops /= ranks;
  }
  return model;
}

std::vector<GroupWork> work_of(const PlannedModel& model, double tokens, double length) {
  // Forward and backward each sum two activations of a layer over the ranks that have slices of it
  // (Megatron-LM, arXiv 1909.08053, section 3).
  const double summed =
      model.tensor_parallel > 1 ? 2 * 2 * tokens * static_cast<double>(model.width) : 0;
  const double saved = checkpoint_bytes(model, tokens);
  std::vector<GroupWork> work;
  work.reserve(model.groups.size());
  for (const PlannedGroup& group : model.groups) {
    const double attention = group.attention_flops * length;
    const double forward = group.matrix_flops + attention;
    // Gradients of inputs and, but for frozen ones, of weights.
    const double backward = group.matrix_flops + group.trained_matrix_flops + 2 * attention;
    const bool layer = group.attention_flops > 0;
    work.push_back({.forward_flops = tokens * forward,
                    .backward_flops = tokens * backward,
                    .summed_bytes = layer ? summed : 0,
                    .saved_bytes = layer ? saved : 0});
  }
  return work;
}

double checkpoint_bytes(const PlannedModel& model, double tokens) {
  return 2 * tokens * static_cast<double>(model.width) / model.tensor_parallel;
}

double activation_bytes(const PlannedModel& model, double tokens, Activations how) {
  if (model.layers == 0) return 0;
  const double width = static_cast<double>(model.width), layers = model.layers;
  // Of a layer, 24 of 34 bytes are sliced (Korthikanti et al., arXiv 2205.05198, equation 2).
  const double layer = tokens * (10 + 24.0 / model.tensor_parallel) * width;
  const double inputs = how == Activations::kCheckpointed ? layers : 2;
  const double of_layers =
      how == Activations::kKept ? layers * layer : inputs * checkpoint_bytes(model, tokens) + layer;
  const double logits = 4 * static_cast<double>(model.vocabulary) / model.tensor_parallel;
  return of_layers + tokens * logits;
}
}  // namespace headrace::tools
