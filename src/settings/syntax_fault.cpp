// SPDX-License-Identifier: Apache-2.0
// A walk over the tokens, which stops at the first that the grammar does not have there. The parser
// knows that a text is wrong; this says it in the words of someone who wrote it.
#include "settings/syntax_fault.hpp"

#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error_text.hpp"
#include "settings/locate.hpp"

namespace headrace::settings {
namespace {
constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::array<std::string_view, 3> kWords = {"true", "false", "null"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Of words, numbers and whatever else stands there without quotes.
bool in_word(char c) {
  return std::string_view(" \t\r\n,:;={}[]\"'#").find(c) == std::string_view::npos;
}

std::string quoted_start(std::string_view text) { return "\"" + one_line(text, 40) + "\""; }

// What JSON takes as a number: -?(0|[1-9][0-9]*)(.[0-9]+)?([eE][+-]?[0-9]+)?
bool is_number(std::string_view word) {
  const auto digits = [&] {
    const std::size_t before = word.size();
    while (!word.empty() && is_digit(word[0])) word.remove_prefix(1);
    return word.size() != before;
  };
  if (word.starts_with('-')) word.remove_prefix(1);
  if (word.starts_with('0')) {
    word.remove_prefix(1);
  } else if (!digits()) {
    return false;
  }
  if (word.starts_with('.')) {
    word.remove_prefix(1);
    if (!digits()) return false;
  }
  if (word.starts_with('e') || word.starts_with('E')) {
    word.remove_prefix(1);
    if (word.starts_with('+') || word.starts_with('-')) word.remove_prefix(1);
    if (!digits()) return false;
  }
  return word.empty();
}

// For what was meant as a number but is none: how JSON writes it; "" if it was not.
std::string mended_number(std::string_view word) {
  std::string number(word.starts_with('+') ? word.substr(1) : word);
  const std::size_t sign = number.starts_with('-') ? 1 : 0;
  while (number.size() > sign + 1 && number[sign] == '0' && is_digit(number[sign + 1]))
    number.erase(sign, 1);
  if (number.size() > sign && number[sign] == '.') number.insert(sign, "0");
  if (number.ends_with('.')) number += '0';
  return is_number(number) ? number : "";
}

std::string bad_word_text(std::string_view word) {
  const std::string found = "found " + one_line(word, 40) + ", which is no JSON value; ";
  std::string lower(word.substr(0, 16));
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower == "none") return found + "write null";
  if (lower == "yes" || lower == "on") return found + "write true";
  if (lower == "no" || lower == "off") return found + "write false";
  if (lower == "nan" || lower == "inf" || lower == "-inf" || lower == "infinity" ||
      lower == "-infinity") {
    return found + "write a finite number";
  }
  if (const std::string number = mended_number(word); !number.empty())
    return found + "write " + number;
  if (word.size() > 1 && word.size() < 8) {
    if (const std::string_view near = base::nearest_word(lower, kWords); !near.empty())
      return found + "did you mean " + std::string(near) + "?";
  }
  if (word.find_first_not_of("+-./\\") == word.npos) return found + "write the value";
  return found + "a text needs double quotes: " + quoted_start(word);
}

class Walk {
 public:
  explicit Walk(std::string_view text) : text_(text) {}

  std::optional<TextFault> run() {
    do {
      skip_blanks();
      switch (state_) {
        case State::kValue:
        case State::kValueOrEnd:
          take_value();
          break;
        case State::kName:
        case State::kNameOrEnd:
          take_name();
          break;
        case State::kColon:
          take_colon();
          break;
        case State::kCommaOrEnd:
          take_comma();
          break;
        case State::kDone:
          if (at_end()) return std::nullopt;
          take_rest();
          break;
      }
    } while (!fault_);
    return fault_;
  }

 private:
  enum class State { kValue, kValueOrEnd, kName, kNameOrEnd, kColon, kCommaOrEnd, kDone };

  bool at_end() const { return at_ >= text_.size(); }
  char here() const { return at_end() ? '\0' : text_[at_]; }
  void skip_blanks() {
    while (!at_end() && kBlanks.find(here()) != std::string_view::npos) ++at_;
  }
  void fail(const std::string& text) { fault_ = TextFault{at_, text}; }
  void fail_as_hjson(const std::string& text) { fault_ = TextFault{at_, text, true}; }

  std::string_view word() const {
    std::size_t end = at_;
    while (end < text_.size() && in_word(text_[end])) ++end;
    return text_.substr(at_, end - at_);
  }

  // `found {`, `found nvme`, `found "aio"`: the token that stands here, for a message.
  std::string found() const {
    if (here() == '"') {
      const std::size_t end = text_.find_first_of("\"\n", at_ + 1);
      const bool closed = end != text_.npos && text_[end] == '"';
      return "found " + one_line(text_.substr(at_, end - at_), 40) + (closed ? "\"" : "");
    }
    const std::string_view text = word();
    return "found " + (text.empty() ? std::string(1, here()) : one_line(text, 40));
  }

  std::string line_and_column(std::size_t offset) const {
    const TextPosition at = position_at(text_, offset);
    return "line " + std::to_string(at.line) + ", column " + std::to_string(at.column);
  }
  char closer() const { return text_[open_.back()] == '{' ? '}' : ']'; }
  std::string open_text() const {
    return std::string(1, text_[open_.back()]) + " of " + line_and_column(open_.back());
  }

  void fail_at_end() {
    if (open_.empty()) return fail("the text ends before the value");
    fail("the text ends, and the " + open_text() + " is not closed; add " + closer());
  }

  // What is wrong in the same way wherever it stands. True if something was.
  bool foreign() {
    if (at_end()) return fail_at_end(), true;
    if (text_.substr(at_).starts_with("'''"))
      return fail_as_hjson("found ''', which starts no text; write \"...\""), true;
    if (here() == '\'' || here() == '`') {
      const std::size_t end = text_.find_first_of(std::string(1, here()) + "\n", at_ + 1);
      const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
      return fail("found " + std::string(1, here()) +
                  "; names and texts need double quotes: " + quoted_start(inside)),
             true;
    }
    for (const std::string_view curly : {"\u201c", "\u201d", "\u2018", "\u2019"}) {
      if (text_.substr(at_).starts_with(curly))
        return fail("found a typographic quote; write plain double quotes: \"...\""), true;
    }
    if (here() == '#')
      return fail_as_hjson("found #, which starts no comment here; write //"), true;
    if (here() == ';') return fail("found ;, which separates nothing in JSON; write a comma"), true;
    return false;
  }

  // The name or text whose opening quote is here. False if it is faulty.
  bool take_string() {
    const std::size_t start = at_;
    for (++at_; !at_end() && here() != '"'; ++at_) {
      if (here() == '\n' || here() == '\r') break;
      if (here() == '\t') return fail("found a tab inside a text; write \\t"), false;
      if (here() != '\\') continue;
      if (!take_escape()) return false;
    }
    if (here() != '"') {
      at_ = start;
      return fail(found() + " without a closing quote on its line; add it"), false;
    }
    last_end_ = ++at_;
    last_name_ = text_.substr(start, at_ - start);
    if (nlohmann::json::accept(last_name_)) return true;
    at_ = start;
    return fail(found() + ", in which \\u names half of a character; write the character itself"),
           false;
  }

  // Leaves `at_` on the last byte of the escape.
  bool take_escape() {
    const char kind = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    if (kind == 'u') {
      for (std::size_t i = at_ + 2; i < at_ + 6; ++i) {
        if (i >= text_.size() || std::isxdigit(static_cast<unsigned char>(text_[i])) == 0)
          return fail("found \\u without four hexadecimal digits behind it; write all four"), false;
      }
      at_ += 5;
      return true;
    }
    if (kind != '\0' && std::string_view("\"\\/bfnrt").find(kind) != std::string_view::npos) {
      ++at_;
      return true;
    }
    return fail("found a backslash that starts no escape; write \\\\ for a backslash"), false;
  }

  void open() {
    state_ = here() == '{' ? State::kNameOrEnd : State::kValueOrEnd;
    open_.push_back(at_);
    last_end_ = ++at_;
  }

  void close() {
    if (here() != closer()) {
      return fail(found() + ", but the " + open_text() + " is still open; close it with " +
                  closer() + " first");
    }
    open_.pop_back();
    last_end_ = ++at_;
    after_value();
  }
  void after_value() { state_ = open_.empty() ? State::kDone : State::kCommaOrEnd; }

  void take_value() {
    if (foreign()) return;
    if (here() == '{' || here() == '[') return open();
    if (here() == ']' && state_ == State::kValueOrEnd) return close();
    if (here() == '"') {
      if (take_string()) after_value();
      return;
    }
    const std::string_view token = word();
    if (token.empty()) {
      const bool after_comma = last_end_ > 0 && text_[last_end_ - 1] == ',';
      const bool closes = here() == '}' || here() == ']';
      return fail(found() + " where a value is expected; " +
                  (after_comma && closes ? "remove the comma before it"
                   : here() == ','       ? "remove the comma, or write the value before it"
                                         : "write the value before it"));
    }
    const bool known = token == "true" || token == "false" || token == "null" || is_number(token);
    if (!known) {
      const std::string text = bad_word_text(token);
      return text.find("a text needs") == text.npos ? fail(text) : fail_as_hjson(text);
    }
    if (!nlohmann::json::accept(token))
      return fail(found() + ", which is out of range; write a number below 1.8e308");
    last_end_ = at_ += token.size();
    after_value();
  }

  void take_name() {
    if (foreign()) return;
    if (here() == '}' && state_ == State::kNameOrEnd) return close();
    if (here() == '}') return fail("found } behind a comma; remove the comma before it");
    if (here() == ']') return close();
    if (here() == ',') return fail("found a comma where a name is expected; remove it");
    if (here() == '"') {
      if (take_string()) state_ = State::kColon;
      return;
    }
    const std::string_view token = word();
    if (token.empty()) {
      return fail(found() + " where a name is expected; write \"NAME\": before it");
    }
    fail_as_hjson(found() +
                  " where a name is expected; a name needs double quotes: " + quoted_start(token));
  }

  void take_colon() {
    if (here() == ':') {
      last_end_ = ++at_;
      state_ = State::kValue;
      return;
    }
    if (here() == '=') {
      return fail("found = after the name " + one_line(last_name_, 40) +
                  "; write a colon between name and value");
    }
    if (here() == ',' || here() == '}' || here() == ']') {
      return fail("the name " + one_line(last_name_, 40) + " has no value; write " +
                  one_line(last_name_, 40) + ": VALUE");
    }
    if (!foreign()) {
      fail(found() + " after the name " + one_line(last_name_, 40) +
           "; write a colon between name and value");
    }
  }

  void take_comma() {
    if (here() == ',') {
      last_end_ = ++at_;
      state_ = text_[open_.back()] == '{' ? State::kName : State::kValue;
      return;
    }
    if (here() == '}' || here() == ']') return close();
    if (here() == ':' && closer() == ']') {
      return fail("found : in a list, which has no names; write {...} for an object");
    }
    if (foreign()) return;
    const std::string text = found() + " where a comma or " + closer() +
                             " is expected; add a comma behind " + line_and_column(last_end_ - 1);
    const bool next_line = text_.substr(last_end_, at_ - last_end_).find('\n') != text_.npos;
    next_line ? fail_as_hjson(text) : fail(text);
  }

  void take_rest() {
    if (here() == '}' || here() == ']')
      return fail("one " + std::string(1, here()) + " too many; remove it");
    fail(found() + " behind the end of the value; remove it, or move it inside");
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t last_end_ = 0;  // of the token before
  State state_ = State::kValue;
  std::vector<std::size_t> open_;  // offsets of brackets
  std::string_view last_name_;
  std::optional<TextFault> fault_;
};
}  // namespace

std::optional<TextFault> find_syntax_fault(std::string_view text) {
  std::optional<TextFault> fault = Walk(text).run();
  if (fault) fault->text = "not JSON: " + fault->text;
  return fault;
}
}  // namespace headrace::settings
