// SPDX-License-Identifier: Apache-2.0
#include "pickle/pickle_writer.hpp"

#include <limits>

#include "base/check.hpp"

namespace headrace::tools::pickle {
namespace {
std::string_view storage_of(std::string_view dtype) {
  if (dtype == "F32") return "FloatStorage";
  if (dtype == "BF16") return "BFloat16Storage";
  HEADRACE_CHECK(dtype == "F16", "weights have one of three dtypes");
  return "HalfStorage";
}
}  // namespace

PickleWriter::PickleWriter() : bytes_("\x80\x02") {}

void PickleWriter::number(std::uint64_t value, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) bytes_ += static_cast<char>(value >> (8 * i));
}
void PickleWriter::global(std::string_view module, std::string_view name) {
  bytes_ += 'c';
  bytes_.append(module).append("\n").append(name).append("\n");
}

void PickleWriter::none() { bytes_ += 'N'; }
void PickleWriter::boolean(bool value) { bytes_ += value ? '\x88' : '\x89'; }
void PickleWriter::integer(std::int64_t value) {
  if (value >= 0 && value < 256) {
    bytes_ += 'K';
    return number(static_cast<std::uint64_t>(value), 1);
  }
  if (value >= std::numeric_limits<std::int32_t>::min() &&
      value <= std::numeric_limits<std::int32_t>::max()) {
    bytes_ += 'J';
    return number(static_cast<std::uint64_t>(value), 4);
  }
  bytes_ += "\x8a\x08";
  number(static_cast<std::uint64_t>(value), 8);
}
void PickleWriter::text(std::string_view value) {
  bytes_ += 'X';
  number(value.size(), 4);
  bytes_ += value;
}

void PickleWriter::list(const Fill& fill) {
  bytes_ += "](";
  fill();
  bytes_ += 'e';
}
void PickleWriter::items(const Fill& fill) {
  bytes_ += '(';
  fill();
  bytes_ += 'u';
}
void PickleWriter::dict(const Fill& fill) {
  bytes_ += '}';
  items(fill);
}
void PickleWriter::ordered_dict(const Fill& fill) {
  global("collections", "OrderedDict");
  bytes_ += ")R";
  items(fill);
}
void PickleWriter::tuple(std::span<const std::int64_t> numbers) {
  bytes_ += '(';
  for (const std::int64_t one : numbers) integer(one);
  bytes_ += 't';
}
void PickleWriter::size(std::span<const std::int64_t> sizes) {
  global("torch", "Size");
  tuple(sizes);
  bytes_ += "\x85R";
}

void PickleWriter::tensor(std::string_view dtype, std::size_t storage,
                          std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t elements = 1;
  for (std::size_t i = shape.size(); i-- > 0; elements *= shape[i]) strides[i] = elements;
  global("torch._utils", "_rebuild_tensor_v2");
  bytes_ += "((";
  text("storage");
  global("torch", storage_of(dtype));
  text(std::to_string(storage));
  text("cpu");
  integer(elements);
  bytes_ += "tQ";
  integer(0);
  tuple(shape);
  tuple(strides);
  boolean(false);
  ordered_dict([] {});
  bytes_ += "tR";
}

std::string PickleWriter::finish() {
  bytes_ += '.';
  return std::move(bytes_);
}
}  // namespace headrace::tools::pickle
