// SPDX-License-Identifier: Apache-2.0
// loop.cpp: steps, timed and counted.
#include "loop.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "failures.hpp"
#include "process.hpp"
#include "program/signals.hpp"
#include "safetensors.hpp"

namespace train_gpt {
namespace {
using headrace::Code;
using headrace::tools::check_signal;

class Stopwatch {
 public:
  // Seconds since the last lap.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }
  std::chrono::steady_clock::time_point last() const { return last_; }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

void require_finite(double loss, const std::string& which, const char* cure) {
  if (std::isfinite(loss)) return;
  fail(Code::kNotFinite, "the " + which + " is " +
                             (std::isnan(loss) ? "not a number" : "infinite") +
                             "; the run ended there. " + cure);
}
constexpr const char* kGentlerSteps = "Lower --lr, lengthen --warmup, or set gradient_clipping.";
constexpr const char* kOtherWeights =
    "Nothing has been trained yet, so it is the initial weights: give --init others, or bf16 in "
    "place of fp16.";

// A dynamic scale finds its way by steps that overflow: nothing is wrong with the first few.
void say_scale(const StepRecord& record, double scale, Progress& progress) {
  progress.message(
      "train_gpt: step " + std::to_string(record.step) + " overflowed fp16 at a loss scale of " +
      words_of(record.loss_scale) +
      (scale == record.loss_scale ? ", which stays for now" : "; it is now " + words_of(scale)));
}

// Forward and backward of this rank's micro-batches of one step. Returns their losses.
std::vector<double> accumulate(Training& training, Batches& batches, const World& world,
                               Report& report, StepRecord& record, const char* cure,
                               TraceFile* trace) {
  const std::uint32_t mine = report.recipe.accumulation, all = mine * world.size();
  const std::string of_step = " of step " + std::to_string(record.step);
  Stopwatch watch;
  const auto add = [&](const char* what, double& seconds) {
    const auto begin = watch.last();
    seconds += watch.lap();
    if (trace != nullptr) trace->add_compute(what, record.step, begin, watch.last());
  };
  std::vector<double> losses;
  for (std::uint32_t micro = 0; micro < mine; ++micro) {
    check_signal();
    const Batch batch =
        batches.training((record.step - 1) * all + micro * world.size() + world.rank());
    report.doing = "the forward pass" + of_step;
    losses.push_back(training.forward(batch));
    add("forward", record.forward_s);
    require_finite(losses.back(), "training loss of step " + std::to_string(record.step), cure);
    report.doing = "the backward pass" + of_step;
    training.backward(record.loss_scale);
    add("backward", record.backward_s);
  }
  return losses;
}

// --plain: what forward and backward needed beside weights and gradients, of one dtype.
std::uint64_t activation_bytes(const Report& report) {
  const std::uint64_t held =
      report.memory.baseline_rss_bytes + 2 * size_bytes(report.recipe.dtype) * report.parameters;
  const std::uint64_t peak = peak_resident_bytes();
  return peak > held ? peak - held : 0;
}

void count_transfers(StepRecord& record, const headrace::Stats& before,
                     const headrace::Stats& after, const KernelTransfers& kernel_before) {
  const KernelTransfers kernel = kernel_transfers();
  record.nvme_read_bytes = after.nvme_read_bytes - before.nvme_read_bytes;
  record.nvme_written_bytes = after.nvme_written_bytes - before.nvme_written_bytes;
  record.kernel_read_bytes = kernel.read_bytes - kernel_before.read_bytes;
  record.kernel_written_bytes = kernel.written_bytes - kernel_before.written_bytes;
}

// What changes from step to step beside the training itself.
struct Live {
  std::uint64_t updates = 0, skipped = 0;  // steps so far
  std::optional<headrace::LossScale> loss_scale;

  Course course() const {
    Course course{.updates = updates, .skipped = skipped};
    if (loss_scale) course.loss_scale = loss_scale->state();
    return course;
  }
};

// The store has the course as it was before its last step: the loss scale depends on whether that
// step was skipped.
void continue_store(const headrace::Resumed& resumed, const Checkpoints& checkpoints, Live& live) {
  const Course kept = checkpoints.course_of(resumed.trainer_state, "the store");
  live.updates = resumed.step;
  live.skipped = resumed.skipped;
  if (!live.loss_scale) return;
  live.loss_scale->restore(kept.loss_scale);
  live.loss_scale->update(resumed.skipped > kept.skipped);
}

// Goes on where the store does, or else where the checkpoint does.
void take_over(const Training& training, const Checkpoints& checkpoints, const World& world,
               Live& live, Report& report, Progress& progress) {
  const std::string& folder = report.options.load_folder;
  const auto say = [&](const std::string& where) {
    report.resumed_from = live.updates + live.skipped;
    if (!world.speaks()) return;
    progress.message("train_gpt: goes on after step " + std::to_string(report.resumed_from) +
                     where);
  };
  if (const auto resumed = training.resumed()) {
    continue_store(*resumed, checkpoints, live);
    const std::string& init = report.options.init_folder;
    say(", the last one in the store" + (!folder.empty() ? "; --load " + folder + " was not read"
                                         : !init.empty() ? "; --init " + init + " was not read"
                                                         : ""));
  } else if (const auto loaded = training.loaded()) {
    const Course course = checkpoints.course_of(*loaded, "the checkpoint");
    live.updates = course.updates;
    live.skipped = course.skipped;
    if (live.loss_scale) live.loss_scale->restore(course.loss_scale);
    say(", of the checkpoint in '" + folder + "'");
  }
}

void run_step(Training& training, Batches& batches, World& world, Live& live,
              const Checkpoints& checkpoints, Report& report, StepRecord& record,
              TraceFile* trace) {
  const Recipe& recipe = report.recipe;
  const std::uint32_t micro_batches = recipe.accumulation * world.size();
  if (live.loss_scale) record.loss_scale = live.loss_scale->value();
  Stopwatch whole;
  const std::vector<double> losses =
      accumulate(training, batches, world, report, record,
                 live.updates == 0 ? kOtherWeights : kGentlerSteps, trace);
  report.doing = "the update of step " + std::to_string(record.step);
  if (report.options.plain && record.step == 1)
    report.memory.activations_bytes = activation_bytes(report);
  Stopwatch watch;
  const headrace::StepRates rates = recipe.rates(live.updates);
  record.learning_rate = rates.learning_rate;
  if (rates.beta1) {
    training.set_betas(static_cast<float>(*rates.beta1),
                       static_cast<float>(rates.beta2.value_or(recipe.decayed.beta2)));
  }
  training.keep(checkpoints.state_of(live.course()));
  const headrace::StepResult result = training.update(
      {.learning_rate = static_cast<float>(record.learning_rate),
       .gradient_scale = static_cast<float>(1 / (micro_batches * record.loss_scale)),
       .max_norm = recipe.max_norm});
  // Not before: within a step, the ranks work ahead of their calls.
  const std::string what = "losses of step " + std::to_string(record.step);
  for (const double loss : world.in_order(what, losses)) record.loss += loss / micro_batches;
  ++(result.skipped ? live.skipped : live.updates);
  if (live.loss_scale) live.loss_scale->update(result.skipped);
  // No later step does what the last step defers: the run's seconds and bytes include all of it.
  if (record.step == report.options.steps) training.finish_update();
  record.update_s = watch.lap();
  record.gradient_norm = result.gradient_norm;
  record.skipped = result.skipped;
  record.seconds = whole.lap();
}

double gb_per_second(std::uint64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
}

ProgressState progress_of(const Report& report, const headrace::Stats& before,
                          const headrace::Stats& after) {
  const StepRecord& record = report.steps.back();
  // The first step creates and records; it says little about the others.
  const std::size_t first = report.steps.size() > 1 ? 1 : 0;
  double seconds = 0;
  for (std::size_t i = first; i < report.steps.size(); ++i) seconds += report.steps[i].seconds;
  const double per_step = seconds / static_cast<double>(report.steps.size() - first);
  const Options& o = report.options;
  const Recipe& recipe = report.recipe;
  const double tokens =
      static_cast<double>(recipe.batch) * o.shape.sequence * recipe.accumulation * recipe.ranks;
  return {.step = record.step,
          .steps = o.steps,
          .loss = record.loss,
          .tokens_per_second = tokens / std::max(per_step, 1e-9),
          .read_gb_per_second = gb_per_second(
              record.nvme_read_bytes, after.nvme_read_busy_seconds - before.nvme_read_busy_seconds),
          .write_gb_per_second =
              gb_per_second(record.nvme_written_bytes,
                            after.nvme_write_busy_seconds - before.nvme_write_busy_seconds),
          .seconds_left = per_step * static_cast<double>(o.steps - record.step)};
}

void make_folder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0777) == 0 || errno == EEXIST) return;
  const int number = errno;
  fail(Code::kIo,
       "cannot make the folder '" + folder + "': " + errno_text(number) +
           "; the weights were not saved. Give --save a folder that you may write to.",
       number);
}

std::vector<TensorEntry> tensors_of_file(const GptShape& shape) {
  std::vector<TensorEntry> tensors;
  for (const NamedShape& parameter : gpt_parameters(shape)) {
    tensors.push_back(
        {.name = parameter.name, .dtype = name_of(shape.dtype), .shape = parameter.shape});
  }
  return tensors;
}
}  // namespace

void train(Training& training, Batches& batches, World& world, Report& report, Progress& progress,
           Checkpoints& checkpoints, TraceFile* trace) {
  Live live;
  if (report.recipe.loss_scaling) live.loss_scale.emplace(*report.recipe.loss_scaling);
  take_over(training, checkpoints, world, live, report, progress);
  headrace::Stats before = training.stats();
  report.stats_before = report.stats_after = before;
  report.steps.reserve(report.options.steps);
  for (std::uint64_t step = report.resumed_from + 1; step <= report.options.steps; ++step) {
    StepRecord record{.step = step};
    const KernelTransfers kernel = kernel_transfers();
    try {
      run_step(training, batches, world, live, checkpoints, report, record, trace);
    } catch (const headrace::Error& error) {
      const bool says_step =
          error.code() == Code::kInterrupted ||
          std::string_view(error.what()).find("step " + std::to_string(step)) != std::string::npos;
      if (says_step) throw;
      fail(error.code(), "step " + std::to_string(step) + ": " + error.what(), error.sys_errno());
    }
    if (trace != nullptr)
      trace->add(training.take_trace(), [&](std::uint32_t g) { return training.group_name(g); });
    const headrace::Stats after = training.stats();
    count_transfers(record, before, after, kernel);
    report.steps.push_back(record);
    if (record.skipped && live.loss_scale) say_scale(record, live.loss_scale->value(), progress);
    progress.step(progress_of(report, before, after));
    report.stats_after = before = after;
    report.doing = "the checkpoint after step " + std::to_string(step);
    checkpoints.settle(step);
    report.checkpoints = checkpoints.saved();
    if (!checkpoints.after_step(step, live.course(), training)) continue;
    report.checkpoints = checkpoints.saved();
    report.stats_after = before = training.stats();
  }
  checkpoints.finish();
  report.checkpoints = checkpoints.saved();
}

// Every rank makes the same calls: one that is left without a batch in the last round computes the
// last one once more, which does not count.
double evaluate(Training& training, Batches& batches, World& world, std::uint32_t count,
                Progress& progress) {
  progress.stage("evaluating on held-out text");
  std::vector<double> losses;
  for (std::uint32_t first = 0; first < count; first += world.size()) {
    check_signal();
    const std::uint32_t own = std::min(first + world.rank(), count - 1);
    losses.push_back(training.evaluate(batches.held_out(own, count)));
  }
  losses = world.in_order("held-out losses", losses);
  losses.resize(count);
  double sum = 0;
  for (const double loss : losses) sum += loss;
  require_finite(sum, "held-out loss after the last step", kGentlerSteps);
  return sum / count;
}

std::uint64_t saved_bytes(const GptShape& shape) {
  std::uint64_t data_bytes = 0;
  const std::string header = header_of(tensors_of_file(shape), data_bytes);
  return header.size() + data_bytes;
}

// Rank 0 writes. The others bring what lies on them, a parameter at a time.
std::string save(Training& training, World& world, const GptShape& shape, const std::string& folder,
                 bool overwrite) {
  std::optional<SafetensorsWriter> writer;
  std::string name = kModelFile;
  if (world.speaks()) {
    make_folder(folder);
    if (!overwrite && ::access((folder + "/" + name).c_str(), F_OK) == 0)
      name = "model." + std::to_string(::getpid()) + ".safetensors";
    writer.emplace(folder, tensors_of_file(shape), name);
  }
  std::vector<std::byte> whole;
  for (const NamedShape& parameter : gpt_parameters(shape)) {
    const bool joined = world.size() > 1;
    if (joined) whole.assign(parameter.elements() * size_bytes(shape.dtype), std::byte{0});
    training.store(parameter.name, [&](std::uint64_t first, std::span<const std::byte> bytes) {
      check_signal();
      if (!joined) return writer->append(bytes);
      std::ranges::copy(bytes, whole.begin() + static_cast<std::ptrdiff_t>(first));
    });
    if (!joined) continue;
    world.join("the weights of " + parameter.name, whole);
    if (writer) writer->append(whole);
  }
  if (!writer) return "";
  writer->finish();
  return folder + "/" + name;
}
}  // namespace train_gpt
