// SPDX-License-Identifier: Apache-2.0
// unpickler.hpp: reads pickles of protocol 2, as torch.save() writes them, as data. Nothing that
// a pickle names is imported, called or made.
#pragma once
#include <cstddef>
#include <deque>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "pickle/value.hpp"

namespace headrace::tools::pickle {
inline constexpr std::size_t kMostPickleBytes = std::size_t{64} << 20;
// Of one pickle: values, places on its stack, numbers in its memo.
inline constexpr std::size_t kMostValues = std::size_t{4} << 20;
inline constexpr std::size_t kMostDimensions = 64;

class Pickle {
 public:
  // Takes time and memory in proportion to the bytes. Throws Fault with the byte it is about.
  explicit Pickle(std::vector<std::byte> bytes);
  const Value& root() const noexcept { return *root_; }
  // "os.system": what the pickle asks for and is not data here, at most 100 of them.
  const std::set<std::string>& unknown() const noexcept { return unknown_; }

 private:
  std::vector<std::byte> bytes_;
  std::deque<Value> values_;
  std::set<std::string> unknown_;
  const Value* root_ = nullptr;
};
}  // namespace headrace::tools::pickle
