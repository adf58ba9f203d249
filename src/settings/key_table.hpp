// SPDX-License-Identifier: Apache-2.0
// key_table.hpp: every key that a settings file may hold, in one table, keys.txt. Reading, writing
// and docs/settings.md all use it. The defaults are in headrace::Settings.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "headrace/settings.hpp"

namespace headrace::settings {
enum class Kind {
  kSection,      // an object whose keys are in this table
  kOpenSection,  // an object of DeepSpeed's whose keys are not checked
  kBoolean,
  kInteger,  // 5e8 is one too
  kNumber,
  kSize,        // bytes: a number, or "512MiB"
  kSizeOrAuto,  // ... or "auto"
  kChoice,
  kSwitch,  // a choice that also accepts true and false
  kText,
  kPath,
  kPathList,
  kTextList,      // also accepts a single text
  kPair,          // a list of two numbers
  kSharesOrAuto,  // a list of numbers above 0, or "auto"
  kEvery,         // a number of steps; 0 and 1 have words
};

enum class Status {
  kEngine,    // used by the engine
  kTrainer,   // checked and passed on: the trainer applies it
  kNoEffect,  // DeepSpeed's, accepted with a warning that says what is used instead
  kRefused,   // DeepSpeed's; it would change the training
};

// The field of Settings that a key fills, by a function that finds it.
template <class T>
using In = T& (*)(Settings&);
// A choice, as its index in its enumeration.
struct ChoiceIn {
  std::size_t (*get)(const Settings&);
  void (*set)(Settings&, std::size_t);
};
using Pair = std::array<double, 2>;
using Field =
    std::variant<std::monostate, ChoiceIn, In<bool>, In<std::uint32_t>, In<std::uint64_t>,
                 In<double>, In<std::string>, In<std::vector<double>>, In<std::optional<bool>>,
                 In<std::optional<std::uint32_t>>, In<std::optional<std::uint64_t>>,
                 In<std::optional<double>>, In<std::optional<Pair>>>;

// Of a number that is kept as f32; one above 0 that f32 would make 0 is refused, too.
inline constexpr double kMostOfF32 = 3.4e38;

struct Key {
  std::string_view path;  // "headrace.tile_elements"
  Kind kind = Kind::kText;
  Status status = Status::kNoEffect;
  // The purpose of the key. For kNoEffect: what Headrace uses instead. For kRefused: the reason and
  // a fix. "{headrace.queue_depth}" stands for that key, with its value in a warning.
  std::string_view help = {};
  Field field = {};
  std::string_view also = {};     // another spelling of the last part of the path
  std::string_view choices = {};  // "none|cpu|nvme"; of kEvery, the words for 0 and 1
  std::string_view unit = {};
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  std::uint64_t multiple = 1;
  bool nullable = false;
  // For kNoEffect and kRefused, values that need no message since they match what happens anyway: a
  // value, as JSON, and a key of Headrace's whose equal value counts the same.
  std::string_view in_any_case = {};
  std::string_view same_as = {};
  bool auto_is_unsaid = false;     // "auto" counts as left out
  bool off_by_default = false;     // an object without "enabled": true has no effect
  std::string_view of_types = {};  // the schedulers, or rules, that have it: "WarmupLR|OneCycle"
  // DeepSpeed's own default, if its versions differ: "0 until 0.19.2, 1.0 since 0.19.3".
  std::string_view deepspeed_default = {};

  constexpr bool honoured() const {
    return status == Status::kEngine || status == Status::kTrainer;
  }
  // Whether the key is honoured and holds a value, not keys.
  constexpr bool honoured_value() const { return honoured() && kind != Kind::kSection; }
  std::string_view section() const;  // "headrace"; "" for the top level
  std::string_view name() const;     // "tile_elements"
};

std::span<const Key> keys();

// The key of that name, in either spelling, directly in `section`; null if there is none.
const Key* find_key(std::string_view section, std::string_view name);

std::vector<std::string_view> choices_of(const Key& key);
// The words of a list such as "WarmupLR|OneCycle".
std::vector<std::string_view> words_of(std::string_view list);

// `text`, with each name in braces replaced by name(NAME).
std::string fill_braces(std::string_view text,
                        const std::function<std::string(std::string_view)>& name);

// The value as Settings::to_json() writes it; "" if it leaves the key out.
std::string value_text(const Key& key, const Settings& settings);

// A line for each key that to_json() writes, in its order, such as "zero_optimization.stage = 3".
// The text ends with a newline.
std::string lines_of(const Settings& settings);

// The key's help, with the paths of other keys instead of braces.
std::string help_text(const Key& key);

// "a whole number from 1 to 1024", "true or false", "none, cpu or nvme": for messages and docs.
std::string allowed_text(const Key& key);
}  // namespace headrace::settings
