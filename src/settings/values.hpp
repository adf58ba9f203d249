// SPDX-License-Identifier: Apache-2.0
// values.hpp: one JSON value against what its key accepts.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "settings/key_table.hpp"
#include "settings/report.hpp"

namespace headrace::settings {
// "1GiB" is 2^30, "1GB" is 10^9, "1.5MiB" is fine, "0.3B" is not; at most 2^63-1.
std::optional<std::uint64_t> parse_size(std::string_view text);

// `found "four"` and so on, on one line.
std::string found_text(const nlohmann::json& value);

// "auto" is a value of the key's own, and not a trainer's to fill in.
bool takes_auto(const Key& key);

// Checks type and range of `value`, which is not null, and stores it in the key's field if it has
// one. What does not fit is reported under `path`.
void read_value(const Key& key, const nlohmann::json& value, const Path& path, Report& report,
                Settings& settings);
}  // namespace headrace::settings
