// SPDX-License-Identifier: Apache-2.0
#include "bench/workload.hpp"

#include <fmt/core.h>

#include <array>
#include <utility>

#include "base/units.hpp"
#include "program/io_queue_names.hpp"

namespace headrace::tools {
namespace {
constexpr std::array<std::pair<Pattern, std::string_view>, 5> kPatterns{
    {{Pattern::kRead, "read"},
     {Pattern::kWrite, "write"},
     {Pattern::kRandRead, "randread"},
     {Pattern::kRandWrite, "randwrite"},
     {Pattern::kMixed, "rw"}}};

}  // namespace

std::string_view name_of(Pattern pattern) {
  for (const auto& [value, name] : kPatterns) {
    if (value == pattern) return name;
  }
  return "";
}

std::optional<Pattern> pattern_of(std::string_view name) {
  if (name == "readwrite") return Pattern::kMixed;  // fio takes both
  for (const auto& [value, known] : kPatterns) {
    if (known == name) return value;
  }
  return std::nullopt;
}

std::string block_text(std::uint64_t bytes) {
  if (bytes % base::kMiB == 0) return fmt::format("{}M", bytes / base::kMiB);
  if (bytes % base::kKiB == 0) return fmt::format("{}k", bytes / base::kKiB);
  return std::to_string(bytes);
}

std::string mover_text(const Workload& workload) {
  return workload.mover == Mover::kFio ? "fio " + workload.fio_engine : "headrace";
}

std::string text_of(const Workload& workload) {
  const Workload usual;
  std::string text = fmt::format("{} {} x {}", name_of(workload.pattern),
                                 block_text(workload.block_bytes), workload.depth);
  if (workload.mover != Mover::kQueue) text += ", " + mover_text(workload);
  if (workload.queue != usual.queue) text += fmt::format(", {}", name_of(workload.queue));
  if (workload.jobs != usual.jobs) text += fmt::format(", {} jobs", workload.jobs);
  if (workload.submit_batch != usual.submit_batch)
    text += fmt::format(", batch {}", workload.submit_batch);
  if (!workload.register_buffers) text += ", unregistered";
  return text;
}
}  // namespace headrace::tools
