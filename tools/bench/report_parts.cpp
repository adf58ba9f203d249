// SPDX-License-Identifier: Apache-2.0
#include "report_parts.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace headrace::bench {
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

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::string failure_json(int exit_code, const std::string& code, const std::string& text) {
  const Json json = {{"schema_version", kSchemaVersion},
                     {"error", {{"exit_code", exit_code}, {"code", code}, {"text", text}}}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}
}  // namespace headrace::bench
