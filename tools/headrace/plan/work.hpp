// SPDX-License-Identifier: Apache-2.0
// work.hpp: the arithmetic and the memory of training a model, from the names and shapes of its
// parameters.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "model/model.hpp"
#include "plan/cost.hpp"

namespace headrace::tools {
struct PlannedGroup {
  ModelGroup group;
  std::vector<bool> frozen;  // of its parameters
  // Per token, of one pass; of attention times the sequence's length.
  double matrix_flops = 0, attention_flops = 0;
  double trained_matrix_flops = 0;
};

struct PlannedModel {
  std::string name, source;
  std::vector<PlannedGroup> groups;
  std::uint64_t parameters = 0, frozen_parameters = 0;  // of all ranks' slices
  std::uint32_t tensor_parallel = 1;                    // ranks that have a slice each
  // For activations; 0: not found by name.
  std::uint32_t layers = 0;
  std::uint64_t width = 0, vocabulary = 0;
  std::uint64_t positions = 0;  // that it has learned embeddings of: no sequence is longer; 0: any
};
// Tokens of a sequence that nobody has chosen: 2048, or as many as the model has positions for.
std::uint32_t usual_sequence(const PlannedModel& model);

// Parameters whose names match one of `frozen` ("*" and "?") are read only. Throws Error
// kInvalidArgument for a pattern that matches none.
PlannedModel planned_model(const Model& model, const std::vector<std::string>& frozen);

// One rank's slice under tensor parallelism: of each matrix a part, and all of the vectors. Shapes
// are flat then: what counts is their elements.
PlannedModel sliced(PlannedModel model, std::uint32_t ranks);

// For one micro-batch of `tokens` in sequences of `length`.
std::vector<GroupWork> work_of(const PlannedModel& model, double tokens, double length);

enum class Activations : std::uint8_t {
  kKept,
  kCheckpointed,             // backward computes them again from each layer's input
  kCheckpointedInHostMemory  // where those inputs wait for it
};
// An estimate: 34 bytes per token, layer and element of width, or 2 and one layer whole with
// checkpointing, and 4 per token and vocabulary entry (docs/tools.md). In host memory, two layers'
// inputs are on the device. 0 where no attention was found.
double activation_bytes(const PlannedModel& model, double tokens, Activations how);
// Of one layer's input, as a rank keeps it for backward: 2 bytes per token and element of width,
// of which ranks with slices of the model keep a part each (ZeRO, arXiv 1910.02054, section 6.1).
double checkpoint_bytes(const PlannedModel& model, double tokens);
}  // namespace headrace::tools
