// SPDX-License-Identifier: Apache-2.0
#include "program/machine.hpp"

#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/units.hpp"
#include "headrace/version.hpp"
#include "optimizer_cpu/update.hpp"
#include "platform/machine.hpp"
#include "platform/proc_files.hpp"

namespace headrace::tools {
namespace {
std::string read_line(const char* path, std::string_view before = "") {
  const std::string text = platform::read_text(path).value_or("");
  const std::size_t at = text.find(before);
  if (at == std::string::npos) return "unknown";
  const std::string rest = text.substr(at + before.size());
  return rest.substr(0, rest.find('\n'));
}

std::string cpu_model() {
  const std::string line = read_line("/proc/cpuinfo", "model name");
  const std::size_t colon = line.find(": ");
  return colon == std::string::npos ? line : line.substr(colon + 2);
}

std::string kernel() {
  utsname name{};
  return ::uname(&name) == 0 ? fmt::format("{} {}", name.sysname, name.release) : "unknown";
}

std::string huge_pages() {
  const std::string line = read_line("/sys/kernel/mm/transparent_hugepage/enabled");
  const std::size_t from = line.find('['), to = line.find(']');
  return to == std::string::npos ? line : line.substr(from + 1, to - from - 1);
}

double load() {
  double one = 0;
  return ::getloadavg(&one, 1) == 1 ? one : 0;
}

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}
}  // namespace

std::vector<Fact> machine_facts() {
  const std::string memory = platform::read_text("/proc/meminfo").value_or("");
  const std::uint64_t total = platform::named_number(memory, "MemTotal:").value_or(0) * base::kKiB;
  const platform::Limit cpus = platform::usable_cpus();
  return {{"cpu", cpu_model()},
          {"usable cpus", fmt::format("{} ({})", cpus.value, cpus.source)},
          {"memory", base::format_bytes(total)},
          {"huge pages", huge_pages()},
          {"kernel", kernel()},
          {"load", fmt::format("{:.1f}", load())}};
}

std::vector<Fact> build_facts() {
  const std::string sanitizers = HEADRACE_SANITIZERS;
  return {{"headrace", headrace::version()},
          {"compiler",
#ifdef __clang__
           fmt::format("clang {}", __clang_version__)
#else
           fmt::format("gcc {}", __VERSION__)
#endif
          },
          {"build type", HEADRACE_BUILD_TYPE},
          {"sanitizers", sanitizers.empty() ? "none" : sanitizers},
          {"update kernel", name_of(kernels::choose_instruction_set())}};
}

std::string load_doubt(double load, std::uint64_t cpus) {
  if (load <= static_cast<double>(cpus)) return "";
  return fmt::format(
      "load {:.1f} on {} CPU{}; others' work is in the figures; wait for an idle machine, or trust "
      "the ratios and their spread only",
      load, cpus, cpus == 1 ? "" : "s");
}

std::vector<std::string> doubts() {
  std::vector<std::string> lines;
#ifndef NDEBUG
  lines.emplace_back(
      "built with assertions (no NDEBUG); the figures are too low; configure with "
      "-DCMAKE_BUILD_TYPE=Release");
#endif
#ifndef __OPTIMIZE__
  lines.emplace_back(
      "built without optimisation; the figures say nothing; configure with "
      "-DCMAKE_BUILD_TYPE=Release");
#endif
  if (HEADRACE_SANITIZERS[0] != '\0') {
    lines.emplace_back(
        "built with sanitizers; the figures say nothing; leave HEADRACE_SANITIZE out");
  }
  if (std::string busy = load_doubt(load(), platform::usable_cpus().value); !busy.empty())
    lines.push_back(std::move(busy));
  return lines;
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}
}  // namespace headrace::tools
