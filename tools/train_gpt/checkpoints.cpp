// SPDX-License-Identifier: Apache-2.0
#include "checkpoints.hpp"

#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error_text.hpp"
#include "base/units.hpp"
#include "failures.hpp"
#include "optimizer_cpu/update.hpp"

namespace train_gpt {
namespace {
namespace fs = std::filesystem;
using headrace::Code;
using headrace::base::format_bytes;
constexpr std::string_view kPrefix = "step-";
constexpr std::uint64_t kMostKept = 1000;  // that are advised

// Weights, masters and moments; names and checksums take little beside them.
std::uint64_t checkpoint_bytes(const GptShape& shape, headrace::DType dtype,
                               headrace::OptimizerRule rule) {
  const std::uint64_t states = 1 + moments(headrace::optimizer_cpu::arithmetic_of(rule));
  return count_elements(gpt_parameters(shape)) *
         (headrace::size_bytes(dtype) + states * sizeof(float));
}

Course course_in(std::span<const std::byte> state, const std::string& where) {
  Course course;
  if (state.size() < sizeof course) {
    fail(Code::kInvalidArgument,
         where + " was written by another program: it keeps " + std::to_string(state.size()) +
             " bytes of its trainer, and this one keeps at least " + std::to_string(sizeof course) +
             "; the run was not started. Name another.");
  }
  std::memcpy(&course, state.data(), sizeof course);
  return course;
}

std::string seconds_text(std::chrono::steady_clock::time_point since) {
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - since;
  char text[32];
  std::snprintf(text, sizeof text, "%.2f s", took.count());
  return text;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}
}  // namespace

std::uint64_t steps_done(const Training& training) {
  if (const auto resumed = training.resumed()) return resumed->step + resumed->skipped;
  const auto loaded = training.loaded();
  if (!loaded) return 0;
  const Course course = course_in(*loaded, "the checkpoint");
  return course.updates + course.skipped;
}

std::string folder_or_above(std::string folder) {
  std::error_code ignored;
  if (fs::exists(folder, ignored)) return folder;
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  const std::size_t slash = folder.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : folder.substr(0, slash);
}

std::uint64_t most_more(const CheckpointsToMake& run) {
  const std::uint64_t first = run.done / run.every + 1, last = run.steps / run.every;
  const std::uint64_t made = last < first ? 0 : last - first + 1;
  std::uint64_t old = 0, again = 0;
  for (const std::uint64_t step : run.present) old += step <= run.done;
  std::uint64_t more = made;
  if (run.keep > 0) more = std::min(made, run.keep + 1 - std::min(old, run.keep));
  for (const std::uint64_t step : run.present) {
    const bool is_made = step % run.every == 0 && step / run.every >= first;
    again += is_made && step / run.every < first + more;
  }
  return more - again;
}

std::string lack_of_room(const CheckpointsToMake& run, std::uint64_t size_bytes,
                         std::uint64_t weight_bytes, std::uint64_t free_bytes) {
  const std::uint64_t more = most_more(run);
  const std::uint64_t fit =
      (free_bytes - std::min(free_bytes, weight_bytes)) / std::max<std::uint64_t>(size_bytes, 1);
  if (more <= fit && weight_bytes <= free_bytes) return {};
  std::string help = "Make room.";
  for (std::uint64_t keep = std::min(fit + run.present.size(), kMostKept); keep > 0; --keep) {
    CheckpointsToMake other = run;
    other.keep = keep;
    if (most_more(other) > fit) continue;
    help = "Make room, or give --keep " + std::to_string(keep) + ".";
    break;
  }
  return format_bytes(free_bytes) + " free; the run needs " + std::to_string(more) +
         " more checkpoints at once, of " + format_bytes(size_bytes) + " each, and " +
         format_bytes(weight_bytes) + " for its weights; the run was not started. " + help;
}

Checkpoints::Checkpoints(const Options& options, headrace::DType dtype,
                         headrace::OptimizerRule rule, World& world, Progress& progress)
    : options_(options), world_(world), progress_(progress) {
  if (options.save_every > 0) size_bytes_ = checkpoint_bytes(options.shape, dtype, rule);
}

std::string Checkpoints::folder_of(std::uint64_t step) const {
  return options_.save_folder + "/" + std::string(kPrefix) + std::to_string(step);
}

std::vector<std::uint64_t> Checkpoints::present() const {
  std::vector<std::uint64_t> steps;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(options_.save_folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    std::uint64_t step = 0;
    const char* const end = name.data() + name.size();
    const auto [last, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
    if (error == std::errc{} && last == end) steps.push_back(step);
  }
  std::ranges::sort(steps);
  return steps;
}

void Checkpoints::check(std::uint64_t done, std::uint64_t weight_bytes) const {
  const std::uint64_t every = options_.save_every;
  if (every == 0 || !world_.speaks()) return;
  for (const std::uint64_t step : present()) {
    if (options_.overwrite || step <= done || step > options_.steps || step % every != 0) continue;
    fail(Code::kInvalidArgument, "'" + folder_of(step) +
                                     "' is there already, and this run would save step " +
                                     std::to_string(step) +
                                     " too; the run was not started. Give --save another folder, "
                                     "--overwrite, or go on from it with --load.");
  }
  check_room({done, options_.steps, every, options_.keep, present()}, weight_bytes);
}

void Checkpoints::check_room(const CheckpointsToMake& run, std::uint64_t weight_bytes) const {
  struct statvfs space {};
  if (::statvfs(folder_or_above(options_.save_folder).c_str(), &space) != 0) {
    progress_.message("train_gpt: warning: the free room of '" + options_.save_folder +
                      "' is unknown: " + headrace::base::errno_text(errno) +
                      "; a save may find the disk full");
    return;
  }
  const std::string lack =
      lack_of_room(run, size_bytes_, weight_bytes, std::uint64_t{space.f_bavail} * space.f_frsize);
  if (!lack.empty()) fail(Code::kNoSpace, "'" + options_.save_folder + "' has " + lack);
}

std::vector<std::byte> Checkpoints::state_of(const Course& course) const {
  const std::string text = joined(facts_);
  std::vector<std::byte> state(sizeof course + text.size());
  std::memcpy(state.data(), &course, sizeof course);
  std::memcpy(state.data() + sizeof course, text.data(), text.size());
  return state;
}

Course Checkpoints::course_of(std::span<const std::byte> state, const std::string& where) const {
  const Course course = course_in(state, where);
  std::string text(reinterpret_cast<const char*>(state.data()) + sizeof course,
                   state.size() - sizeof course);
  for (const std::string& fact : facts_) {
    const std::string there = text.substr(0, text.find('\n'));
    text.erase(0, std::min(text.size(), there.size() + 1));
    if (there == fact || !world_.speaks()) continue;
    progress_.message("train_gpt: warning: " + where + " was written with " + there +
                      "; this run continues with " + fact);
  }
  return course;
}

void Checkpoints::remove(std::uint64_t step) const {
  std::error_code error;
  fs::remove_all(folder_of(step), error);
  if (error)
    progress_.message("train_gpt: warning: '" + folder_of(step) +
                      "' could not be removed: " + error.message());
}

void Checkpoints::make_room(std::uint64_t step) const {
  if (!world_.speaks()) return;
  std::error_code ignored;
  fs::create_directories(options_.save_folder, ignored);  // the save says why it cannot be
  if (options_.overwrite && fs::exists(folder_of(step), ignored)) remove(step);
}

bool Checkpoints::after_step(std::uint64_t step, const Course& course, Training& training) {
  if (!is_due(step)) return false;
  progress_.stage("saving step " + std::to_string(step));
  const auto began = Clock::now();
  make_room(step);
  if (options_.save_in_background) {
    under_way_ = {step, began, training.save_in_background(folder_of(step), state_of(course))};
    return true;
  }
  training.save_checkpoint(folder_of(step), state_of(course));
  note(step, began);
  return true;
}

void Checkpoints::settle(std::uint64_t step) {
  if (!under_way_) return;
  const bool done = under_way_->save.done();
  if (!done && !is_due(step)) return;
  const std::uint64_t saved = under_way_->step;
  const auto began = Clock::now();
  finish();
  if (done || !world_.speaks()) return;
  progress_.message("train_gpt: warning: step " + std::to_string(step) +
                    " waited for the save of step " + std::to_string(saved) + ", " +
                    seconds_text(began) +
                    ". Raise --save-every or headrace.background_save_bytes_per_second.");
}

void Checkpoints::finish() {
  if (!under_way_) return;
  const UnderWay ended = *std::exchange(under_way_, std::nullopt);
  if (!ended.save.done()) progress_.stage("saving step " + std::to_string(ended.step));
  ended.save.wait();
  note(ended.step, ended.began);
}

void Checkpoints::note(std::uint64_t step, Clock::time_point began) {
  const std::chrono::duration<double> took = Clock::now() - began;
  saved_.push_back({step, folder_of(step), took.count()});
  if (!world_.speaks()) return;
  progress_.message("train_gpt: step " + std::to_string(step) + " is saved in '" + folder_of(step) +
                    "', in " + seconds_text(began));
  if (options_.keep > 0) remove_older(step);
}

void Checkpoints::remove_older(std::uint64_t step) const {
  std::vector<std::uint64_t> steps = present();
  std::erase_if(steps, [&](std::uint64_t one) { return one > step; });
  for (std::size_t i = 0; i + options_.keep < steps.size(); ++i) remove(steps[i]);
}
}  // namespace train_gpt
