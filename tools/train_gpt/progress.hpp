// SPDX-License-Identifier: Apache-2.0
// progress.hpp: the progress of a run on stderr: a line that is overwritten on a terminal, some
// fifty lines elsewhere.
#pragma once
#include <cstdint>
#include <mutex>
#include <string>

#include "program/progress.hpp"

namespace train_gpt {
struct ProgressState {
  std::uint64_t step = 0;
  std::uint64_t steps = 0;
  double loss = 0;
  double tokens_per_second = 0;
  double read_gb_per_second = 0;  // NVMe; 0 is not shown
  double write_gb_per_second = 0;
  double seconds_left = 0;
};

// "step 12/100  loss 2.3456  1204 tokens/s  read 1.20 write 0.90 GB/s  2m03s left".
std::string format_progress(const ProgressState& state);

// Threads: any, for message(); the others one at a time.
class Progress {
 public:
  // `shown` false: messages only.
  explicit Progress(bool shown) : shown_(shown) {}

  void stage(const std::string& what);  // "writing the swap files"
  void step(const ProgressState& state);
  void message(const std::string& line);  // e.g. a warning: above the line
  void clear();

 private:
  bool shown_;
  headrace::tools::ProgressLine line_;
  std::mutex mutex_;
};
}  // namespace train_gpt
