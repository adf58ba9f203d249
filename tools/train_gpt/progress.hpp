// SPDX-License-Identifier: Apache-2.0
// progress.hpp: what is seen while the run goes on: a bar on a terminal, plain lines elsewhere. All
// on stderr.
#pragma once
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>

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

// "4s", "2m03s", "1h05m".
std::string format_duration(double seconds);
// "12.3 GiB", "512 B": powers of 1024.
std::string format_bytes(double bytes);
// "step 12/100  loss 2.3456  1204 tokens/s  read 1.20 write 0.90 GB/s  2m03s left".
std::string format_progress_line(const ProgressState& state);
// The same in fewer words behind a bar, where `columns` leave room for one; never wider than they
// are. `colour` adds escapes, which take none.
std::string format_progress_bar(const ProgressState& state, std::uint32_t columns, bool colour);

// Threads: any, for message(); the others one at a time.
class Progress {
 public:
  // `shown` false: messages only.
  Progress(std::FILE* out, bool shown);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void stage(std::string_view what);  // "writing the swap files"
  void step(const ProgressState& state);
  void message(std::string_view line);  // e.g. a warning: above the bar
  void clear();

 private:
  void erase_bar();
  std::FILE* out_;
  bool shown_;
  bool terminal_;
  bool colour_;
  bool bar_drawn_ = false;
  std::mutex mutex_;
};
}  // namespace train_gpt
