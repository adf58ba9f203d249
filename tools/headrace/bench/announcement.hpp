// SPDX-License-Identifier: Apache-2.0
// announcement.hpp: announces, and checks, the reads and writes of a run of `headrace bench` before
// it starts.
#pragma once
#include <string>
#include <vector>

#include "bench/measurement.hpp"
#include "bench/options.hpp"

namespace headrace::tools {
// Throws command_line::Fault where the workloads cannot be measured as asked: writes to what is
// only read, a block larger than a part of the file, fewer bytes allowed than the least.
void check_workloads(const BenchOptions& options);

// Throws Error kInvalidArgument where a file of so many bytes has no block for each job.
void check_file(const BenchOptions& options, const std::string& file, std::uint64_t bytes);

// Throws command_line::Fault where two paths are one directory, by whatever name.
void check_paths(const std::vector<std::string>& paths);

// A default file that does not fit becomes smaller, which is a warning; one that was asked for is
// refused: here where several paths share a file system, later where one is alone. Throws
// headrace::Error kNoSpace.
void fit_to_drives(BenchOptions& options, std::vector<std::string>& warnings);

// "at most 60 s; writes at most 8 GiB to each of 1 drive: ...".
std::string announcement(const BenchOptions& options);

// Of page cache, memory-backed file systems, what is only read, paths on one file system.
void add_drive_warnings(Measurement& measurement);
}  // namespace headrace::tools
