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

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw Error(
      Code::kInvalidArgument,
      fmt::format("--write {}: {}, so headrace tune did not write it; it would be lost, and "
                  "nothing was measured. Name another file, and merge its headrace keys "
                  "into this one",
                  path, what));
}

// The content of a file; no value if replacing it loses nothing.
std::optional<Json> content_of(const std::string& path) {
  std::error_code ignored;
  if (path.empty() || path == "-" || !std::filesystem::is_regular_file(path, ignored))
    return std::nullopt;
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (in && text.empty()) return std::nullopt;
  const Json json = Json::parse(text, nullptr, false);
  if (!in || json.is_discarded()) refuse(path, "it holds no plain JSON");
  if (!json.is_object()) refuse(path, "it holds no JSON object");
  return json;
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

void check_replaceable_settings(const std::string& path) {
  const auto content = content_of(path);
  if (!content) return;
  const Json model = settings_fragment({}, {});
  std::string foreign = foreign_key(*content, model);
  if (!foreign.empty()) refuse(path, "it holds \"" + foreign + "\"");
  if (!content->contains("headrace") || !(*content)["headrace"].is_object())
    refuse(path, "it has no \"headrace\"");
  foreign = foreign_key((*content)["headrace"], model["headrace"]);
  if (!foreign.empty()) refuse(path, "it holds \"headrace." + foreign + "\"");
  if (!(*content)["headrace"].contains("tuned")) refuse(path, "it has no \"headrace.tuned\"");
}
}  // namespace headrace::tools
