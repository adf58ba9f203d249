// SPDX-License-Identifier: Apache-2.0
// loop.hpp: the training loop: steps, evaluation, and what they cost.
#pragma once
#include "batches.hpp"
#include "checkpoints.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "trace_file.hpp"
#include "training.hpp"

namespace train_gpt {
// Does all of report.options.steps, or those that a store or a checkpoint leaves of them, and fills
// report.steps, checkpoints, stats_before, stats_after and, for --plain, memory.activations_bytes.
//   checkpoints   saves some of the steps
//   trace         null: none
// Throws headrace::Error: kNotFinite naming the step whose loss is not a number, or whose loss
// scale cannot be lowered, kInterrupted after
// a signal, and what the training throws, with the step's number in front.
void train(Training& training, Batches& batches, World& world, Report& report, Progress& progress,
           Checkpoints& checkpoints, TraceFile* trace = nullptr);

// Mean loss over the held-out batches. Throws like train().
double evaluate(Training& training, Batches& batches, World& world, std::uint32_t count,
                Progress& progress);

// The size of the file that save() writes.
std::uint64_t saved_bytes(const GptShape& shape);
// Writes the weights to FOLDER/model.safetensors, parameter by parameter; gives the path. Where
// such a file is there and `overwrite` is false, to another name: neither result is lost.
std::string save(Training& training, World& world, const GptShape& shape, const std::string& folder,
                 bool overwrite);
}  // namespace train_gpt
