// SPDX-License-Identifier: Apache-2.0
// value.hpp: what a pickle holds, as data.
//
// A pickle is a program: it names classes and functions to import and to call. Here, the few of
// them that describe tensors become data. Every other one stays a kCall, which says what the pickle
// asks for and is never done.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::tools::pickle {
// A tensor by its place in a storage, which is an entry of the zip file.
struct PickledTensor {
  std::string_view dtype;  // as safetensors names it: "F32"
  std::string storage;     // "0": the entry .../data/0
  std::uint64_t storage_elements = 0, first_element = 0;
  std::vector<std::uint64_t> shape, strides;

  std::uint64_t elements() const noexcept;  // at most 2^48
  std::uint64_t element_bytes() const noexcept;
  std::uint64_t size_bytes() const noexcept { return elements() * element_bytes(); }
  bool is_contiguous() const noexcept;
};

enum class Kind : std::uint8_t {
  kNone,
  kBool,    // number
  kInt,     // number
  kFloat,   // real
  kText,    // text
  kTuple,   // items
  kList,    // items
  kDict,    // items: key, value, key, value, ...
  kGlobal,  // text: module and name, with a line feed or, of one that is data here, a space between
  kStorage,  // tensor: without shape
  kTensor,   // tensor
  kCall,     // items: what would be called, its arguments, what its state would become
  kOther,    // text says what it is
};

// Values may refer to each other in cycles: nothing here follows them without a bound.
struct Value {
  Kind kind = Kind::kNone;
  std::int64_t number = 0;
  double real = 0;
  std::string_view text;  // of the pickle's bytes
  std::vector<const Value*> items;
  std::unique_ptr<PickledTensor> tensor;

  // Of a kDict: the last value of a key that is this text; nullptr if there is none.
  const Value* find(std::string_view key) const noexcept;
  bool is(Kind other) const noexcept { return kind == other; }
};

// For messages: "the number 3", "a list of 2", "os.system(...), which is not called".
std::string text_of(const Value& value);
}  // namespace headrace::tools::pickle
