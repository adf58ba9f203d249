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
};
constexpr std::string_view kMoreOnDrives =
    "; or move more to drives: set zero_optimization.offload_optimizer.device and "
    "offload_param.device to nvme where they are not, and headrace.host_budget_bytes to less";

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}
}  // namespace

std::string without_settings(std::string text, const std::string& less) {
  for (const auto& [settings, program] : kWords) replace_all(text, settings, program);
  replace_all(text, kMoreOnDrives, less.empty() ? "" : "; or ask for less: " + less);
  return text;
}
}  // namespace headrace::tools
