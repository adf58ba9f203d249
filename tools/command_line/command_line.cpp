// SPDX-License-Identifier: Apache-2.0
#include "command_line/command_line.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error_text.hpp"

namespace headrace::command_line {
namespace {
std::string plain(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

// A number that does not fit is out of range; every other word is no number.
[[noreturn]] void refuse_number(const std::string& name, const std::string& word, bool is_number,
                                const std::string& wanted) {
  throw Fault{is_number ? name + " " + word + " is out of range"
                        : name + " '" + word + "' is not " +
                              (wanted.starts_with("a whole") ? "a whole number" : "a number"),
              "Give " + wanted};
}

std::string name_in(const std::string& word) { return word.substr(0, word.find('=')); }

// The words as "--name=value", so that no value is taken for an option.
class Words {
 public:
  Words(const CLI::App& app, int argc, const char* const* argv)
      : app_(app), given_(argv + 1, argv + argc) {}

  std::vector<std::string> all() {
    while (at_ < given_.size()) take(given_[at_++]);
    return std::move(taken_);
  }

 private:
  void take(const std::string& word) {
    if (!word.starts_with('-') && takes_words()) {
      taken_.push_back(word);
      return;
    }
    const std::string name = name_in(word);
    const CLI::Option* const option = app_.get_option_no_throw(name);
    if (!name.starts_with('-') || option == nullptr) refuse_unknown(word);
    const bool joined = name.size() < word.size();
    if (option->get_items_expected_max() == 0) {
      if (joined) throw Fault{name + " takes no value, '" + word + "' has one", "Give " + name};
      taken_.push_back(word);
      return;
    }
    std::string value;
    if (joined) {
      value = word.substr(name.size() + 1);
    } else if (at_ < given_.size() && !given_[at_].starts_with("--")) {
      value = given_[at_++];
    }
    if (value.empty()) {
      throw Fault{name + " has no value",
                  "Give " + name + " " + option->get_type_name() + ", or leave it out"};
    }
    taken_.push_back(name + "=" + value);
  }

  // Words that belong to no option and begin with no dash.
  bool takes_words() const {
    return std::ranges::any_of(app_.get_options(), &CLI::Option::get_positional);
  }

  [[noreturn]] void refuse_unknown(const std::string& word) const {
    std::vector<std::string> names;
    for (const CLI::Option* option : app_.get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
    throw Fault{"'" + word + "' is not an option", nearest_option(word, names, app_.get_name())};
  }

  const CLI::App& app_;
  std::vector<std::string> given_, taken_;
  std::size_t at_ = 0;
};
}  // namespace

std::uint64_t to_whole(const std::string& name, const std::string& word,
                       const Range<std::uint64_t>& allowed) {
  std::uint64_t value = 0;
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, value);
  const std::string_view digits = std::string_view(word).substr(word.starts_with('-') ? 1 : 0);
  const bool is_number =
      !digits.empty() && digits.find_first_not_of("0123456789") == std::string_view::npos;
  if (is_number && error == std::errc() && stop == end && value >= allowed.least &&
      value <= allowed.most && value % allowed.multiple_of == 0) {
    return value;
  }
  const std::string multiple =
      allowed.multiple_of > 1 ? ", a multiple of " + std::to_string(allowed.multiple_of) + "," : "";
  refuse_number(name, word, is_number,
                "a whole number" + multiple + " from " + std::to_string(allowed.least) + " to " +
                    std::to_string(allowed.most));
}

double to_real(const std::string& name, const std::string& word, const Range<double>& allowed) {
  double value = 0;
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, value);
  const bool is_number = stop == end && error != std::errc::invalid_argument && !std::isnan(value);
  if (is_number && error == std::errc() && value >= allowed.least && value <= allowed.most)
    return value;
  refuse_number(name, word, is_number,
                "a number from " + plain(allowed.least) + " to " + plain(allowed.most));
}

std::string text_of(const Fault& fault, const std::string& consequence) {
  return fault.cause + "; " + consequence + ". " + fault.fix +
         (fault.fix.ends_with('?') ? "" : ".");
}

void parse(CLI::App& app, int argc, const char* const* argv) {
  try {
    std::vector<std::string> words = Words(app, argc, argv).all();
    std::ranges::reverse(words);  // as CLI11 wants them
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    throw;
  } catch (const CLI::CallForVersion&) {
    throw;
  } catch (const CLI::ExtrasError&) {
    const std::vector<std::string> more = app.remaining();
    throw Fault{"'" + (more.empty() ? "" : more.front()) + "' is one word too many",
                app.get_name() + " --help says what it takes"};
  } catch (const CLI::ParseError& error) {
    throw Fault{error.what(), app.get_name() + " --help lists the options"};
  }
}

std::string nearest_option(std::string_view misspelt, const std::vector<std::string>& known,
                           const std::string& program) {
  std::string word = name_in(std::string(misspelt));
  // One dash too few is the misspelling itself.
  if (word.starts_with('-') && !word.starts_with("--")) word.insert(0, "-");
  const std::vector<std::string_view> names(known.begin(), known.end());
  const std::string_view nearest =
      word.starts_with('-') ? base::nearest_word(word, names) : std::string_view();
  if (nearest.empty()) return program + " --help lists the options";
  return "Did you mean " + std::string(nearest) + "?";
}

std::string value_of(const std::string& name, int argc, const char* const* argv) {
  std::string value;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == name && i + 1 < argc && !std::string_view(argv[i + 1]).starts_with("--"))
      value = argv[i + 1];
    if (word.starts_with(name + "=")) value = word.substr(name.size() + 1);
  }
  return value;
}
}  // namespace headrace::command_line
