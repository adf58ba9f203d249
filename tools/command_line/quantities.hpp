// SPDX-License-Identifier: Apache-2.0
// quantities.hpp: sizes, durations and shares as words on a command line.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "command_line/words.hpp"

namespace headrace::command_line {
// "1048576", "1M", "256k", "1MiB" (powers of 1024, as fio has them), "1GB" (powers of 1000), in any
// case of letters; rounded down. Throws Fault naming the range.
std::uint64_t to_bytes(const std::string& name, const std::string& word,
                       const Range<std::uint64_t>& allowed);
// "60", "60s", "10m", "1h", "0.5", "50us", "2m30s". Seconds.
double to_seconds(const std::string& name, const std::string& word, const Range<double>& allowed);
// "5%" or "0.05": 0.05.
double to_share(const std::string& name, const std::string& word, const Range<double>& allowed);
// "a,b,c". Throws Fault for an empty item.
std::vector<std::string> to_list(const std::string& name, const std::string& word);
}  // namespace headrace::command_line
