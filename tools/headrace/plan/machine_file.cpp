// SPDX-License-Identifier: Apache-2.0
// machine_file.cpp: a machine from JSON: what doctor found, or figures by name.
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error_text.hpp"
#include "headrace/error.hpp"
#include "plan/machines.hpp"

namespace headrace::tools {
namespace {
using Json = nlohmann::ordered_json;

const char* const kRemedy =
    "Wanted is what headrace doctor --json FILE wrote, or figures such as {\"name\": \"node\", "
    "\"gpus\": 1, \"host_bytes\": 68719476736, \"nvme_read\": 7e9}.";

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw Error(Code::kInvalidArgument,
              "--machine '" + path + "': " + what + "; nothing was planned. " + kRemedy);
}

double number_of(const std::string& path, const std::string& key, const Json& value) {
  const double number = value.is_number() ? value.get<double>() : -1;
  if (!(number >= 0 && number <= 1e24)) refuse(path, "\"" + key + "\" is no number from 0 to 1e24");
  return number;
}

std::uint64_t or_zero(const Json& values, const char* key) {
  const auto found = values.find(key);
  return found != values.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

Machine of_doctor(const std::string& path, const Json& json) {
  Machine m;
  m.name = path;
  m.source = "headrace doctor";
  m.drives = 0;
  for (const Json& section : json.value("sections", Json::array())) {
    for (const Json& row : section.value("rows", Json::array())) {
      const std::string name = row.value("name", "");
      const Json values = row.value("values", Json::object());
      if (name == "usable memory") m.host_bytes = or_zero(values, "bytes");
      if (name == "usable CPUs") m.cpus = static_cast<std::uint32_t>(or_zero(values, "cpus"));
      if (name == "free space") {
        m.nvme_bytes += or_zero(values, "free_bytes");
        ++m.drives;  // one path each
      }
      if (name == "GPUs" && values.contains("gpus") && values["gpus"].is_array())
        m.gpus = static_cast<std::uint32_t>(values["gpus"].size());
    }
  }
  if (m.host_bytes == 0) refuse(path, "it says nothing of usable memory");
  m.cpus = std::max(1u, m.cpus);
  m.drives = std::max(1u, m.drives);
  return m;
}

Machine of_figures(const std::string& path, const Json& json) {
  Machine m;
  m.name = path;
  m.source = "a file of figures";
  for (const auto& [key, value] : json.items()) {
    if (key == "name" && value.is_string()) {
      m.name = value.get<std::string>();
      continue;
    }
    Figure* const figure = figure_of(m, key);
    const double number = number_of(path, key, value);
    const auto whole = static_cast<std::uint64_t>(number);
    const auto small = static_cast<std::uint32_t>(std::min<std::uint64_t>(whole, 1'000'000));
    if (figure != nullptr) {
      *figure = {number, "given: " + path};
    } else if (key == "gpus") {
      m.gpus = small;
    } else if (key == "cpus") {
      m.cpus = std::max(1u, small);
    } else if (key == "drives") {
      m.drives = std::max(1u, small);
    } else if (key == "gpu_memory_bytes") {
      m.gpu_memory_bytes = whole;
    } else if (key == "host_bytes") {
      m.host_bytes = whole;
    } else if (key == "nvme_bytes") {
      m.nvme_bytes = whole;
    } else if (key == "drive_tbw") {
      m.drive_tbw = number;
    } else {
      refuse(path, "\"" + key + "\" is no figure of a machine");
    }
  }
  return m;
}
}  // namespace

Machine machine_of_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (file) text << file.rdbuf();
  if (!file) {
    throw Error(Code::kIo,
                "--machine '" + path + "' cannot be read: " + base::errno_text(errno) +
                    "; nothing was planned. Give another file, or make it readable.",
                errno);
  }
  Json json;
  try {
    json = Json::parse(text.str());
  } catch (const Json::exception& error) {
    refuse(path, std::string("not JSON: ") + error.what());
  }
  if (!json.is_object()) refuse(path, "no object");
  try {
    const bool doctor = json.value("program", "") == "headrace doctor";
    return doctor ? of_doctor(path, json) : of_figures(path, json);
  } catch (const Json::exception& error) {
    refuse(path, error.what());
  }
}
}  // namespace headrace::tools
