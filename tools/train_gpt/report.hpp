// SPDX-License-Identifier: Apache-2.0
// report.hpp: the report of a run: one JSON document for programs and a short text for people.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoints.hpp"
#include "failures.hpp"
#include "headrace/stats.hpp"
#include "options.hpp"
#include "recipe.hpp"

namespace train_gpt {
struct StepRecord {
  std::uint64_t step = 0;
  double loss = 0;  // mean over the step's micro-batches, nats per byte
  double learning_rate = 0;
  double gradient_norm = 0;
  bool skipped = false;  // its gradients were not finite, and headrace.non_finite is "skip"
  double loss_scale = 1;
  double seconds = 0;
  double forward_s = 0;
  double backward_s = 0;
  double update_s = 0;
  std::uint64_t nvme_read_bytes = 0;  // as the I/O queue counted them
  std::uint64_t nvme_written_bytes = 0;
  std::uint64_t kernel_read_bytes = 0;  // as /proc/self/io counted them
  std::uint64_t kernel_written_bytes = 0;
};

struct MemoryRecord {
  std::uint64_t planned_bytes = 0;
  std::uint64_t engine_bytes = 0;
  std::uint64_t peak_rss_bytes = 0;
  std::uint64_t baseline_rss_bytes = 0;  // libraries loaded and warmed up, before engine and model
  std::uint64_t device_peak_bytes = 0;   // of a GPU's memory, the engine's among it
  std::uint64_t activations_bytes =
      0;  // --plain: peak of forward and backward less weights and gradients
};

// A figure of each rank, in their order.
struct OfRanks {
  const char* what;  // "peak_rss_bytes", "compute_seconds"
  std::vector<double> by_rank;
};

struct Report {
  Options options;
  Recipe recipe;
  std::uint64_t parameters = 0;
  std::uint64_t resumed_from = 0;  // the last step of the run before; 0: none
  std::vector<StepRecord> steps;
  std::vector<SavedCheckpoint> checkpoints;
  std::optional<double> eval_loss;
  std::string parameters_hash;  // empty where there is no engine
  std::string optimizer_state_hash;
  MemoryRecord memory;
  headrace::Stats stats_before;  // the first step
  headrace::Stats stats_after;   // the last step
  std::uint32_t drives = 0;
  TorchFacts torch;
  double short_waits_s = 0;  // of training: OpenMP's waits were kept short (openmp_waits.hpp)
  std::string config;        // effective settings, JSON
  std::string text_origin;
  std::uint64_t text_bytes = 0;
  double unigram_entropy_nats = 0;
  std::optional<headrace::PlanReport> plan;
  std::string ranks;  // "4 ranks by Open MPI, over mpi"; empty: one process
  std::vector<OfRanks> of_ranks;
  std::string saved;                           // path, empty: not saved
  std::string doing = "the first call of it";  // for an error's text: "the forward pass of step 3"
};

// Seconds that each lane was busy during the steps.
struct BusySeconds {
  double trainer_s = 0;    // forward and backward, less what they waited for bytes
  double nvme_read_s = 0;  // per drive
  double nvme_write_s = 0;
  double update_s = 0;  // arithmetic of the update, per thread
  double gather_wait_s = 0;
  double update_wait_s = 0;          // of it for deferred updates
  double steps_s = 0;                // all of it
  const char* bound_by = "trainer";  // the busiest
};
BusySeconds busy_seconds_of(const Report& report);

// `failure` null: of a run that did all of it. Else what there is so far, and the error.
std::string to_json(const Report& report, const Failure* failure = nullptr);
std::string to_text(const Report& report);
// Of what was refused before there was a run.
std::string failure_json(const Failure& failure);
}  // namespace train_gpt
