// SPDX-License-Identifier: Apache-2.0
#include "safetensors/header.hpp"

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace headrace::tools {
namespace {
using Json = nlohmann::json;

constexpr std::uint64_t kDataAlignment = 4096;
constexpr std::size_t kMostDimensions = 64;

enum class Kind { kWhole, kText, kObject, kList, kOther };

// The tensors of a header as their fields come, and the first fault of it.
class Tensors {
 public:
  bool in_tensor() const { return in_tensor_; }
  // The first one is told, once all of the text has proved to be JSON.
  void note(std::string cause) {
    if (!fault_) fault_ = std::move(cause);
  }
  TensorsByName take() {
    if (fault_) throw SafetensorsFault{*fault_};
    return std::move(all_);
  }

  void begin(std::string& name) {
    tensor_ = {.name = std::move(name), .dtype = {}, .shape = {}};
    has_dtype_ = has_shape_ = false;
    const bool is_metadata = tensor_.name == "__metadata__";
    if (is_metadata ? std::exchange(has_metadata_, true) : all_.contains(tensor_.name))
      note(quoted() + " occurs twice");
    in_tensor_ = !is_metadata;
  }
  void begin_field(std::string name) { field_ = std::move(name); }
  void take_field(Kind kind, std::string* text) {
    in_shape_ = kind == Kind::kList && field_ == "shape";
    if (field_ == "dtype" && text != nullptr) {
      tensor_.dtype = std::move(*text);
      has_dtype_ = true;
    } else if (in_shape_) {
      tensor_.shape.clear();
      has_shape_ = true;
    } else if (field_ == "shape") {
      note("the shape of " + quoted() + " is no list");
    }
  }
  void take_element(Kind kind, std::uint64_t number) {
    if (!in_shape_) return;
    if (kind != Kind::kWhole) {
      note("a size of " + quoted() + " is not a whole number of 0 or more");
    } else if (number > std::numeric_limits<std::int64_t>::max()) {
      note("a size of " + quoted() + " is too large");
    } else if (tensor_.shape.size() == kMostDimensions) {
      note("the shape of " + quoted() + " has more than " + std::to_string(kMostDimensions) +
           " sizes");
    } else {
      tensor_.shape.push_back(static_cast<std::int64_t>(number));
    }
  }
  void end() {
    in_tensor_ = false;
    if (!has_dtype_ || !has_shape_) note(quoted() + " has no shape or no dtype");
    if (fault_) return;  // nothing more is kept
    std::string name = tensor_.name;
    all_.emplace(std::move(name), std::move(tensor_));
  }

 private:
  std::string quoted() const { return "'" + tensor_.name + "'"; }

  TensorsByName all_;
  std::optional<std::string> fault_;
  TensorEntry tensor_;  // that is being read
  std::string field_;   // of it
  bool in_tensor_ = false, in_shape_ = false, has_metadata_ = false;
  bool has_dtype_ = false, has_shape_ = false;
};

// Finds the tensors in the text. No tree is made: of objects in an object nlohmann's own parser
// with a callback makes one in quadratic time.
class Parse final : public nlohmann::json_sax<Json> {
 public:
  TensorsByName take() { return tensors_.take(); }

  bool null() override { return value(Kind::kOther); }
  bool boolean(bool) override { return value(Kind::kOther); }
  bool number_integer(std::int64_t) override { return value(Kind::kOther); }  // below 0
  bool number_unsigned(std::uint64_t number) override { return value(Kind::kWhole, number); }
  bool number_float(double, const std::string&) override { return value(Kind::kOther); }
  bool string(std::string& text) override { return value(Kind::kText, 0, &text); }
  bool binary(Json::binary_t&) override { return value(Kind::kOther); }
  bool start_object(std::size_t) override { return open(Kind::kObject); }
  bool start_array(std::size_t) override { return open(Kind::kList); }
  bool end_object() override {
    if (--depth_ == kTensors && tensors_.in_tensor()) tensors_.end();
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(std::string& name) override {
    if (depth_ == kTensors) tensors_.begin(name);
    if (depth_ == kFields) tensors_.begin_field(name);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const Json::exception&) override {
    return false;
  }

 private:
  // Containers that are open around a value: none, the header, a tensor, a list of it.
  enum Depth : std::size_t { kHeader, kTensors, kFields, kElements };

  bool open(Kind kind) {
    value(kind);
    ++depth_;
    return true;
  }
  bool value(Kind kind, std::uint64_t number = 0, std::string* text = nullptr) {
    if (depth_ == kHeader && kind != Kind::kObject) tensors_.note("its header is no JSON object");
    if (!tensors_.in_tensor()) return true;
    if (depth_ == kTensors && kind != Kind::kObject) tensors_.end();
    if (depth_ == kFields) tensors_.take_field(kind, text);
    if (depth_ == kElements) tensors_.take_element(kind, number);
    return true;
  }

  Tensors tensors_;
  std::size_t depth_ = 0;
};

std::uint64_t size_bytes(const TensorEntry& entry) {
  std::uint64_t bytes = entry.dtype == "F32" ? 4 : 2;
  for (const std::int64_t size : entry.shape) bytes *= static_cast<std::uint64_t>(size);
  return bytes;
}
}  // namespace

std::uint64_t header_length(std::span<const std::byte, kLengthBytes> begin) noexcept {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < begin.size(); ++i)
    length |= std::to_integer<std::uint64_t>(begin[i]) << (8 * i);
  return length;
}

TensorsByName parse_header(std::string_view text) {
  if (text.empty() || text.front() != '{')
    throw SafetensorsFault{"its header does not begin with '{'", !Json::accept(text)};
  Parse parse;
  if (!Json::sax_parse(text, &parse)) throw SafetensorsFault{"its header is no JSON object", true};
  return parse.take();
}

std::string header_of(const std::vector<TensorEntry>& tensors, std::uint64_t& data_bytes) {
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  auto& members = header.get_ref<nlohmann::ordered_json::object_t&>();
  data_bytes = 0;
  for (const TensorEntry& entry : tensors) {
    const std::uint64_t begin = std::exchange(data_bytes, data_bytes + size_bytes(entry));
    members.emplace_back(
        entry.name,  // whose operator[] looks through all there are
        nlohmann::ordered_json{
            {"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {begin, data_bytes}}});
  }
  std::string text = header.dump();
  text.append((kDataAlignment - (text.size() + kLengthBytes) % kDataAlignment) % kDataAlignment,
              ' ');
  std::string length(kLengthBytes, '\0');
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    length[i] = static_cast<char>(text.size() >> (8 * i));
  return length + text;
}
}  // namespace headrace::tools
