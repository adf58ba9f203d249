// SPDX-License-Identifier: Apache-2.0
// command_line.hpp: options of a program, on top of CLI11. The text of each fault gives cause,
// consequence, fix.
//
// A value follows its option as the next word or after "="; it is never empty. Numbers are decimal.
// The last of several values holds.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "command_line/words.hpp"

namespace headrace::command_line {
// `to` is a number or an optional one.
template <class To>
CLI::Option* add_number(CLI::App& app, const std::string& name, To& to,
                        const Range<std::uint64_t>& allowed, const std::string& text) {
  const auto take = [&to, name, allowed](const std::string& word) {
    to = static_cast<To>(to_whole(name, word, allowed));
  };
  return app.add_option_function<std::string>(name, take, text)->type_name("N");
}
template <class To>
CLI::Option* add_real(CLI::App& app, const std::string& name, To& to, const Range<double>& allowed,
                      const std::string& text) {
  const auto take = [&to, name, allowed](const std::string& word) {
    to = static_cast<To>(to_real(name, word, allowed));
  };
  return app.add_option_function<std::string>(name, take, text)->type_name("X");
}
// May be given several times; each takes one word, so that a file's name may follow it.
inline CLI::Option* add_repeated(CLI::App& app, const std::string& name,
                                 std::vector<std::string>& to, const std::string& text) {
  return app.add_option(name, to, text)
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}
// An option that was removed, and is not listed: `fault` names what took its place.
inline void add_replaced(CLI::App& app, const std::string& name, const Fault& fault) {
  app.add_option_function<std::string>(
         name, [fault](const std::string&) { throw fault; }, "")
      ->group("");
}
// The same of one that took no value.
inline void add_replaced_flag(CLI::App& app, const std::string& name, const Fault& fault) {
  app.add_flag_callback(name, [fault] { throw fault; })->group("");
}
template <class T>
CLI::Option* add_choice(CLI::App& app, const std::string& name, T& to,
                        std::vector<std::pair<std::string, T>> choices, const std::string& text) {
  const auto take = [&to, name, choices = std::move(choices)](const std::string& word) {
    to = to_choice(name, word, choices);
  };
  return app.add_option_function<std::string>(name, take, text);
}

// Throws Fault, CLI::CallForHelp, CLI::CallForVersion.
void parse(CLI::App& app, int argc, const char* const* argv);

// "Did you mean --hidden?" for a misspelt option, else where the known ones are listed.
std::string nearest_option(std::string_view misspelt, const std::vector<std::string>& known,
                           const std::string& program);

// The last value of `name`, found even on a line that does not parse; empty: none.
std::string value_of(const std::string& name, int argc, const char* const* argv);
}  // namespace headrace::command_line
