// SPDX-License-Identifier: Apache-2.0
// error_text.hpp: parts of error messages: names of errnos, the nearest known word for a misspelt
// one, foreign text on one line.
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace headrace::base {
// "EIO (Input/output error)"; for an unknown number "errno 4242".
std::string errno_text(int sys_errno);

// The candidate with the smallest edit distance to `word`, the first of several; "" if none is near
// (distance > max(2, length / 3)).
std::string_view nearest_word(std::string_view word, std::span<const std::string_view> candidates);

// `text` on one line: control characters escaped, and cut after about `most` bytes.
std::string one_line(std::string_view text, std::size_t most = 80);
// A name that a program or a file has chosen, for errors: "'h.0.w'", on one line.
std::string quoted_name(std::string_view name);
}  // namespace headrace::base
