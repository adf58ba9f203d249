// SPDX-License-Identifier: Apache-2.0
// json_tokens.hpp: reads a JSON text token by token, and describes faults in terms that the author
// of the text understands.
#pragma once
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "settings/json_text.hpp"

namespace headrace::settings {
// The beginning of a text, on one line and in double quotes.
std::string quoted_start(std::string_view text);

// A position in the text. Functions that reject something throw a TextFault with that position.
class Tokens {
 public:
  Tokens(std::string_view text, Syntax syntax);

  std::size_t at() const { return at_; }
  std::size_t last_end() const { return last_end_; }  // of the previous token
  bool at_end() const { return at_ >= text_.size(); }
  char here() const { return at_end() ? '\0' : text_[at_]; }
  char before() const { return last_end_ == 0 ? '\0' : text_[last_end_ - 1]; }
  bool closes() const { return here() == '}' || here() == ']'; }
  std::string_view from(std::size_t offset) const { return text_.substr(offset, at_ - offset); }

  // Skips a token of `size` bytes.
  void take(std::size_t size) { last_end_ = at_ += size; }
  // Also skips comments, and a comma that ends a list or an object.
  void skip_blanks();
  // Reads the name or text whose opening quote is here.
  nlohmann::json take_string();
  // Reads a number, true, false or null, and rejects text that was meant as one.
  nlohmann::json take_plain();

  // The unquoted text here: a word, a number, or text that was meant as one.
  std::string_view word() const;
  // Describes the token here for a message: `found {`, `found nvme`, `found "aio"`.
  std::string found() const;
  std::string line_and_column(std::size_t offset) const;
  [[noreturn]] void fail(const std::string& text, bool in_hjson = false) const;
  // Rejects tokens that are wrong wherever they appear.
  void refuse_foreign() const;

 private:
  bool at_comment(std::size_t at) const;
  void skip_comments();
  std::size_t end_of_comment() const;
  void skip_escape();

  std::string_view text_;
  bool relaxed_;
  std::size_t at_ = 0;
  std::size_t last_end_ = 0;
};
}  // namespace headrace::settings
