// SPDX-License-Identifier: Apache-2.0
#include "tune/fragment.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "headrace/error.hpp"
#include "program/io_queue_names.hpp"

namespace headrace::tools {
namespace {
// The key of `object` that `model` does not have; "" where there is none.
std::string foreign_key(const Json& object, const Json& model) {
  for (const auto& [key, value] : object.items()) {
    if (!model.contains(key)) return key;
  }
  return "";
}

[[noreturn]] void refuse(const char* option, const std::string& path, const std::string& what,
                         const char* section) {
  throw Error(Code::kInvalidArgument,
              fmt::format("{} {}: {}, so headrace tune did not write it; it would be lost, and "
                          "nothing was measured. Name another file, and merge its {} keys into "
                          "this one",
                          option, path, what, section));
}

// What a file holds; nothing where replacing it loses nothing.
std::optional<Json> content_of(const char* option, const std::string& path, const char* section) {
  std::error_code ignored;
  if (path.empty() || path == "-" || !std::filesystem::is_regular_file(path, ignored))
    return std::nullopt;
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (in && text.empty()) return std::nullopt;
  const Json json = Json::parse(text, nullptr, false);
  if (!in || json.is_discarded()) refuse(option, path, "it holds no plain JSON", section);
  if (!json.is_object()) refuse(option, path, "it holds no JSON object", section);
  return json;
}

// One section with those keys and no other.
void check_section(const char* option, const std::string& path, const char* section,
                   const Json& content, const Json& model) {
  std::string foreign = foreign_key(content, model);
  if (!foreign.empty()) refuse(option, path, "it holds \"" + foreign + "\"", section);
  if (!content.contains(section) || !content[section].is_object())
    refuse(option, path, fmt::format("it has no \"{}\"", section), section);
  foreign = foreign_key(content[section], model[section]);
  if (!foreign.empty())
    refuse(option, path, fmt::format("it holds \"{}.{}\"", section, foreign), section);
}
}  // namespace

Json settings_fragment(const Candidate& candidate, const Json& where_tuned) {
  return {{"headrace",
           {{"io_block_bytes", candidate.block_bytes},
            {"queue_depth", candidate.depth},
            {"submit_batch", candidate.submit_batch},
            {"io_queue", name_of(candidate.queue)},
            {"register_buffers", candidate.register_buffers ? "auto" : "off"},
            {"tuned", where_tuned}}}};
}

Json deepspeed_fragment(const Candidate& candidate) {
  return {{"aio",
           {{"block_size", candidate.block_bytes},
            {"queue_depth", candidate.depth},
            {"intra_op_parallelism", 1},
            {"single_submit", candidate.submit_batch <= 2},
            {"overlap_events", true},
            {"use_gds", false}}}};
}

void check_replaceable_settings(const std::string& path) {
  const auto content = content_of("--write", path, "headrace");
  if (!content) return;
  check_section("--write", path, "headrace", *content, settings_fragment({}, {}));
  if (!(*content)["headrace"].contains("tuned"))
    refuse("--write", path, "it has no \"headrace.tuned\"", "headrace");
}

void check_replaceable_deepspeed(const std::string& path) {
  const auto content = content_of("--write-deepspeed", path, "aio");
  if (content) check_section("--write-deepspeed", path, "aio", *content, deepspeed_fragment({}));
}
}  // namespace headrace::tools
