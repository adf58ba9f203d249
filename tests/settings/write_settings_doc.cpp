// SPDX-License-Identifier: Apache-2.0
// Prints docs/settings.md: write_settings_doc > docs/settings.md
#include <cstdio>

#include "settings_reference/reference.hpp"

int main() {
  const std::string text = headrace::settings::settings_document();
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() ? 0 : 1;
}
