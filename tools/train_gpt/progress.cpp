// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "program/output.hpp"

namespace train_gpt {
namespace {
using headrace::tools::tell;

constexpr std::uint64_t kLines = 50;  // about as many, however long the run is

std::string duration(double seconds) {
  const auto whole = static_cast<std::uint64_t>(std::clamp(seconds + 0.5, 0.0, 1e15));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
}
}  // namespace

std::string format_progress(const ProgressState& s) {
  std::string line = fmt::format("step {}/{}  loss {:.4f}  {:.0f} tokens/s", s.step, s.steps,
                                 s.loss, s.tokens_per_second);
  if (s.read_gb_per_second > 0 || s.write_gb_per_second > 0)
    line +=
        fmt::format("  read {:.2f} write {:.2f} GB/s", s.read_gb_per_second, s.write_gb_per_second);
  return s.step < s.steps ? line + "  " + duration(s.seconds_left) + " left" : line;
}

void Progress::stage(const std::string& what) {
  if (!shown_) return;
  const std::scoped_lock lock(mutex_);
  line_.clear();
  if (line_.overwrites()) return line_.show(what);
  tell("{}\n", what);
}

void Progress::step(const ProgressState& state) {
  if (!shown_) return;
  const std::scoped_lock lock(mutex_);
  if (line_.overwrites()) return line_.show(format_progress(state));
  const std::uint64_t every = std::max<std::uint64_t>(1, state.steps / kLines);
  if (state.step == 1 || state.step == state.steps || state.step % every == 0)
    tell("{}\n", format_progress(state));
}

void Progress::message(const std::string& line) {
  const std::scoped_lock lock(mutex_);
  line_.clear();
  tell("{}\n", line);
}

void Progress::clear() {
  const std::scoped_lock lock(mutex_);
  line_.clear();
}
}  // namespace train_gpt
