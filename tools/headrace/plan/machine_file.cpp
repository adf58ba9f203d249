// SPDX-License-Identifier: Apache-2.0
// machine_file.cpp: a machine from JSON: what doctor found, what bench measured, or figures by
// name.
#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/error_text.hpp"
#include "headrace/error.hpp"
#include "model/model_text.hpp"
#include "plan/machines.hpp"
#include "program/failing.hpp"

namespace headrace::tools {
namespace {
const char* const kRemedy =
    "Wanted is what headrace doctor or headrace bench wrote with --json, or figures such as "
    "{\"name\": \"node\", "
    "\"gpus\": 1, \"host_bytes\": 68719476736, \"nvme_read\": 7e9}.";

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw Error(Code::kInvalidArgument,
              "--machine '" + path + "': " + what + "; nothing was planned. " + kRemedy);
}

struct Limits {
  double least, most;
};

// As it is meant: nothing is rounded or cut.
double number_of(const std::string& path, const std::string& key, const Json& value, Limits limits,
                 bool or_zero = false) {
  const double number = value.is_number() ? value.get<double>() : -1;
  if (or_zero && number == 0) return 0;
  if (!(number >= limits.least && number <= limits.most)) {
    refuse(path, fmt::format("\"{}\" is {}; it must be {}a number from {} to {:.0f}", key,
                             value.dump(), or_zero ? "0 or " : "", limits.least, limits.most));
  }
  return number;
}

std::uint64_t whole_number_of(const std::string& path, const std::string& key, const Json& value,
                              Limits limits) {
  const double number = number_of(path, key, value, limits);
  if (number != std::floor(number))
    refuse(path, "\"" + key + "\" is " + value.dump() + "; it must be a whole number");
  return value.is_number_unsigned() ? value.get<std::uint64_t>()
                                    : static_cast<std::uint64_t>(number);
}

constexpr Limits kGpus{0, 1024}, kCpus{1, 65536}, kDrives{1, 1024}, kTbw{0.001, 1e9};
constexpr Limits kBytes{0, 0x1p60};

// `usable`: their number, from doctor's row "usable GPUs".
void take_usable_gpus(Machine& m, const std::string& path, const Json& values,
                      std::uint64_t usable) {
  m.gpus = static_cast<std::uint32_t>(usable);
  for (const Json& gpu : values.at("gpus")) {
    if (!gpu.at("served").get<bool>() || !gpu.contains("memory_bytes")) continue;
    const std::uint64_t bytes = whole_number_of(path, "memory_bytes", gpu["memory_bytes"], kBytes);
    m.gpu_memory_bytes = m.gpu_memory_bytes == 0 ? bytes : std::min(m.gpu_memory_bytes, bytes);
  }
}

std::uint32_t gpus_that_may_be_served(const Json& gpus) {
  const auto may_be = [](const Json& gpu) { return gpu.value("model", "") != "AMD"; };
  return static_cast<std::uint32_t>(std::ranges::count_if(gpus, may_be));
}

Machine of_doctor(const std::string& path, const Json& json) {
  Machine m;
  m.name = path;
  m.source = "headrace doctor";
  m.drives = 0;
  std::set<std::uint64_t> devices;  // paths may share one
  const auto whole = [&](const Json& values, const char* key, Limits limits) -> std::uint64_t {
    const auto found = values.find(key);
    if (found == values.end() || found->is_null()) return 0;
    return whole_number_of(path, key, *found, limits);
  };
  for (const Json& section : json.value("sections", Json::array())) {
    for (const Json& row : section.value("rows", Json::array())) {
      const std::string name = row.value("name", "");
      const Json values = row.value("values", Json::object());
      if (name == "usable memory") m.host_bytes = whole(values, "bytes", kBytes);
      if (name == "usable CPUs") m.cpus = static_cast<std::uint32_t>(whole(values, "cpus", kCpus));
      if (name == "free space") {
        const std::uint64_t device = whole(values, "device", kBytes);
        if (device != 0 && !devices.insert(device).second) continue;
        m.nvme_bytes +=
            whole(values, "free_bytes", {0, kBytes.most - static_cast<double>(m.nvme_bytes)});
        ++m.drives;
      }
      if (name == "flush" && values.contains("seconds")) {  // all at once: the slowest
        const double seconds = number_of(path, "seconds", values["seconds"], {1e-7, 60});
        if (seconds > m.flush.value) m.flush = {seconds, "measured: " + path};
      }
      if (name == "GPUs" && values.contains("gpus") && values["gpus"].is_array())
        m.gpus = gpus_that_may_be_served(values["gpus"]);
      if (const std::uint64_t usable = whole(values, "usable", kGpus);
          name == "usable GPUs" && usable > 0)
        take_usable_gpus(m, path, values, usable);
    }
  }
  if (m.host_bytes == 0) refuse(path, "it says nothing of usable memory");
  m.cpus = std::max(1u, m.cpus);
  m.drives = std::max(1u, m.drives);
  return m;
}

// A report's ceilings are of the drives alone: memory and CPUs are this machine's.
Machine of_bench(const std::string& path, const Json& json) {
  Machine m = this_machine();
  m.source += "; drives: headrace bench";
  const Json ceilings = json.value("ceiling_bytes_per_second", Json::object());
  bool any = false;
  for (const auto& [from, to] : {std::pair{"read", "nvme_read"}, std::pair{"write", "nvme_write"},
                                 std::pair{"rw", "nvme_mixed"}}) {
    const auto found = ceilings.find(from);
    if (found == ceilings.end() || !found->is_number() || found->get<double>() == 0) continue;
    any = true;
    *figure_of(m, to) = {number_of(path, from, *found, {1e6, 1e15}), "measured: " + path};
  }
  if (!any)
    refuse(path,
           "no read, write or rw in \"ceiling_bytes_per_second\", and nothing else of a "
           "bench report is used");
  const Json drives = json.value("drives", Json::array());
  m.drives = std::max<std::uint32_t>(1, static_cast<std::uint32_t>(drives.size()));
  return m;
}

Machine of_figures(const std::string& path, const Json& json) {
  Machine m;
  m.name = path;
  m.source = "a file of figures";
  for (const auto& [key, value] : json.items()) {
    const auto whole = [&, &key = key, &value = value](Limits limits) {
      return whole_number_of(path, key, value, limits);
    };
    const auto small = [&](Limits limits) { return static_cast<std::uint32_t>(whole(limits)); };
    if (key == "name") {
      if (!value.is_string()) refuse(path, "\"name\" is no text");
      m.name = value.get<std::string>();
    } else if (key == "gpus") {
      m.gpus = small(kGpus);
    } else if (key == "cpus") {
      m.cpus = small(kCpus);
    } else if (key == "drives") {
      m.drives = small(kDrives);
    } else if (key == "gpu_memory_bytes") {
      m.gpu_memory_bytes = whole(kBytes);
    } else if (key == "host_bytes") {
      m.host_bytes = whole(kBytes);
    } else if (key == "nvme_bytes") {
      m.nvme_bytes = whole(kBytes);
    } else if (key == "drive_tbw") {
      m.drive_tbw = number_of(path, key, value, kTbw);
    } else {
      const auto& names = figure_names();
      const auto name = std::ranges::find(names, key, &FigureName::name);
      if (name == names.end()) refuse(path, "\"" + key + "\" is no figure of a machine");
      // Of both directions together 0 is one after the other.
      const bool or_zero = key == "nvme_mixed";
      m.*(name->figure) = {number_of(path, key, value, {name->least, name->most}, or_zero),
                           "given: " + path};
    }
  }
  return m;
}
}  // namespace

std::string text_of_file(const std::string& option, const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (file) text << file.rdbuf();
  if (!file) {
    throw Error(errno == ENOENT ? Code::kNotFound : Code::kIo,
                option + " '" + path + "' cannot be read: " + base::errno_text(errno) +
                    "; nothing was planned. Give another file, or make it readable.",
                errno);
  }
  return text.str();
}

Machine machine_of_file(const std::string& path) {
  const std::string text = text_of_file("--machine", path);
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) refuse(path, json_fault(text));
  if (!json.is_object()) refuse(path, "no object");
  try {
    const std::string program = json.value("program", "");
    if (program == "headrace doctor") return of_doctor(path, json);
    if (program == "headrace bench") return of_bench(path, json);
    return of_figures(path, json);
  } catch (const Json::exception& error) {
    refuse(path, error.what());
  }
}
}  // namespace headrace::tools
