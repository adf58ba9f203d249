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

// A whole number, however it is written. Nothing beyond 2^63, where doubles leave gaps anyway.
std::optional<double> whole_number(const json& value) {
  if (!value.is_number()) return std::nullopt;
  const double number = value.get<double>();
  const bool whole = std::isfinite(number) && std::trunc(number) == number;
  return whole && std::fabs(number) < 9.2e18 ? std::optional(number) : std::nullopt;
}

void store_number(const Key& key, double number, Settings& settings) {
  if (const auto* field = std::get_if<std::uint32_t Settings::*>(&key.field)) {
    settings.*(*field) = static_cast<std::uint32_t>(number);
  } else if (const auto* wide = std::get_if<std::uint64_t Settings::*>(&key.field)) {
    settings.*(*wide) = static_cast<std::uint64_t>(number);
  } else if (const auto* real = std::get_if<double Settings::*>(&key.field)) {
    settings.*(*real) = number + 0.0;  // -0 becomes 0
  } else if (const auto* rate = std::get_if<double Tuned::*>(&key.field)) {
    settings.tuned.*(*rate) = number + 0.0;
  }
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
  if (!number || *number < 0) return std::nullopt;
  return static_cast<std::uint64_t>(*number);
}

bool read_size(const Key& key, const json& value, Settings& settings) {
  const auto bytes = size_of(value);
  if (!bytes || !in_range(key, static_cast<double>(*bytes)) || *bytes % key.multiple != 0)
    return false;
  settings.*std::get<std::uint64_t Settings::*>(key.field) = *bytes;
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

bool read_choice(const Key& key, const json& value, Settings& settings) {
  const auto choices = choices_of(key);
  json wanted = value;
  if (key.kind == Kind::kSwitch && value.is_boolean()) wanted = value.get<bool>() ? "on" : "off";
  if (!wanted.is_string()) return false;
  const auto found =
      std::find(choices.begin(), choices.end(), wanted.get_ref<const std::string&>());
  if (found == choices.end()) return false;
  const auto index = found - choices.begin();
  if (const auto* device = std::get_if<OffloadDevice Settings::*>(&key.field)) {
    settings.*(*device) = static_cast<OffloadDevice>(index);
  } else if (const auto* master = std::get_if<MasterLayout Settings::*>(&key.field)) {
    settings.*(*master) = static_cast<MasterLayout>(index);
  } else if (const auto* rule = std::get_if<OptimizerRule Settings::*>(&key.field)) {
    settings.*(*rule) = static_cast<OptimizerRule>(index);
  } else if (const auto* moments = std::get_if<MomentCodec Settings::*>(&key.field)) {
    settings.*(*moments) = static_cast<MomentCodec>(index);
  } else if (const auto* non_finite = std::get_if<NonFinite Settings::*>(&key.field)) {
    settings.*(*non_finite) = static_cast<NonFinite>(index);
  } else if (const auto* mode = std::get_if<UpdateMode Settings::*>(&key.field)) {
    settings.*(*mode) = static_cast<UpdateMode>(index);
  } else if (const auto* queue = std::get_if<IoQueueKind Settings::*>(&key.field)) {
    settings.*(*queue) = static_cast<IoQueueKind>(index);
  } else if (const auto* registered = std::get_if<RegisterBuffers Settings::*>(&key.field)) {
    settings.*(*registered) = static_cast<RegisterBuffers>(index);
  } else if (const auto* direct = std::get_if<DirectIo Settings::*>(&key.field)) {
    settings.*(*direct) = static_cast<DirectIo>(index);
  } else if (const auto* checksums = std::get_if<Checksums Settings::*>(&key.field)) {
    settings.*(*checksums) = static_cast<Checksums>(index);
  }
  return true;
}

bool read_boolean(const Key& key, const json& value, Settings& settings) {
  if (!value.is_boolean()) return false;
  const auto* field = std::get_if<bool Settings::*>(&key.field);
  if (field != nullptr) settings.*(*field) = value.get<bool>();
  return true;
}

bool read_text(const Key& key, const json& value, Settings& settings) {
  if (!value.is_string()) return false;
  const auto* field = std::get_if<std::string Tuned::*>(&key.field);
  if (field != nullptr) settings.tuned.*(*field) = value.get<std::string>();
  return true;
}

bool read_shares(const Key& key, const json& value, Settings& settings) {
  const auto* field = std::get_if<std::vector<double> Settings::*>(&key.field);
  if (value == "auto") {
    (settings.*(*field)).clear();
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
  settings.*(*field) = std::move(shares);
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
    case Kind::kTextList:
      return is_list_of(value, is_text);
    case Kind::kNumberList:
      return is_list_of(value, [](const json& v) { return v.is_number(); });
    case Kind::kSharesOrAuto:
      return read_shares(key, value, settings);
    case Kind::kAny:
      break;
  }
  return true;
}

bool lists_choice(const Key& key, std::string_view word) {
  const auto choices = choices_of(key);
  return std::find(choices.begin(), choices.end(), word) != choices.end();
}
}  // namespace

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
  const bool automatic = value == "auto";
  if (automatic && key.status == Status::kNotServed) return;
  const bool free_text =
      key.kind == Kind::kSizeOrAuto || key.kind == Kind::kSharesOrAuto || lists_choice(key, "auto");
  if (automatic && !free_text) {
    report.fault(
        path,
        "\"auto\" is for a trainer to fill in, and none did: give a value or leave the key "
        "out; allowed: " +
            allowed_text(key));
    return;
  }
  if (fits(key, value, settings)) return;
  std::string text = found_text(value) + "; allowed: " + allowed_text(key);
  if (value.is_string() && !key.choices.empty()) {
    const auto choices = choices_of(key);
    const auto near = base::nearest_word(value.get_ref<const std::string&>(), choices);
    if (!near.empty()) text += "; did you mean \"" + std::string(near) + "\"?";
  }
  report.fault(path, text);
}
}  // namespace headrace::settings
