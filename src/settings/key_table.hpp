// SPDX-License-Identifier: Apache-2.0
// key_table.hpp: every key that a settings file may hold, in one table: reading, writing and
// docs/settings.md all follow it. Defaults are not here: they stand in headrace::Settings.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "headrace/settings.hpp"

namespace headrace::settings {
enum class Kind {
  kSection,      // an object whose keys are in this table
  kOpenSection,  // an object of DeepSpeed's that nothing here looks into
  kBoolean,
  kInteger,  // 5e8 is one too
  kNumber,
  kSize,        // bytes: a number, or "512MiB"
  kSizeOrAuto,  // ... or "auto"
  kChoice,
  kSwitch,  // a choice that may also be written true and false
  kText,
  kPath,
  kPathList,
  kTextList,
  kNumberList,
  kSharesOrAuto,  // a list of numbers over 0, or "auto"
  kAny,
};

enum class Status {
  kEngine,     // steers the engine
  kTrainer,    // checked and handed on: the trainer applies it
  kNotServed,  // DeepSpeed's, accepted with a warning
};

// The field of Settings that a key fills. Choices are listed in the order of their enumeration.
using Field =
    std::variant<std::monostate, bool Settings::*, std::uint32_t Settings::*,
                 std::uint64_t Settings::*, double Settings::*, OffloadDevice Settings::*,
                 MasterLayout Settings::*, OptimizerRule Settings::*, MomentCodec Settings::*,
                 NonFinite Settings::*, UpdateMode Settings::*, IoQueueKind Settings::*,
                 RegisterBuffers Settings::*, std::vector<double> Settings::*, DirectIo Settings::*,
                 Checksums Settings::*, std::string Tuned::*, double Tuned::*>;

struct Key {
  std::string_view path;  // "headrace.tile_elements"
  Kind kind = Kind::kAny;
  Status status = Status::kNotServed;
  // What it does; for kNotServed: what is used instead. "{headrace.queue_depth}" stands for that
  // key, with its value in a warning.
  std::string_view help;
  Field field = {};
  std::string_view also = {};     // another spelling of the last name
  std::string_view choices = {};  // "none|cpu|nvme"
  std::string_view unit = {};
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  std::uint64_t multiple = 1;
  bool nullable = false;
  bool checked = false;  // checks.cpp looks at the value: no general warning
  // For kNotServed, what needs no warning, as it is what happens: a value, as JSON, and the value
  // of a key of ours that counts the same.
  std::string_view in_any_case = {};
  std::string_view same_as = {};

  // This key, changed.
  template <class Change>
  constexpr Key with(Change change) const {
    Key key = *this;
    change(key);
    return key;
  }
  constexpr Key into(Field f) const {
    return with([&](Key& k) { k.field = f; });
  }
  constexpr Key or_as(std::string_view name) const {
    return with([&](Key& k) { k.also = name; });
  }
  constexpr Key one_of(std::string_view c) const {
    return with([&](Key& k) { k.choices = c; });
  }
  constexpr Key in(std::string_view u) const {
    return with([&](Key& k) { k.unit = u; });
  }
  constexpr Key times(std::uint64_t m) const {
    return with([&](Key& k) { k.multiple = m; });
  }
  constexpr Key or_null() const {
    return with([](Key& k) { k.nullable = true; });
  }
  constexpr Key with_check() const {
    return with([](Key& k) { k.checked = true; });
  }
  constexpr Key always(std::string_view json) const {
    return with([&](Key& k) { k.in_any_case = json; });
  }
  constexpr Key as(std::string_view our_path) const {
    return with([&](Key& k) { k.same_as = our_path; });
  }
  constexpr Key from(double low) const {
    return with([&](Key& k) { k.least = low; });
  }
  constexpr Key from(double low, double high) const {
    return with([&](Key& k) { k.least = low, k.most = high; });
  }

  std::string_view section() const;  // "headrace"; "" for the top level
  std::string_view name() const;     // "tile_elements"
};

std::span<const Key> keys();

// The key of that name, in either spelling, directly in `section`; null if there is none.
const Key* find_key(std::string_view section, std::string_view name);

std::vector<std::string_view> choices_of(const Key& key);

// `text` with what stands in braces, without them, passed through `name`.
std::string fill_braces(std::string_view text,
                        const std::function<std::string(std::string_view)>& name);

// "a whole number from 1 to 1024", "true or false", "none, cpu or nvme": for messages and docs.
std::string allowed_text(const Key& key);
}  // namespace headrace::settings
