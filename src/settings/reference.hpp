// SPDX-License-Identifier: Apache-2.0
// reference.hpp: the table of keys as a document for people.
#pragma once
#include <string>

namespace headrace::settings {
// The text of docs/settings.md.
std::string settings_document();
}  // namespace headrace::settings
