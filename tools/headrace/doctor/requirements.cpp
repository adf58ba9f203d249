// SPDX-License-Identifier: Apache-2.0
#include "doctor/requirements.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error_text.hpp"
#include "command_line/quantities.hpp"
#include "platform/proc_files.hpp"

namespace headrace::tools {
namespace {
// Less is a unit that was forgotten.
constexpr std::uint64_t kLeastBytes = 4096;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 62;

enum class Takes : std::uint8_t { kNothing, kCount, kSize };

struct Known {
  std::string_view name;
  Takes takes;
  std::string_view fix;  // where the row has none
};
constexpr std::array kKnown{
    Known{"io_uring", Takes::kNothing, "a kernel and a container policy that allow io_uring"},
    Known{"libaio", Takes::kNothing, "a kernel and a container policy that allow Linux AIO"},
    Known{"threads", Takes::kNothing, "a higher limit on processes (ulimit -u)"},
    Known{"o_direct", Takes::kNothing, "name a directory on ext4 or xfs that can be written to"},
    Known{"writable", Takes::kNothing, "name a directory that this user may write to"},
    Known{"free", Takes::kSize, "free some space, or name a directory on another file system"},
    Known{"memory", Takes::kSize, "more memory, or a higher limit of the container or job"},
    Known{"memlock", Takes::kSize, "ulimit -l unlimited; of a container: --ulimit memlock=-1"},
    Known{"huge_pages", Takes::kNothing,
          "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"},
    Known{"nofile", Takes::kCount, "ulimit -n"},
    Known{"cpus", Takes::kCount, "more CPUs: taskset, --cpus of the container, --cpus-per-task"},
    Known{"avx2", Takes::kNothing, "a CPU with AVX2, or a virtual machine that shows it"},
    Known{"avx512", Takes::kNothing, "a CPU with AVX-512, or a virtual machine that shows it"},
    Known{"amx_bf16", Takes::kNothing, "a CPU with AMX, or a virtual machine that shows it"},
    Known{"gpu", Takes::kCount, "that many NVIDIA GPUs, their driver, and a build with CUDA"},
    Known{"cuda", Takes::kNothing, "the NVIDIA driver, or --gpus all of the container"},
    Known{"nccl", Takes::kNothing, "libnccl2 in the library path (LD_LIBRARY_PATH)"}};

[[noreturn]] void refuse_unknown(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Known& known : kKnown) names.push_back(known.name);
  // Of a name the beginning, else one that is misspelt.
  const auto begun = std::ranges::find_if(
      names, [&](std::string_view known) { return name.size() > 2 && known.starts_with(name); });
  const std::string_view nearest = begun != names.end() ? *begun : base::nearest_word(name, names);
  throw command_line::Fault{
      fmt::format("--require '{}' is nothing that is looked for", name),
      fmt::format("{}Known: {}", nearest.empty() ? "" : fmt::format("Did you mean {}? ", nearest),
                  requirement_names())};
}

std::uint64_t amount_of(const Known& known, const std::string& text, std::string_view amount,
                        bool given) {
  const std::string name(known.name);
  if (known.takes == Takes::kNothing) {
    if (given) throw command_line::Fault{"--require " + text + " takes no amount", "Give " + name};
    return 1;
  }
  if (known.takes == Takes::kSize) {
    if (amount.empty())
      throw command_line::Fault{"--require " + text + " has no size", "Give " + name + "=8GiB"};
    return command_line::to_bytes("--require " + name, std::string(amount),
                                  {kLeastBytes, kMostBytes});
  }
  if (!given && name == "gpu") return 1;
  if (const auto count = platform::parse_number(amount)) return *count;
  throw command_line::Fault{"--require " + text + " has no number", "Give " + name + "=4"};
}

std::string found_text(const Section& section, const Row& row) {
  std::string text = row.value.empty() ? "not known" : row.value;
  if (!section.path.empty()) text += " (at " + section.path + ")";
  return text;
}
}  // namespace

std::string requirement_names() {
  std::string names;
  for (const Known& known : kKnown) {
    names += fmt::format("{}{}{}", names.empty() ? "" : ", ", known.name,
                         known.takes == Takes::kSize    ? "=SIZE"
                         : known.takes == Takes::kCount ? "=N"
                                                        : "");
  }
  return names;
}

std::vector<Requirement> parse_requirements(const std::string& list) {
  std::vector<Requirement> required;
  for (const std::string_view word : platform::split(list, ',')) {
    const std::string text(platform::trimmed(word));
    const std::size_t equals = text.find('=');
    const std::string_view name = std::string_view(text).substr(0, equals);
    const auto known = std::ranges::find(kKnown, name, &Known::name);
    if (known == kKnown.end()) refuse_unknown(name);
    const bool given = equals != std::string::npos;
    const std::string_view amount = given ? std::string_view(text).substr(equals + 1) : "";
    required.push_back({std::string(name), amount_of(*known, text, amount, given), text});
  }
  return required;
}

std::vector<Missed> missed_requirements(const std::vector<Requirement>& required,
                                        const std::vector<Section>& sections) {
  std::vector<Missed> missed;
  const auto judge = [&](const Requirement& wanted, const Section& section, const Row& row) {
    for (const Finding& finding : row.findings) {
      if (finding.name != wanted.name) continue;
      if (finding.amount && *finding.amount >= wanted.amount) continue;
      const auto known = std::ranges::find(kKnown, wanted.name, &Known::name);
      missed.push_back({wanted.text, found_text(section, row),
                        row.fix.empty() ? std::string(known->fix) : row.fix});
    }
  };
  for (const Requirement& wanted : required)
    for (const Section& section : sections)
      for (const Row& row : section.rows) judge(wanted, section, row);
  return missed;
}
}  // namespace headrace::tools
