// SPDX-License-Identifier: Apache-2.0
// engine_words.hpp: rewords the engine's errors about settings as errors about a program's
// arguments and options.
#pragma once
#include <string>

namespace headrace::tools {
// An error or a warning of the engine's without the keys of a settings file, which the user of a
// program that has none would look for in vain.
//   less  its own options that take less memory, "": it has none
std::string without_settings(std::string text, const std::string& less = {});
}  // namespace headrace::tools
