// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/weight_map.hpp"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error_text.hpp"

namespace headrace::checkpoint {
namespace {
using Json = nlohmann::json;
constexpr const char* kKey = "weight_map";

// Takes what is in the weight_map as it comes: a tree of the text would keep one of equal names.
class ParseMap final : public nlohmann::json_sax<Json> {
 public:
  FilesByTensor take() {
    if (!fault_ && !found_) fault_ = "no object weight_map";
    if (fault_) throw SafetensorsFault{*fault_};
    return std::move(files_);
  }

  bool null() override { return value(nullptr); }
  bool boolean(bool) override { return value(nullptr); }
  bool number_integer(std::int64_t) override { return value(nullptr); }
  bool number_unsigned(std::uint64_t) override { return value(nullptr); }
  bool number_float(double, const std::string&) override { return value(nullptr); }
  bool string(std::string& text) override { return value(&text); }
  bool binary(Json::binary_t&) override { return value(nullptr); }
  bool start_array(std::size_t) override { return open(); }
  bool end_array() override { return close(); }
  bool end_object() override { return close(); }
  bool start_object(std::size_t) override {
    if (depth_ == kIndex && name_ == kKey) {
      if (std::exchange(found_, true)) note("weight_map occurs twice");
      in_map_ = true;
    }
    return open();
  }
  bool key(std::string& name) override {
    if (in_map_ && depth_ == kFiles && files_.contains(name))
      note(base::quoted_name(name) + " occurs twice in weight_map");
    if (depth_ == kIndex || depth_ == kFiles) name_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const Json::exception&) override {
    return false;
  }

 private:
  // Containers that are open around a value.
  enum Depth : std::size_t { kIndex = 1, kFiles };

  void note(std::string fault) {
    if (!fault_) fault_ = std::move(fault);
  }
  bool open() {
    value(nullptr);
    ++depth_;
    return true;
  }
  bool close() {
    if (--depth_ == kIndex) in_map_ = false;
    return true;
  }
  bool value(std::string* text) {
    if (!in_map_ || depth_ != kFiles) return true;
    if (text == nullptr) note("weight_map names no file for " + base::quoted_name(name_));
    if (text != nullptr) files_[name_] = std::move(*text);
    return true;
  }

  FilesByTensor files_;
  std::optional<std::string> fault_;  // the first one
  std::string name_;                  // of the value that comes
  std::size_t depth_ = 0;
  bool found_ = false, in_map_ = false;
};
}  // namespace

FilesByTensor parse_weight_map(std::string_view text) {
  ParseMap parse;
  if (!Json::sax_parse(text, &parse)) throw SafetensorsFault{"no object weight_map", true};
  return parse.take();
}
}  // namespace headrace::checkpoint
