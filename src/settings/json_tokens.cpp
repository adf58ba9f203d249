// SPDX-License-Identifier: Apache-2.0
#include "settings/json_tokens.hpp"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/error_text.hpp"
#include "settings/locate.hpp"

namespace headrace::settings {
namespace {
using nlohmann::json;

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::array<std::string_view, 3> kWords = {"true", "false", "null"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// For what was meant as a number but is none: how JSON writes it; "" if it was not.
std::string mended_number(std::string_view word) {
  std::string number(word.starts_with('+') ? word.substr(1) : word);
  const std::size_t sign = number.starts_with('-') ? 1 : 0;
  std::size_t zeros = 0;
  while (number.size() > sign + zeros + 1 && number[sign + zeros] == '0' &&
         is_digit(number[sign + zeros + 1]))
    ++zeros;
  number.erase(sign, zeros);
  if (number.size() > sign && number[sign] == '.') number.insert(sign, "0");
  if (number.ends_with('.')) number += '0';
  const bool is_number = json::parse(number, nullptr, /*allow_exceptions=*/false).is_number();
  return is_number ? number : "";
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

}  // namespace

std::string quoted_start(std::string_view text) { return "\"" + one_line(text, 40) + "\""; }

Tokens::Tokens(std::string_view text, Syntax syntax)
    : text_(text), relaxed_(syntax == Syntax::kRelaxed) {
  if (relaxed_ && text_.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
  skip_blanks();
}

bool Tokens::at_comment(std::size_t at) const {
  const std::string_view two = text_.substr(at, 2);
  return relaxed_ && (two == "//" || two == "/*");
}

void Tokens::skip_blanks() {
  skip_comments();
  const char before = last_end_ == 0 ? ',' : text_[last_end_ - 1];
  if (!relaxed_ || here() != ',' || std::string_view("{[,").find(before) != std::string_view::npos)
    return;
  const std::size_t comma = at_++;
  skip_comments();
  if (!closes()) at_ = comma;
}

void Tokens::skip_comments() {
  for (;; at_ = end_of_comment()) {
    while (!at_end() && kBlanks.find(here()) != kBlanks.npos) ++at_;
    if (!at_comment(at_)) return;
  }
}

std::size_t Tokens::end_of_comment() const {
  const bool line = text_[at_ + 1] == '/';
  const std::size_t end = text_.find(line ? "\n" : "*/", at_ + 2);
  if (line) return std::min(end, text_.size());
  if (end == text_.npos) throw TextFault{at_, "this comment has no end; close it with */"};
  return end + 2;
}

void Tokens::fail(const std::string& text, bool in_hjson) const {
  throw TextFault{at_, "not JSON: " + text, in_hjson};
}

std::string_view Tokens::word() const {
  std::size_t end = at_;
  while (end < text_.size() && !at_comment(end) &&
         std::string_view(" \t\r\n,:;={}[]\"'#").find(text_[end]) == std::string_view::npos)
    ++end;
  return text_.substr(at_, end - at_);
}

std::string Tokens::found() const {
  if (here() == '"') {
    const std::size_t end = text_.find_first_of("\"\n", at_ + 1);
    const bool closed = end != text_.npos && text_[end] == '"';
    return "found " + one_line(text_.substr(at_, end - at_), 40) + (closed ? "\"" : "");
  }
  const std::string_view text = word();
  return "found " + (text.empty() ? std::string(1, here()) : one_line(text, 40));
}

std::string Tokens::line_and_column(std::size_t offset) const {
  const TextPosition at = position_at(text_, offset);
  return "line " + std::to_string(at.line) + ", column " + std::to_string(at.column);
}

void Tokens::refuse_foreign() const {
  if (text_.substr(at_).starts_with("'''"))
    fail("found ''', which starts no text; write \"...\"", /*in_hjson=*/true);
  if (here() == '\'' || here() == '`') {
    const std::size_t end = text_.find_first_of(std::string(1, here()) + "\n", at_ + 1);
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    fail("found " + std::string(1, here()) +
         "; names and texts need double quotes: " + quoted_start(inside));
  }
  for (const std::string_view curly : {"\u201c", "\u201d", "\u2018", "\u2019"}) {
    if (text_.substr(at_).starts_with(curly))
      fail("found a typographic quote; write plain double quotes: \"...\"");
  }
  if (here() == '#') fail("found #, which starts no comment here; write //", /*in_hjson=*/true);
  if (here() == ';') fail("found ;, which separates nothing in JSON; write a comma");
}

json Tokens::take_string() {
  const std::size_t start = at_;
  for (++at_; !at_end() && here() != '"'; ++at_) {
    if (here() == '\n' || here() == '\r') break;
    if (here() == '\t') fail("found a tab inside a text; write \\t");
    if (here() == '\\') skip_escape();
  }
  const bool closed = here() == '"';
  const std::string_view token = text_.substr(start, at_ + 1 - start);
  at_ = start;
  if (!closed) fail(found() + " without a closing quote on its line; add it");
  json text = json::parse(token, nullptr, /*allow_exceptions=*/false);
  if (text.is_discarded())
    fail(found() + ", in which \\u names half of a character; write the character itself");
  take(token.size());
  return text;
}

// To the last byte of the escape.
void Tokens::skip_escape() {
  const char kind = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
  if (kind == 'u') {
    for (std::size_t i = at_ + 2; i < at_ + 6; ++i) {
      if (i >= text_.size() || std::isxdigit(static_cast<unsigned char>(text_[i])) == 0)
        fail("found \\u without four hexadecimal digits behind it; write all four");
    }
    at_ += 5;
  } else if (kind != '\0' && std::string_view("\"\\/bfnrt").find(kind) != std::string_view::npos) {
    ++at_;
  } else {
    fail("found a backslash that starts no escape; write \\\\ for a backslash");
  }
}

json Tokens::take_plain() {
  const std::string_view token = word();
  bool too_large = false;
  try {
    json value = json::parse(token);
    take(token.size());
    return value;
  } catch (const json::out_of_range&) {
    too_large = token.find_first_not_of("0123456789+-.eE") == token.npos;
  } catch (const json::parse_error&) {
  }
  if (too_large) fail(found() + ", which is out of range; write a number below 1.8e308");
  const std::string text = bad_word_text(token);
  fail(text, text.find("a text needs") != text.npos);
}
}  // namespace headrace::settings
