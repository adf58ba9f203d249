// SPDX-License-Identifier: Apache-2.0
// A parser by recursive descent. It reads the structure itself, so that it knows where each value
// stands and can say what is wrong in the words of someone who wrote the text; the bytes of a text,
// a number or a word become a value in nlohmann-json.
#include "settings/json_text.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <unordered_map>

#include "base/error_text.hpp"
#include "base/utf8.hpp"

namespace headrace::settings {
namespace {
using nlohmann::json;

constexpr std::size_t kMostNesting = 64;
constexpr std::size_t kMostDuplicates = 100;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::array<std::string_view, 3> kWords = {"true", "false", "null"};

// The grammar has UTF-8 without control characters.
void check_encoding(std::string_view text) {
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) {
    throw TextFault{0, "the text is UTF-16; save it as UTF-8"};
  }
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t size = base::utf8_size(text.substr(i));
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool control = byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r';
    if (size == 0 || control) {
      char hex[8];
      std::snprintf(hex, sizeof hex, "0x%02x", byte);
      throw TextFault{i, control
                             ? std::string("a control character (byte ") + hex + "); remove it"
                             : std::string("not UTF-8 (byte ") + hex + "); save the text as UTF-8"};
    }
    i += size;
  }
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string quoted_start(std::string_view text) { return "\"" + one_line(text, 40) + "\""; }

// For what was meant as a number but is none: how JSON writes it; "" if it was not.
std::string mended_number(std::string_view word) {
  std::string number(word.starts_with('+') ? word.substr(1) : word);
  const std::size_t sign = number.starts_with('-') ? 1 : 0;
  while (number.size() > sign + 1 && number[sign] == '0' && is_digit(number[sign + 1]))
    number.erase(sign, 1);
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

class Parser {
 public:
  // Without `out` it looks for a fault alone.
  Parser(std::string_view text, Syntax syntax, Document* out)
      : text_(text), relaxed_(syntax == Syntax::kRelaxed), out_(out) {}

  // Throws TextFault for the first place where the text leaves the grammar.
  json whole() {
    if (relaxed_ && text_.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
    skip_blanks();
    if (out_ != nullptr) {
      if (at_end()) throw TextFault{0, "the text is empty; write at least {}"};
      out_->start = at_;
    }
    json root = value({});
    skip_blanks();
    if (at_end()) return root;
    if (closes()) fail("one " + std::string(1, here()) + " too many; remove it");
    fail(found() + " behind the end of the value; remove it, or move it inside");
  }

 private:
  bool at_end() const { return at_ >= text_.size(); }
  char here() const { return at_end() ? '\0' : text_[at_]; }
  bool closes() const { return here() == '}' || here() == ']'; }
  bool at_comment(std::size_t at) const {
    const std::string_view two = text_.substr(at, 2);
    return relaxed_ && (two == "//" || two == "/*");
  }

  // And comments, and a comma that ends a list or an object.
  void skip_blanks() {
    skip_comments();
    const char before = last_end_ == 0 ? ',' : text_[last_end_ - 1];
    if (!relaxed_ || here() != ',' ||
        std::string_view("{[,").find(before) != std::string_view::npos)
      return;
    const std::size_t comma = at_++;
    skip_comments();
    if (!closes()) at_ = comma;
  }
  void skip_comments() {
    for (;; at_ = end_of_comment()) {
      while (!at_end() && kBlanks.find(here()) != kBlanks.npos) ++at_;
      if (!at_comment(at_)) return;
    }
  }
  std::size_t end_of_comment() const {
    const bool line = text_[at_ + 1] == '/';
    const std::size_t end = text_.find(line ? "\n" : "*/", at_ + 2);
    if (line) return std::min(end, text_.size());
    if (end == text_.npos) throw TextFault{at_, "this comment has no end; close it with */"};
    return end + 2;
  }

  // Takes `size` bytes that are a token.
  void take(std::size_t size) { last_end_ = at_ += size; }

  [[noreturn]] void fail(const std::string& text, bool in_hjson = false) const {
    throw TextFault{at_, "not JSON: " + text, in_hjson};
  }
  [[noreturn]] void fail_as_hjson(const std::string& text) const { fail(text, true); }

  // What stands here without quotes: a word, a number or whatever was meant as one.
  std::string_view word() const {
    std::size_t end = at_;
    while (end < text_.size() && !at_comment(end) &&
           std::string_view(" \t\r\n,:;={}[]\"'#").find(text_[end]) == std::string_view::npos)
      ++end;
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

  // Refuses what is wrong in the same way wherever it stands.
  void refuse_foreign() const {
    if (at_end() && open_.empty()) fail("the text ends before the value");
    if (at_end()) fail("the text ends, and the " + open_text() + " is not closed; add " + closer());
    if (text_.substr(at_).starts_with("'''"))
      fail_as_hjson("found ''', which starts no text; write \"...\"");
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
    if (here() == '#') fail_as_hjson("found #, which starts no comment here; write //");
    if (here() == ';') fail("found ;, which separates nothing in JSON; write a comma");
  }

  // The name or text whose opening quote is here.
  json string() {
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
  void skip_escape() {
    const char kind = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    if (kind == 'u') {
      for (std::size_t i = at_ + 2; i < at_ + 6; ++i) {
        if (i >= text_.size() || std::isxdigit(static_cast<unsigned char>(text_[i])) == 0)
          fail("found \\u without four hexadecimal digits behind it; write all four");
      }
      at_ += 5;
    } else if (kind != '\0' &&
               std::string_view("\"\\/bfnrt").find(kind) != std::string_view::npos) {
      ++at_;
    } else {
      fail("found a backslash that starts no escape; write \\\\ for a backslash");
    }
  }

  json value(const Path& path) {
    refuse_foreign();
    if (here() == '{') return object(path);
    if (here() == '[') return list(path);
    if (here() == '"') return string();
    const std::string_view token = word();
    if (token.empty()) {
      const bool after_comma = last_end_ > 0 && text_[last_end_ - 1] == ',';
      fail(found() + " where a value is expected; " +
           (after_comma && closes() ? "remove the comma before it"
            : here() == ','         ? "remove the comma, or write the value before it"
                                    : "write the value before it"));
    }
    return plain(token);
  }

  // A number, true, false or null, and not what was meant as one.
  json plain(std::string_view token) {
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

  void open() {
    open_.push_back(at_);
    if (open_.size() > kMostNesting) {
      throw TextFault{at_, "nested deeper than " + std::to_string(kMostNesting) + " levels"};
    }
    take(1);
    skip_blanks();
  }

  void close() {
    if (here() != closer()) {
      fail(found() + ", but the " + open_text() + " is still open; close it with " + closer() +
           " first");
    }
    open_.pop_back();
    take(1);
  }

  // Behind a member or an element: true for another one, false at a closing bracket.
  bool take_comma() {
    skip_blanks();
    if (here() == ',') {
      take(1);
      skip_blanks();
      return true;
    }
    if (closes()) return false;
    if (here() == ':' && closer() == ']')
      fail("found : in a list, which has no names; write {...} for an object");
    refuse_foreign();
    const bool next_line = text_.substr(last_end_, at_ - last_end_).find('\n') != text_.npos;
    fail(found() + " where a comma or " + closer() + " is expected; add a comma behind " +
             line_and_column(last_end_ - 1),
         next_line);
  }

  json object(const Path& path) {
    json object = json::object();
    open();
    bool more = here() != '}';
    while (more && here() != ']') {
      const std::size_t start = at_;
      const std::string name = member_name();
      const std::string_view spelling = text_.substr(start, last_end_ - start);
      take_colon(spelling);
      skip_blanks();
      const Path member = out_ != nullptr ? path.member(name) : Path();
      if (out_ != nullptr) place(member, start);
      object[name] = value(member);
      more = take_comma();
    }
    close();
    return object;
  }

  std::string member_name() {
    refuse_foreign();
    if (here() == '}') fail("found } behind a comma; remove the comma before it");
    if (here() == ',') fail("found a comma where a name is expected; remove it");
    if (here() == '"') return string().get<std::string>();
    const std::string_view token = word();
    if (token.empty()) fail(found() + " where a name is expected; write \"NAME\": before it");
    fail_as_hjson(found() +
                  " where a name is expected; a name needs double quotes: " + quoted_start(token));
  }

  void take_colon(std::string_view spelling) {
    skip_blanks();
    if (here() == ':') return take(1);
    const std::string name = one_line(spelling, 40);
    if (here() == '=')
      fail("found = after the name " + name + "; write a colon between name and value");
    if (here() == ',' || closes())
      fail("the name " + name + " has no value; write " + name + ": VALUE");
    refuse_foreign();
    fail(found() + " after the name " + name + "; write a colon between name and value");
  }

  json list(const Path& path) {
    json list = json::array();
    open();
    bool more = here() != ']';
    while (more) {
      const Path element = out_ != nullptr ? path.element(list.size()) : Path();
      if (out_ != nullptr) out_->offsets.emplace(element.pointer, at_);
      list.push_back(value(element));
      more = take_comma();
    }
    close();
    return list;
  }

  void place(const Path& member, std::size_t offset) {
    const auto [known, fresh] = out_->offsets.emplace(member.pointer, offset);
    if (fresh) return;
    const std::size_t first = firsts_.emplace(member.pointer, known->second).first->second;
    known->second = offset;
    if (out_->faults.size() >= kMostDuplicates) return;
    out_->faults.push_back({offset, member.dotted + ": given twice, first at line " +
                                        std::to_string(position_at(text_, first).line) +
                                        "; remove one"});
  }

  std::string_view text_;
  bool relaxed_;
  Document* out_;
  std::size_t at_ = 0;
  std::size_t last_end_ = 0;                             // of the token before
  std::vector<std::size_t> open_;                        // offsets of brackets
  std::unordered_map<std::string, std::size_t> firsts_;  // of what is given twice
};
}  // namespace

Document parse_document(std::string_view text, Syntax syntax) {
  Document document;
  try {
    check_encoding(text);
    document.value = Parser(text, syntax, &document).whole();
    document.parsed = document.faults.size() < kMostDuplicates;
  } catch (const TextFault& fault) {
    document.faults = {fault};
  }
  return document;
}

std::optional<TextFault> find_syntax_fault(std::string_view text) {
  try {
    Parser(text, Syntax::kStrict, nullptr).whole();
    return std::nullopt;
  } catch (const TextFault& fault) {
    return fault;
  }
}

const nlohmann::json* find_in(const nlohmann::json& root, std::string_view path) {
  const nlohmann::json* node = &root;
  for (;;) {
    const std::size_t dot = path.find('.');
    const auto found = node->find(std::string(path.substr(0, dot)));
    if (found == node->end()) return nullptr;
    node = &*found;
    if (dot == std::string_view::npos) return node;
    path.remove_prefix(dot + 1);
  }
}
}  // namespace headrace::settings
