// SPDX-License-Identifier: Apache-2.0
// utf8.hpp: whether bytes are UTF-8.
#pragma once
#include <cstddef>
#include <string_view>

namespace headrace::base {
// The number of bytes of the well-formed character at the start of `text`; 0: it is ill-formed.
std::size_t utf8_size(std::string_view text);
}  // namespace headrace::base
