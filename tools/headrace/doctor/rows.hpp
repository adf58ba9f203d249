// SPDX-License-Identifier: Apache-2.0
// rows.hpp: the findings of `headrace doctor`: rows in sections, each with a mark.
//
// Each section looks at one part of the machine and changes nothing. `root` prefixes /proc and /sys
// in what is read of them (not in what is tried): for tests. What cannot be read is kUnknown.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "headrace/cuda.hpp"
#include "headrace/settings.hpp"
#include "machine/drive_facts.hpp"
#include "machine/gpus.hpp"
#include "platform/block_devices.hpp"
#include "program/failing.hpp"

namespace headrace::tools {
enum class Mark : std::uint8_t {
  kOk,
  kNote,  // it works, and slower or less of it than it could
  kGap,   // it does not work
  kUnknown,
};
const char* name_of(Mark mark) noexcept;  // "ok", "note", "gap", "unknown"

inline constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

// Something that --require may ask for by name, and how much of it there is: 0 or 1 for what is or
// is not there; nothing where that is not known.
struct Finding {
  std::string name;
  std::optional<std::uint64_t> amount;
};

struct Row {
  std::string name, value = {};
  Mark mark = Mark::kOk;
  std::string detail = {};
  std::string consequence = {}, fix = {};  // of notes and gaps
  Json values = Json::object();            // the same for programs
  std::vector<Finding> findings = {};
};

struct Section {
  std::string title;
  std::string path;  // of the section of a path; else empty
  std::vector<Row> rows;
};

Section system_section();                                 // kernel, limits on files
Section processor_section(const std::string& root = "");  // features, cores, what may be used
Section memory_section(const std::string& root = "");     // what is left, huge pages, memlock
// io_uring, Linux AIO and threads, each tried with a block of data in memory.
Section queue_section();
// Makes no CUDA context, so it cannot report the free memory of GPUs.
Section gpu_section(const std::string& root = "");
// Files are made at `path` and are gone again. Throws headrace::Error kNotFound where it is no
// directory.
Section path_section(const std::string& path);

// variable(name) is its value, or null. Moves no byte to another rank.
using Variable = std::function<const char*(const char* name)>;
Section ranks_section(const Variable& variable, const std::string& root = "");

// The drives below a path. It tries nothing, so a made-up /sys is enough.
std::vector<Row> drive_rows(const DriveFacts& facts, const std::string& root = "");

// Seconds of single flushes (fdatasync) of a block of `file` that is written over in place, some
// 0.3 s in all; none if `file` is none or cannot be flushed.
std::vector<double> flush_times(const base::UniqueFd& file);
// Their median, of which there is one, judged by the drives that it went to.
Row flush_row(std::vector<double> seconds, const DriveFacts& facts);

// The store that durable settings name: whether it is on these paths, and whether they have room
// for it. `parameters`: of the model that is trained; 0: not known. Opens a store that is there, as
// `headrace store list` does.
Section store_section(const Settings& settings, const std::vector<std::string>& paths,
                      std::uint64_t parameters);

// The build's support of GPUs, and the GPUs that CUDA shows.
std::vector<Row> cuda_rows(const CudaFacts& facts, const GpuFacts& plugged);

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

// Splits "cause; consequence; fix", the form of the library's errors, into the parts of a row.
void tell_error(Row& row, const std::string& text);

std::string count_text(double count);  // "1.5 billion", "20.0 million"
}  // namespace headrace::tools
