// SPDX-License-Identifier: Apache-2.0
#include "program/report_parts.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace headrace::tools {
std::string fact_lines(const char* title, const std::vector<Fact>& facts) {
  std::string text = fmt::format("{}\n", title);
  for (const Fact& fact : facts) text += fmt::format("  {:<15} {}\n", fact.name, fact.value);
  return text;
}

Json to_object(const std::vector<Fact>& facts) {
  Json object = Json::object();
  for (const Fact& fact : facts) object[fact.name] = fact.value;
  return object;
}

std::string grouped(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3;) {
    at -= 3;
    text.insert(at, ",");
  }
  return text;
}

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}
}  // namespace headrace::tools
