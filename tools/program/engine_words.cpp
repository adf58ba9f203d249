// SPDX-License-Identifier: Apache-2.0
#include "program/engine_words.hpp"

#include <array>
#include <string_view>

namespace headrace::tools {
namespace {
struct Words {
  std::string_view settings, program;
};
constexpr std::array kWords{
    Words{"nvme_path '", "'"},
    Words{"another nvme_path", "another directory"},
    Words{"a shorter nvme_path", "a shorter path"},
    Words{"nothing can be swapped there", "no file can be made there"},
    Words{"what is swapped stays in memory, as headrace.allow_memory_backed allows",
          "it is memory that is used, not a drive"},
    Words{"; or move more to drives: set zero_optimization.offload_optimizer.device and "
          "offload_param.device to nvme where they are not, and headrace.host_budget_bytes to less",
          "; or ask for less: fewer --jobs, a smaller --bs or --iodepth"},
};
}  // namespace

std::string without_settings(std::string text) {
  for (const auto& [settings, program] : kWords) {
    for (std::size_t at = 0; (at = text.find(settings, at)) != std::string::npos;
         at += program.size())
      text.replace(at, settings.size(), program);
  }
  return text;
}
}  // namespace headrace::tools
