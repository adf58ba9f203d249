// SPDX-License-Identifier: Apache-2.0
// trace_file.hpp: --trace: events as the JSON array that chrome://tracing and ui.perfetto.dev open.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headrace/trace.hpp"

namespace train_gpt {
// Whether a file that begins so is a trace of this program's, and may be replaced.
bool is_own_trace(std::string_view begin);

// Written as it comes, so that a run that is killed leaves what there was: viewers take an array
// without its end. What overlaps on a lane is put on several rows.
class TraceFile {
 public:
  using Time = headrace::TraceEvent::Time;
  // Throws headrace::Error where it cannot be made. The target was checked.
  explicit TraceFile(const std::string& path);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // One of the trainer's own: "forward", "backward".
  void add_compute(const char* what, std::uint64_t step, Time begin, Time end);
  void add(const headrace::Trace& trace,
           const std::function<std::string(std::uint32_t group)>& group_name);
  // "" as long as all went well; else what is missing, and why.
  std::string fault() const;

 private:
  struct Row {
    int number;
    Time free_from;
  };
  int row_for(const std::string& lane, Time begin, Time end);
  void write(const std::string& text);

  std::string path_;
  int file_;
  const Time start_ = std::chrono::steady_clock::now();
  std::map<std::string, std::vector<Row>> rows_;
  int last_row_ = 0;
  int error_ = 0;
  std::uint64_t lost_ = 0;
};
}  // namespace train_gpt
