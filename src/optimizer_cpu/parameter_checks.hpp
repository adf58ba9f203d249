// SPDX-License-Identifier: Apache-2.0
// parameter_checks.hpp: checks a caller's arrays before anything is written to them.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/cpu_optimizer.hpp"

namespace headrace::optimizer_cpu {
StateBytes state_bytes(OptimizerRule rule, MomentCodec moments, DType weight, MasterLayout layout,
                       std::uint64_t elements) noexcept;

// "'w'", or its place in the call.
std::string name_or_place(std::string_view name, std::size_t place);

// Throws Error kInvalidArgument if no parameter can have this shape. `who`: "'w'", or empty.
void check_shape(std::string_view who, DType dtype, MasterLayout layout, std::uint64_t elements,
                 const char* consequence);

// Checks the parameters of one call. Throws Error kInvalidArgument, naming parameter and array.
class ParameterChecks {
 public:
  ParameterChecks(OptimizerRule rule, MomentCodec moments) : rule_(rule), moments_(moments) {}

  // Begins a call. Each message includes `consequence`: "nothing was updated".
  void begin(const char* consequence);
  enum class Weights { kRead, kWritten };
  void state(const ParameterState& state, Weights weights);
  void update(const ParameterUpdate& update);
  // Checks all parameters since begin(): overlapping written arrays, repeated numbers.
  void all();

 private:
  // The bytes of an array, and its parameter in this call.
  struct Range {
    std::uintptr_t begin = 0, end = 0;
    std::uint32_t parameter = 0;
    bool written = false;
    const char* what = "";
  };
  struct Given {
    std::string_view name;
    std::uint64_t number = 0;
  };
  struct Array {
    const char* what;
    const void* data;
    std::uint64_t bytes, wanted_bytes, alignment;
    bool written;
    std::optional<DType> dtype = std::nullopt;  // for weight and gradient
  };
  std::string latest() const;  // the parameter that state() or update() is checking
  std::string quoted(std::size_t parameter) const;
  void array(const ParameterState& state, const Array& array);
  void overlaps();
  void numbers();
  [[noreturn]] void refuse(const std::string& cause, const std::string& help) const;

  const OptimizerRule rule_;
  const MomentCodec moments_;
  const char* consequence_ = "";
  std::vector<Range> ranges_;
  std::vector<Given> given_;
  std::vector<std::uint32_t> by_number_;
};
}  // namespace headrace::optimizer_cpu
