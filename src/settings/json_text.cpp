// SPDX-License-Identifier: Apache-2.0
// The parser is nlohmann-json's. Before it runs, what it does not know is refused or blanked out,
// byte for byte, so that its offsets are the original's.
#include "settings/json_text.hpp"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "base/utf8.hpp"

namespace headrace::settings {
namespace {
constexpr std::size_t kMostNesting = 64;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

std::optional<TextFault> check_encoding(std::string_view text) {
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) {
    return TextFault{0, "the text is UTF-16; save it as UTF-8"};
  }
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t size = base::utf8_size(text.substr(i));
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool control = byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r';
    if (size == 0 || control) {
      char hex[8];
      std::snprintf(hex, sizeof hex, "0x%02x", byte);
      return TextFault{
          i, control ? std::string("a control character (byte ") + hex + "); remove it"
                     : std::string("not UTF-8 (byte ") + hex + "); save the text as UTF-8"};
    }
    i += size;
  }
  return std::nullopt;
}

// One pass over the tokens, which blanks extras out and measures nesting.
class ExtrasPass {
 public:
  ExtrasPass(std::string& text, Syntax syntax) : text_(text), syntax_(syntax) {}

  std::optional<TextFault> run() {
    if (relaxed() && text_.starts_with(kByteOrderMark)) blank(0, kByteOrderMark.size());
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"') {
        significant(c);
        skip_string();
      } else if (relaxed() &&
                 (text_.compare(at_, 2, "//") == 0 || text_.compare(at_, 2, "/*") == 0)) {
        if (!skip_comment()) return TextFault{at_, "this comment has no end; close it with */"};
      } else {
        if (std::string_view(" \t\r\n").find(c) == std::string_view::npos) significant(c);
        if (nesting_ > kMostNesting) {
          return TextFault{at_, "nested deeper than " + std::to_string(kMostNesting) + " levels"};
        }
        ++at_;
      }
    }
    return std::nullopt;
  }

 private:
  bool relaxed() const { return syntax_ == Syntax::kRelaxed; }

  void blank(std::size_t from, std::size_t size) {
    for (std::size_t i = from; i < from + size; ++i) {
      if (text_[i] != '\n') text_[i] = ' ';
    }
  }

  void significant(char c) {
    if (c == '{' || c == '[') ++nesting_;
    if (c == '}' || c == ']') {
      if (nesting_ > 0) --nesting_;
      const bool after_value = before_last_ != '{' && before_last_ != '[' && before_last_ != ',';
      if (relaxed() && last_ == ',' && after_value) blank(last_at_, 1);
    }
    before_last_ = last_;
    last_ = c;
    last_at_ = at_;
  }

  void skip_string() {
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\') ++at_;
    }
    ++at_;
  }

  bool skip_comment() {
    const bool line = text_[at_ + 1] == '/';
    const std::size_t end = text_.find(line ? "\n" : "*/", at_ + 2);
    if (!line && end == std::string::npos) return false;
    const std::size_t stop = std::min(text_.size(), line ? end : end + 2);
    blank(at_, stop - at_);
    at_ = stop;
    return true;
  }

  std::string& text_;
  Syntax syntax_;
  std::size_t at_ = 0;
  std::size_t nesting_ = 0;
  char before_last_ = '{';
  char last_ = '{';
  std::size_t last_at_ = 0;
};

std::optional<TextFault> check_syntax(const std::string& text) {
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    return TextFault{0, "the text is empty; write at least {}"};
  }
  if (nlohmann::json::accept(text)) return std::nullopt;
  std::optional<TextFault> fault = find_syntax_fault(text);
  return fault ? fault : TextFault{0, "not JSON"};
}
}  // namespace

Document parse_document(std::string_view text, Syntax syntax) {
  Document document;
  const auto stop = [&](std::optional<TextFault> fault) {
    if (fault) document.faults.push_back(std::move(*fault));
    return !document.faults.empty();
  };
  if (stop(check_encoding(text))) return document;
  std::string plain(text);
  if (stop(ExtrasPass(plain, syntax).run())) return document;
  if (stop(check_syntax(plain))) return document;
  document.start = plain.find_first_not_of(" \t\r\n");
  document.locator = Locator(plain);
  for (const Locator::Duplicate& twice : document.locator.duplicates()) {
    const TextPosition first = position_at(text, twice.first_offset);
    document.faults.push_back(
        {twice.second_offset, twice.path.dotted + ": given twice, first at line " +
                                  std::to_string(first.line) + "; remove one"});
    if (document.faults.size() >= 100) return document;
  }
  // Of a key given twice the last value counts, here as in the locator.
  document.value = nlohmann::json::parse(plain);
  document.parsed = true;
  return document;
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
