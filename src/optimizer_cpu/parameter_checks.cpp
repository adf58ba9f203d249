// SPDX-License-Identifier: Apache-2.0
#include "optimizer_cpu/parameter_checks.hpp"

#include <algorithm>
#include <numeric>

#include "base/error_text.hpp"
#include "optimizer_cpu/hyperparameter_checks.hpp"
#include "optimizer_cpu/state_streams.hpp"

namespace headrace::optimizer_cpu {
namespace {
// Bytes of all arrays can then be counted.
constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 48;

bool is_dtype(DType dtype) { return dtype <= DType::kF16; }

// The advice for an array of the wrong length.
const char* length_help(std::string_view what, std::uint64_t wanted_bytes) {
  if (wanted_bytes == 0) return "leave it empty: this rule, codec and dtype keep none";
  if (what == "weight") return "dtype and elements say what the array holds";
  if (what == "gradient") return "gradient_dtype says what the array holds, a value per element";
  return "state_bytes() says how long each array is";
}
}  // namespace

std::string name_or_place(std::string_view name, std::size_t place) {
  if (name.empty()) return "parameter " + std::to_string(place) + " of the call (unnamed)";
  return base::quoted_name(name);
}

StateBytes state_bytes(OptimizerRule rule, MomentCodec moments, DType weight, MasterLayout layout,
                       std::uint64_t elements) noexcept {
  StateBytes bytes;
  bytes.master = elements * master_bytes(master_kind(weight, layout));
  for (std::uint32_t k = 0; k < optimizer_cpu::moments(arithmetic_of(rule)); ++k) {
    bytes.moment[k] = elements * moment_bytes(moments);
    if (has_scales(moments))
      bytes.moment_scale[k] = (elements + kScaleElements - 1) / kScaleElements;
  }
  return bytes;
}

void check_shape(std::string_view who, DType dtype, MasterLayout layout, std::uint64_t elements,
                 const char* consequence) {
  const auto refuse = [&](const std::string& cause, const char* help) {
    throw Error(Code::kInvalidArgument, cause + ": " + consequence + "; " + help);
  };
  const auto named = [&] { return who.empty() ? std::string("a parameter") : std::string(who); };
  if (!is_dtype(dtype) || layout > MasterLayout::kF32) {
    refuse("the dtype or the master layout of " + named() + " is no value of its type",
           "take DType and MasterLayout as the headers have them");
  }
  if (elements > kMaxElements)
    refuse(named() + " has " + std::to_string(elements) + " elements", "at most 2^48 are served");
}

void ParameterChecks::begin(const char* consequence) {
  consequence_ = consequence;
  ranges_.clear();
  given_.clear();
}

void ParameterChecks::refuse(const std::string& cause, const std::string& help) const {
  throw Error(Code::kInvalidArgument, cause + ": " + consequence_ + "; " + help);
}

std::string ParameterChecks::latest() const { return quoted(given_.size() - 1); }

std::string ParameterChecks::quoted(std::size_t parameter) const {
  return name_or_place(given_[parameter].name, parameter);
}

void ParameterChecks::array(const ParameterState& state, const Array& a) {
  const auto who = [&] { return "the " + std::string(a.what) + " of " + latest(); };
  if (a.bytes != a.wanted_bytes) {
    refuse(who() + " is " + std::to_string(a.bytes) + " bytes, but must be " +
               std::to_string(a.wanted_bytes) + " for " + std::to_string(state.elements) +
               " elements" + (a.dtype ? std::string(" of ") + name_of(*a.dtype) : ""),
           length_help(a.what, a.wanted_bytes));
  }
  if (a.bytes == 0) return;
  if (a.data == nullptr) refuse(who() + " is a null pointer", "give its memory");
  const auto begin = reinterpret_cast<std::uintptr_t>(a.data);
  if (begin % a.alignment != 0) {
    refuse(who() + " begins " + std::to_string(begin % a.alignment) + " bytes past a multiple of " +
               std::to_string(a.alignment),
           "align it as its elements are");
  }
  ranges_.push_back(
      {begin, begin + a.bytes, static_cast<std::uint32_t>(given_.size() - 1), a.written, a.what});
}

void ParameterChecks::state(const ParameterState& s, Weights weights) {
  given_.push_back({s.name, s.number});
  check_shape(latest(), s.dtype, s.layout, s.elements, consequence_);
  const StateBytes wanted = state_bytes(rule_, moments_, s.dtype, s.layout, s.elements);
  const std::uint64_t weight = size_bytes(s.dtype);
  array(s, {"weight", s.weight.data(), s.weight.size(), s.elements * weight, weight,
            weights == Weights::kWritten, s.dtype});
  const std::uint64_t master = std::max(1u, master_bytes(master_kind(s.dtype, s.layout)));
  array(s, {"master", s.master.data(), s.master.size(), wanted.master, master, true});
  constexpr const char* kMoment[] = {"first moment", "second moment"};
  constexpr const char* kScale[] = {"first moment's scale", "second moment's scale"};
  for (std::uint32_t k = 0; k < kMaxMoments; ++k) {
    array(s, {kMoment[k], s.moment[k].data(), s.moment[k].size(), wanted.moment[k],
              moment_bytes(moments_), true});
    array(s, {kScale[k], s.moment_scale[k].data(), s.moment_scale[k].size(), wanted.moment_scale[k],
              1, true});
  }
}

void ParameterChecks::update(const ParameterUpdate& u) {
  state(u.state, Weights::kWritten);
  if (!is_dtype(u.gradient_dtype)) {
    refuse("the gradient's dtype of " + latest() + " is no value of its type",
           "take DType as the headers have it");
  }
  const std::uint64_t each = size_bytes(u.gradient_dtype);
  array(u.state, {"gradient", u.gradient.data(), u.gradient.size(), u.state.elements * each, each,
                  false, u.gradient_dtype});
  if (u.t == 0) {
    refuse("t = 0 for " + latest(), "count this update too: t is 1 for a parameter's first");
  }
  try {
    check_hyperparameters(rule_, moments_, u.hyperparameters, consequence_);
  } catch (const Error& error) {
    throw Error(error.code(), latest() + ": " + error.what());
  }
}

void ParameterChecks::all() {
  overlaps();
  if (moments_ != MomentCodec::kF32 && optimizer_cpu::moments(arithmetic_of(rule_)) > 0) numbers();
}

// By address, with the array that reaches farthest so far, of all and of those that are written.
void ParameterChecks::overlaps() {
  std::ranges::sort(ranges_, {}, &Range::begin);
  const Range *farthest = nullptr, *farthest_written = nullptr;
  for (const Range& range : ranges_) {
    const Range* const before = range.written ? farthest : farthest_written;
    if (before != nullptr && before->end > range.begin) {
      const bool one = before->parameter == range.parameter;
      const std::string first = quoted(before->parameter);
      const std::string second = quoted(range.parameter);
      refuse("the " + std::string(before->what) + " of " + first + " and the " + range.what +
                 " of " + second + " share " +
                 std::to_string(std::min(before->end, range.end) - range.begin) + " bytes",
             one ? "give each array memory of its own"
                 : "give each parameter memory of its own, and a tied one once");
    }
    if (farthest == nullptr || range.end > farthest->end) farthest = &range;
    if (range.written && (farthest_written == nullptr || range.end > farthest_written->end))
      farthest_written = &range;
  }
}

// Two of one number would be rounded by the same random bits.
void ParameterChecks::numbers() {
  by_number_.resize(given_.size());
  std::iota(by_number_.begin(), by_number_.end(), 0u);
  const auto number = [&](std::uint32_t i) { return given_[i].number; };
  std::ranges::sort(by_number_, {}, number);
  const auto twice = std::ranges::adjacent_find(by_number_, {}, number);
  if (twice == by_number_.end()) return;
  refuse(quoted(*twice) + " and " + quoted(*(twice + 1)) + " both have the number " +
             std::to_string(number(*twice)) +
             ", so their moments would be rounded by the same random bits",
         "give each parameter a number of its own, the same in every step");
}
}  // namespace headrace::optimizer_cpu
