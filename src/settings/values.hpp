// SPDX-License-Identifier: Apache-2.0
// values.hpp: checks one JSON value against the rules of its key.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "settings/key_table.hpp"
#include "settings/report.hpp"

namespace headrace::settings {
// "1GiB" is 2^30, "1GB" is 10^9. Accepts "1.5MiB", but not "0.3B"; at most 2^63-1.
std::optional<std::uint64_t> parse_size(std::string_view text);

// For a message: `found "four"` and the like, on one line.
std::string found_text(const nlohmann::json& value);

// Whether "auto" is a value of the key itself, which the trainer does not fill in.
bool takes_auto(const Key& key);

// Checks type and range of `value`, which is not null, and stores it in the key's field if there is
// one. Reports a mismatch under `path`.
void read_value(const Key& key, const nlohmann::json& value, const Path& path, Report& report,
                Settings& settings);
}  // namespace headrace::settings
