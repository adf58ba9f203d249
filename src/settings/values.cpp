// SPDX-License-Identifier: Apache-2.0
#include "settings/values.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error_text.hpp"

namespace headrace::settings {
namespace {
using nlohmann::json;

struct Unit {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array<Unit, 9> kUnits = {{{"B", 1},
                                         {"KiB", 1ull << 10},
                                         {"MiB", 1ull << 20},
                                         {"GiB", 1ull << 30},
                                         {"TiB", 1ull << 40},
                                         {"KB", 1000ull},
                                         {"MB", 1000'000ull},
                                         {"GB", 1000'000'000ull},
                                         {"TB", 1000'000'000'000ull}}};

// Digits from the front of `text`, which they are taken off; nothing when there are none or too
// many.
std::optional<std::uint64_t> take_digits(std::string_view& text, std::size_t most) {
  std::size_t count = 0;
  std::uint64_t value = 0;
  while (count < text.size() && text[count] >= '0' && text[count] <= '9') {
    if (count == most) return std::nullopt;
    value = value * 10 + static_cast<std::uint64_t>(text[count++] - '0');
  }
  text.remove_prefix(count);
  return count == 0 ? std::nullopt : std::optional(value);
}

bool in_range(const Key& key, double value) { return value >= key.least && value <= key.most; }

// A whole number, however it is written: up to 2^63, which Python's sys.maxsize becomes as a
// double.
std::optional<double> whole_number(const json& value) {
  if (!value.is_number()) return std::nullopt;
  const double number = value.get<double>();
  const bool whole = std::isfinite(number) && std::trunc(number) == number;
  return whole && std::fabs(number) <= 0x1p63 ? std::optional(number) : std::nullopt;
}

template <class T>
concept Number = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;

struct StoreNumber {
  double number;
  Settings& settings;

  template <Number T>
  void operator()(In<T> field) const {
    field(settings) = static_cast<T>(number + 0.0);  // -0 becomes 0
  }
  template <Number T>
  void operator()(In<std::optional<T>> field) const {
    field(settings) = static_cast<T>(number + 0.0);
  }
  void operator()(const auto&) const {}
};

void store_number(const Key& key, double number, Settings& settings) {
  std::visit(StoreNumber{number, settings}, key.field);
}

bool read_integer(const Key& key, const json& value, Settings& settings) {
  const auto number = whole_number(value);
  if (!number || !in_range(key, *number)) return false;
  if (std::fmod(*number, static_cast<double>(key.multiple)) != 0) return false;
  store_number(key, *number, settings);
  return true;
}

bool read_number(const Key& key, const json& value, Settings& settings) {
  if (!value.is_number()) return false;
  const double number = value.get<double>();
  if (!std::isfinite(number) || !in_range(key, number)) return false;
  const bool too_small = key.most == kMostOfF32 && number > 0 && static_cast<float>(number) == 0;
  if (too_small) return false;
  store_number(key, number, settings);
  return true;
}

std::optional<std::uint64_t> size_of(const json& value) {
  if (value.is_string()) return parse_size(value.get_ref<const std::string&>());
  if (value.is_number_unsigned()) {
    const auto bytes = value.get<std::uint64_t>();
    return bytes >> 63 == 0 ? std::optional(bytes) : std::nullopt;
  }
  const auto number = whole_number(value);
  if (!number || *number < 0 || *number >= 0x1p63) return std::nullopt;
  return static_cast<std::uint64_t>(*number);
}

bool read_size(const Key& key, const json& value, Settings& settings) {
  const auto bytes = size_of(value);
  if (!bytes || !in_range(key, static_cast<double>(*bytes)) || *bytes % key.multiple != 0)
    return false;
  std::get<In<std::uint64_t>>(key.field)(settings) = *bytes;
  return true;
}

bool read_budget(const json& value, Settings& settings) {
  settings.host_budget_auto = value == "auto";
  settings.host_budget_bytes = 0;
  if (settings.host_budget_auto) return true;
  const auto bytes = size_of(value);
  settings.host_budget_bytes = bytes.value_or(0);
  return bytes.has_value();
}

// Which of the key's words `value` is.
std::optional<std::size_t> index_of_word(const Key& key, const json& value) {
  if (!value.is_string()) return std::nullopt;
  const auto words = choices_of(key);
  const auto found = std::find(words.begin(), words.end(), value.get_ref<const std::string&>());
  if (found == words.end()) return std::nullopt;
  return static_cast<std::size_t>(found - words.begin());
}

bool read_choice(const Key& key, const json& value, Settings& settings) {
  json wanted = value;
  if (key.kind == Kind::kSwitch && value.is_boolean()) wanted = value.get<bool>() ? "on" : "off";
  const auto index = index_of_word(key, wanted);
  if (!index) return false;
  if (const auto* field = std::get_if<ChoiceIn>(&key.field)) field->set(settings, *index);
  return true;
}

bool read_every(const Key& key, const json& value, Settings& settings) {
  const auto index = index_of_word(key, value);
  if (!index) return read_integer(key, value, settings);
  store_number(key, static_cast<double>(*index), settings);
  return true;
}

bool read_boolean(const Key& key, const json& value, Settings& settings) {
  if (!value.is_boolean()) return false;
  if (const auto* field = std::get_if<In<bool>>(&key.field)) (*field)(settings) = value.get<bool>();
  if (const auto* optional = std::get_if<In<std::optional<bool>>>(&key.field))
    (*optional)(settings) = value.get<bool>();
  return true;
}

bool read_text(const Key& key, const json& value, Settings& settings) {
  if (!value.is_string()) return false;
  if (const auto* field = std::get_if<In<std::string>>(&key.field))
    (*field)(settings) = value.get<std::string>();
  return true;
}

bool read_shares(const Key& key, const json& value, Settings& settings) {
  std::vector<double>& field = std::get<In<std::vector<double>>>(key.field)(settings);
  if (value == "auto") {
    field.clear();
    return true;
  }
  if (!value.is_array() || value.empty()) return false;
  std::vector<double> shares;
  for (const json& share : value) {
    if (!share.is_number()) return false;
    const double number = share.get<double>();
    if (!std::isfinite(number) || number <= 0) return false;
    shares.push_back(number);
  }
  field = std::move(shares);
  return true;
}

bool read_pair(const Key& key, const json& value, Settings& settings) {
  if (!value.is_array() || value.size() != 2) return false;
  Pair pair;
  for (std::size_t i = 0; i < 2; ++i) {
    if (!value[i].is_number() || !in_range(key, value[i].get<double>())) return false;
    pair[i] = value[i].get<double>() + 0.0;
  }
  std::get<In<std::optional<Pair>>>(key.field)(settings) = pair;
  return true;
}

template <class Test>
bool is_list_of(const json& value, Test test) {
  return value.is_array() && std::all_of(value.begin(), value.end(), test);
}

bool fits(const Key& key, const json& value, Settings& settings) {
  const auto is_text = [](const json& v) { return v.is_string(); };
  switch (key.kind) {
    case Kind::kSection:
    case Kind::kOpenSection:
      return value.is_object();
    case Kind::kBoolean:
      return read_boolean(key, value, settings);
    case Kind::kInteger:
      return read_integer(key, value, settings);
    case Kind::kNumber:
      return read_number(key, value, settings);
    case Kind::kSize:
      return read_size(key, value, settings);
    case Kind::kSizeOrAuto:
      return read_budget(value, settings);
    case Kind::kChoice:
    case Kind::kSwitch:
      return read_choice(key, value, settings);
    case Kind::kText:
      return read_text(key, value, settings);
    case Kind::kPath:
      return value.is_string();
    case Kind::kPathList:
      return is_list_of(value, is_text);
    case Kind::kTextList:
      return is_text(value) || is_list_of(value, is_text);
    case Kind::kPair:
      return read_pair(key, value, settings);
    case Kind::kSharesOrAuto:
      return read_shares(key, value, settings);
    case Kind::kEvery:
      return read_every(key, value, settings);
  }
  return false;
}
}  // namespace

bool takes_auto(const Key& key) {
  const auto choices = choices_of(key);
  return key.kind == Kind::kSizeOrAuto || key.kind == Kind::kSharesOrAuto ||
         std::find(choices.begin(), choices.end(), "auto") != choices.end();
}

std::optional<std::uint64_t> parse_size(std::string_view text) {
  const auto whole = take_digits(text, 19);
  if (!whole) return std::nullopt;
  unsigned __int128 thousandths = static_cast<unsigned __int128>(*whole) * 1000;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    const std::size_t before = text.size();
    const auto fraction = take_digits(text, 3);
    if (!fraction) return std::nullopt;
    static constexpr std::uint64_t kScale[] = {1000, 100, 10, 1};
    thousandths += *fraction * kScale[before - text.size()];
  }
  if (text.starts_with(' ')) text.remove_prefix(1);
  const auto unit =
      std::find_if(kUnits.begin(), kUnits.end(), [&](const Unit& u) { return u.name == text; });
  if (unit == kUnits.end()) return std::nullopt;
  const unsigned __int128 scaled = thousandths * unit->bytes;
  // A fraction of a unit is cut to whole bytes; of a byte there is none.
  if ((unit->bytes == 1 && scaled % 1000 != 0) || scaled / 1000 >> 63 != 0) return std::nullopt;
  return static_cast<std::uint64_t>(scaled / 1000);
}

std::string found_text(const json& value) {
  switch (value.type()) {
    case json::value_t::string:
      return "found \"" + one_line(value.get_ref<const std::string&>()) + "\"";
    case json::value_t::object:
      return "found an object {...}";
    case json::value_t::array:
      return "found a list [...]";
    default:
      return "found " + value.dump();
  }
}

void read_value(const Key& key, const json& value, const Path& path, Report& report,
                Settings& settings) {
  if (fits(key, value, settings)) return;
  std::string text = found_text(value) + "; allowed: " + allowed_text(key);
  if (value.is_string() && !key.choices.empty()) {
    const auto choices = choices_of(key);
    const auto near = base::nearest_word(value.get_ref<const std::string&>(), choices);
    if (!near.empty()) text += "; did you mean \"" + std::string(near) + "\"?";
  }
  if (key.kind == Kind::kEvery && value == 0)
    text += "; did you mean \"" + std::string(choices_of(key)[0]) + "\"?";
  report.fault(path, text);
}
}  // namespace headrace::settings
