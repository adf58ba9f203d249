// SPDX-License-Identifier: Apache-2.0
#include "trace_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "failures.hpp"

namespace train_gpt {
namespace {
using Json = nlohmann::ordered_json;
using headrace::TraceEvent;
constexpr const char* kBegin =
    "[{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"args\":{\"name\":\"train_gpt\"}}";

double microseconds(TraceFile::Time::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}
}  // namespace

bool is_own_trace(std::string_view begin) { return begin.starts_with(kBegin); }

TraceFile::TraceFile(const std::string& path)
    : path_(path), file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (file_ < 0) {
    const int number = errno;
    fail(headrace::Code::kIo,
         "cannot write '" + path + "': " + errno_text(number) +
             "; the run was not started. Give --trace another file, or leave it out.",
         number);
  }
  write(kBegin);
}

TraceFile::~TraceFile() {
  write("\n]\n");
  ::close(file_);
}

void TraceFile::write(const std::string& text) {
  std::string_view left = text;
  while (!left.empty() && error_ == 0) {
    const ssize_t written = ::write(file_, left.data(), left.size());
    if (written >= 0) {
      left.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      error_ = errno;
    }
  }
}

// The first row of the lane that is free by then.
int TraceFile::row_for(const std::string& lane, Time begin, Time end) {
  std::vector<Row>& rows = rows_[lane];
  const auto found =
      std::ranges::find_if(rows, [&](const Row& row) { return row.free_from <= begin; });
  if (found != rows.end()) {
    found->free_from = end;
    return found->number;
  }
  rows.push_back({++last_row_, end});
  const std::string name = lane + (rows.size() > 1 ? " " + std::to_string(rows.size()) : "");
  write(",\n" + Json{{"name", "thread_name"},
                     {"ph", "M"},
                     {"pid", 1},
                     {"tid", last_row_},
                     {"args", {{"name", name}}}}
                    .dump());
  return last_row_;
}

void TraceFile::add_compute(const char* what, std::uint64_t step, Time begin, Time end) {
  write(",\n" + Json{{"name", what},
                     {"cat", "compute"},
                     {"ph", "X"},
                     {"ts", microseconds(begin - start_)},
                     {"dur", microseconds(end - begin)},
                     {"pid", 1},
                     {"tid", row_for("compute", begin, end)},
                     {"args", {{"step", step}}}}
                    .dump());
}

void TraceFile::add(const headrace::Trace& trace,
                    const std::function<std::string(std::uint32_t group)>& group_name) {
  lost_ += trace.lost;
  std::vector<TraceEvent> events = trace.events;
  std::ranges::sort(events, {}, &TraceEvent::begin);  // rows are filled from the left
  for (const TraceEvent& event : events) {
    const std::string lane = headrace::lane_name(event.lane);
    const bool named = event.group != TraceEvent::kNone;
    Json arguments = {{"step", event.step}};
    if (event.tile != TraceEvent::kNone) arguments["tile"] = event.tile;
    const double seconds = 1e-6 * microseconds(event.end - event.begin);
    if (event.bytes > 0) {
      arguments["bytes"] = event.bytes;
      if (seconds > 0) arguments["GB/s"] = static_cast<double>(event.bytes) / seconds / 1e9;
    }
    write(",\n" + Json{{"name", std::string(event.what) +
                                    (named ? " " + group_name(event.group) : std::string())},
                       {"cat", lane},
                       {"ph", "X"},
                       {"ts", microseconds(event.begin - start_)},
                       {"dur", microseconds(event.end - event.begin)},
                       {"pid", 1},
                       {"tid", row_for(lane, event.begin, event.end)},
                       {"args", arguments}}
                      .dump());
  }
}

std::string TraceFile::fault() const {
  if (error_ != 0) {
    return "'" + path_ + "' could not be written on: " + errno_text(error_) +
           "; the trace ends before the run did. Give --trace a file where there is room.";
  }
  if (lost_ > 0) {
    return "'" + path_ + "' lacks " + std::to_string(lost_) +
           " events of steps that have more than fit; trace a smaller model.";
  }
  return "";
}
}  // namespace train_gpt
