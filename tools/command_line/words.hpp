// SPDX-License-Identifier: Apache-2.0
// words.hpp: reads the words of a command line, and says what is wrong with them. Does not include
// CLI11, which takes ten seconds to compile.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace headrace::command_line {
// A fault of a command line. The program puts the consequence between the two.
struct Fault {
  std::string cause;
  std::string fix;
};

template <class T>
struct Range {
  T least, most;
  T multiple_of = 1;  // whole numbers only
};

// The value of a word; `name` is what it was given to. Throws Fault naming the allowed range.
std::uint64_t to_whole(const std::string& name, const std::string& word,
                       const Range<std::uint64_t>& allowed);
double to_real(const std::string& name, const std::string& word, const Range<double>& allowed);
template <class T>
T to_choice(const std::string& name, const std::string& word,
            const std::vector<std::pair<std::string, T>>& choices) {
  std::string names;
  for (const auto& [choice, value] : choices) {
    if (choice == word) return value;
    names += (names.empty() ? "" : ", ") + choice;
  }
  throw Fault{name + " '" + word + "' is not known", "Give one of: " + names};
}

// "cause; consequence. Fix."
std::string text_of(const Fault& fault, const std::string& consequence);
}  // namespace headrace::command_line
