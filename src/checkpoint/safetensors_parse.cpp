// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors_parse.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error_text.hpp"
namespace headrace::checkpoint {
namespace {
using Json = nlohmann::json;

constexpr std::size_t kMostDimensions = 64;

enum class Kind { kWhole, kText, kObject, kList, kOther };

// The tensors of a header as their fields come, and the first fault of it.
class Tensors {
 public:
  explicit Tensors(DataOffsets offsets) : wants_offsets_(offsets == DataOffsets::kWanted) {}

  bool in_tensor() const { return in_tensor_; }
  // The error reports the first one, once all of the text has proved to be JSON.
  void note(std::string cause) {
    if (!fault_) fault_ = std::move(cause);
  }
  TensorsByName take() {
    if (fault_) throw SafetensorsFault{*fault_};
    return std::move(all_);
  }

  void begin(std::string& name) {
    tensor_ = TensorEntry();
    tensor_.name = std::move(name);
    has_dtype_ = has_shape_ = has_offsets_ = false;
    const bool is_metadata = tensor_.name == "__metadata__";
    if (is_metadata ? std::exchange(has_metadata_, true) : all_.contains(tensor_.name))
      note(quoted() + " occurs twice");
    in_tensor_ = !is_metadata;
  }
  void begin_field(std::string_view name) { field_ = field_of(name); }
  void take_field(Kind kind, std::string* text) {
    in_list_ = kind == Kind::kList && (field_ == Field::kShape || field_ == Field::kOffsets);
    count_ = 0;
    if (field_ == Field::kDtype) {
      has_dtype_ = true;
      if (text != nullptr) tensor_.dtype = std::move(*text);
      if (text == nullptr)
        note(wants_offsets_ ? "the dtype of " + quoted() + " is no string" : lacking());
    } else if (field_ == Field::kShape) {
      has_shape_ = true;
      tensor_.shape.clear();
      if (!in_list_) note("the shape of " + quoted() + " is no list");
    } else if (field_ == Field::kOffsets) {
      has_offsets_ = true;
      if (!in_list_) note_offsets();
    }
  }
  void take_element(Kind kind, std::uint64_t number) {
    if (!in_list_) return;
    ++count_;
    const bool is_size = field_ == Field::kShape;
    if (kind != Kind::kWhole) {
      note((is_size ? "a size of " : "an offset of ") + quoted() +
           " is not a whole number of 0 or more");
    } else if (!is_size) {
      (count_ == 1 ? tensor_.begin : tensor_.end) = number;
    } else if (number > std::numeric_limits<std::int64_t>::max()) {
      note("a size of " + quoted() + " is too large");
    } else if (count_ <= kMostDimensions) {
      tensor_.shape.push_back(static_cast<std::int64_t>(number));
    }
  }
  void end_list() {
    if (!std::exchange(in_list_, false)) return;
    if (field_ == Field::kOffsets && count_ != 2) note_offsets();
    if (field_ == Field::kShape && count_ > kMostDimensions) {
      note("the shape of " + quoted() + " has " + std::to_string(count_) + " sizes, more than " +
           std::to_string(kMostDimensions));
    }
  }
  void end() {
    in_tensor_ = false;
    if (!has_dtype_ || !has_shape_ || (wants_offsets_ && !has_offsets_)) note(lacking());
    if (fault_) return;  // nothing more is kept
    std::string name = tensor_.name;
    all_.emplace(std::move(name), std::move(tensor_));
  }

 private:
  enum class Field { kDtype, kShape, kOffsets, kAnother };

  Field field_of(std::string_view name) const {
    if (name == "dtype") return Field::kDtype;
    if (name == "shape") return Field::kShape;
    return wants_offsets_ && name == "data_offsets" ? Field::kOffsets : Field::kAnother;
  }
  std::string quoted() const { return base::quoted_name(tensor_.name); }
  std::string lacking() const {
    return quoted() + (wants_offsets_ ? " lacks one of dtype, shape, data_offsets"
                                      : " has no shape or no dtype");
  }
  void note_offsets() { note("data_offsets of " + quoted() + " are not two"); }

  const bool wants_offsets_;
  TensorsByName all_;
  std::optional<std::string> fault_;
  TensorEntry tensor_;             // that is being read
  Field field_ = Field::kAnother;  // of it
  std::uint64_t count_ = 0;        // elements of its list so far
  bool in_tensor_ = false, in_list_ = false, has_metadata_ = false;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
};

// Finds the tensors in the text. No tree is made: of objects in an object nlohmann's own parser
// with a callback makes one in quadratic time.
class Parse final : public nlohmann::json_sax<Json> {
 public:
  explicit Parse(DataOffsets offsets) : tensors_(offsets) {}
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
    if (--depth_ == kFields && tensors_.in_tensor()) tensors_.end_list();
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

void check_bytes(const TensorEntry& entry, std::uint64_t data_bytes) {
  if (entry.begin > entry.end || entry.end > data_bytes) {
    throw SafetensorsFault{base::quoted_name(entry.name) + " lies at bytes " +
                           std::to_string(entry.begin) + " to " + std::to_string(entry.end) +
                           " of " + std::to_string(data_bytes)};
  }
  if (bytes_of(entry) != entry.end - entry.begin) {
    throw SafetensorsFault{base::quoted_name(entry.name) + " has " +
                           std::to_string(entry.end - entry.begin) + " bytes, its shape needs " +
                           std::to_string(bytes_of(entry))};
  }
}
}  // namespace

std::uint64_t header_length(std::span<const std::byte, kLengthBytes> begin) noexcept {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < begin.size(); ++i)
    length |= std::to_integer<std::uint64_t>(begin[i]) << (8 * i);
  return length;
}

TensorsByName parse_header(std::string_view text, DataOffsets offsets) {
  if (text.empty() || text.front() != '{')
    throw SafetensorsFault{"its header does not begin with '{'", !Json::accept(text)};
  Parse parse(offsets);
  if (!Json::sax_parse(text, &parse)) throw SafetensorsFault{"its header is no JSON object", true};
  return parse.take();
}

void check_data(const TensorsByName& tensors, std::uint64_t data_bytes) {
  std::vector<const TensorEntry*> order;
  for (const auto& [name, entry] : tensors) {
    check_bytes(entry, data_bytes);
    order.push_back(&entry);
  }
  std::ranges::sort(order, {},
                    [](const TensorEntry* entry) { return std::pair(entry->begin, entry->end); });
  std::uint64_t at = 0;
  for (const TensorEntry* entry : order) {
    if (entry->begin != at) {
      throw SafetensorsFault{base::quoted_name(entry->name) + " begins at byte " +
                             std::to_string(entry->begin) + ", expected " + std::to_string(at)};
    }
    at = entry->end;
  }
  if (at != data_bytes) {
    throw SafetensorsFault{"its tensors end at byte " + std::to_string(at) + ", the file at " +
                           std::to_string(data_bytes)};
  }
}

std::uint64_t bytes_of(const TensorEntry& entry) {
  std::uint64_t bytes = dtype_size_bytes(entry.dtype);
  if (bytes == 0)
    throw SafetensorsFault{"the dtype " + base::quoted_name(entry.dtype) + " of " +
                           base::quoted_name(entry.name) + " is unknown"};
  for (const std::int64_t size : entry.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes))
      throw SafetensorsFault{"the shape of " + base::quoted_name(entry.name) + " overflows"};
  }
  return bytes;
}

std::uint64_t dtype_size_bytes(std::string_view dtype) noexcept {
  if (dtype == "F64" || dtype == "I64" || dtype == "U64" || dtype == "C64") return 8;
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
  if (dtype == "BF16" || dtype == "F16" || dtype == "I16" || dtype == "U16") return 2;
  if (dtype == "BOOL" || dtype == "I8" || dtype == "U8" || dtype.starts_with("F8_")) return 1;
  return 0;
}
}  // namespace headrace::checkpoint
