// SPDX-License-Identifier: Apache-2.0
// json_tokens.hpp: a text of JSON token by token, and what is wrong with a token in the words of
// someone who wrote the text.
#pragma once
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "settings/json_text.hpp"

namespace headrace::settings {
// As it begins, on one line and in double quotes.
std::string quoted_start(std::string_view text);

// Stands at one place of the text. All that refuse throw TextFault with that place.
class Tokens {
 public:
  Tokens(std::string_view text, Syntax syntax);

  std::size_t at() const { return at_; }
  std::size_t last_end() const { return last_end_; }  // of the token before
  bool at_end() const { return at_ >= text_.size(); }
  char here() const { return at_end() ? '\0' : text_[at_]; }
  char before() const { return last_end_ == 0 ? '\0' : text_[last_end_ - 1]; }
  bool closes() const { return here() == '}' || here() == ']'; }
  std::string_view from(std::size_t offset) const { return text_.substr(offset, at_ - offset); }

  // Takes `size` bytes that are a token.
  void take(std::size_t size) { last_end_ = at_ += size; }
  // And comments, and a comma that ends a list or an object.
  void skip_blanks();
  // The name or text whose opening quote is here.
  nlohmann::json take_string();
  // A number, true, false or null, and not what was meant as one.
  nlohmann::json take_plain();

  // What stands here without quotes: a word, a number or whatever was meant as one.
  std::string_view word() const;
  // `found {`, `found nvme`, `found "aio"`: the token that stands here, for a message.
  std::string found() const;
  std::string line_and_column(std::size_t offset) const;
  [[noreturn]] void fail(const std::string& text, bool in_hjson = false) const;
  // Refuses what is wrong in the same way wherever it stands.
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
