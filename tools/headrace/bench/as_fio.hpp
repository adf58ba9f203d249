// SPDX-License-Identifier: Apache-2.0
// as_fio.hpp: a workload in fio's words, and fio's answer as a Sample.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "bench/measurement.hpp"
#include "program/failing.hpp"

namespace headrace::tools {
// An addition to fio's environment. With it, fio's buffers are on 2 MiB pages, as Headrace's are.
inline constexpr const char* kFioTunables = "GLIBC_TUNABLES";
inline constexpr const char* kFioTunablesValue = "glibc.malloc.hugetlb=1";

// fio and its arguments, for exec: `size` bytes from `offset` of a file that exists, each job its
// own part. A file is neither made nor extended, and reads open it for reading only. A queue of
// threads is as many jobs as its depth. Throws Error kInvalidArgument where a job's part would have
// no block.
//   seed  that fio draws from whether rw's next request reads or writes: one seed and one size give
//         one mix, of 16 MiB easily 12 reads and 20 writes of 1 MiB. 0: another each time
std::vector<std::string> fio_arguments(const Workload& workload, const std::string& path,
                                       std::uint64_t offset, std::uint64_t size,
                                       std::uint32_t seed = 0);
// The same as a line for a shell; fio may make the file.
std::string fio_command(const Workload& workload, const std::string& path, std::uint64_t offset,
                        std::uint64_t size);

// fio's answer. Throws Error kIo where it failed or printed anything else; `errors` is its stderr.
Json fio_json(const std::string& output, const std::string& errors, int exit_code);
// Seconds are of fio's own clock, which counts milliseconds; CPU seconds are those of its jobs
// alone. Latencies are fio's "clat", in full, by the bins of json+. Throws Error kIo where the job
// failed or moved nothing, kInvalidArgument where a field is missing.
TimedSample sample_of_fio(const Json& output, std::uint32_t round);
}  // namespace headrace::tools
