// SPDX-License-Identifier: Apache-2.0
// copy_report.hpp: the report of `headrace bench copy`, for people and for programs.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "bench_copy/copy_contest.hpp"
#include "bench_copy/gpu_link.hpp"
#include "headrace/cuda.hpp"
#include "program/failing.hpp"
#include "program/machine.hpp"

namespace headrace::tools {
std::vector<Fact> gpu_lines(const CudaFacts& facts, const CudaGpu& gpu,
                            const std::optional<GpuLink>& link);
// "gpu": what it is. "link": its name and theoretical rate, or null.
Json gpu_json(const CudaFacts& facts, const CudaGpu& gpu, const std::optional<GpuLink>& link);

// Whose median share is below: of the pinned copies from 4 MiB on (of the largest where none is),
// and of gradients.
std::vector<const CopyRow*> rows_below(const CopyContest& contest, std::optional<double> least);

// At most 100 columns.
std::string copies_text(const CopyContest& contest, const std::optional<GpuLink>& link,
                        std::optional<double> least_share);
// "rounds", "seconds", "limit", "rows", "verification", "required".
Json copies_json(const CopyContest& contest, std::optional<double> least_share);
}  // namespace headrace::tools
