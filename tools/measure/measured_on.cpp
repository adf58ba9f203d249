// SPDX-License-Identifier: Apache-2.0
#include "measure/measured_on.hpp"

#include <array>
#include <ctime>

#include "program/report_parts.hpp"

namespace headrace::tools {
MeasuredOn begin_measurement(const char* program, int argc, const char* const* argv) {
  MeasuredOn measured;
  measured.command = program;
  for (int i = 1; i < argc; ++i) measured.command += std::string(" ") + argv[i];
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  std::array<char, 32> date{};
  ::gmtime_r(&now, &utc);
  std::strftime(date.data(), date.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  measured.date = date.data();
  measured.machine = machine_facts();
  measured.build = build_facts();
  measured.warnings = doubts();
  return measured;
}

Json document(const char* program, const MeasuredOn& measured) {
  Json json = document(program);
  json["command"] = measured.command;
  json["date"] = measured.date;
  json["machine"] = to_object(measured.machine);
  json["build"] = to_object(measured.build);
  return json;
}
}  // namespace headrace::tools
