// SPDX-License-Identifier: Apache-2.0
// A parser by recursive descent. It reads the structure itself, so that it knows where each value
// stands, and can say what is wrong in the words of someone who wrote the text. nlohmann-json turns
// the bytes of a text, a number or a word into a value.
#include "settings/json_text.hpp"

#include <cstdio>
#include <unordered_map>

#include "base/error_text.hpp"
#include "base/utf8.hpp"
#include "settings/json_tokens.hpp"

namespace headrace::settings {
namespace {
using nlohmann::json;

constexpr std::size_t kMostNesting = 64;
constexpr std::size_t kMostDuplicates = 100;
// Bytes of a value's path. Each value with a place has one.
constexpr std::size_t kLongestPointer = 1024, kLongestOfElement = 256;

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

class Parser {
 public:
  // Without `out` it looks for a fault alone.
  Parser(std::string_view text, Syntax syntax, Document* out)
      : text_(text), in_(text, syntax), out_(out) {}

  // Throws TextFault for the first place where the text leaves the grammar.
  json whole() {
    if (out_ != nullptr) {
      if (in_.at_end()) throw TextFault{0, "the text is empty; write at least {}"};
      out_->start = in_.at();
    }
    json root = value({});
    in_.skip_blanks();
    if (in_.at_end()) return root;
    if (in_.closes()) in_.fail("one " + std::string(1, in_.here()) + " too many; remove it");
    in_.fail(in_.found() + " behind the end of the value; remove it, or move it inside");
  }

 private:
  char closer() const { return text_[open_.back()] == '{' ? '}' : ']'; }
  std::string open_text() const {
    return std::string(1, text_[open_.back()]) + " of " + in_.line_and_column(open_.back());
  }

  // Refuses what is wrong in the same way wherever it stands.
  void refuse_foreign() const {
    if (in_.at_end() && open_.empty()) in_.fail("the text ends before the value");
    if (in_.at_end())
      in_.fail("the text ends, and the " + open_text() + " is not closed; add " + closer());
    in_.refuse_foreign();
  }

  json value(const Path& path) {
    refuse_foreign();
    if (in_.here() == '{') return object(path);
    if (in_.here() == '[') return list(path);
    if (in_.here() == '"') return in_.take_string();
    if (in_.word().empty()) {
      const bool after_comma = in_.before() == ',';
      in_.fail(in_.found() + " where a value is expected; " +
               (after_comma && in_.closes() ? "remove the comma before it"
                : in_.here() == ','         ? "remove the comma, or write the value before it"
                                            : "write the value before it"));
    }
    return in_.take_plain();
  }

  void open() {
    open_.push_back(in_.at());
    if (open_.size() > kMostNesting) {
      throw TextFault{in_.at(), "nested deeper than " + std::to_string(kMostNesting) + " levels"};
    }
    in_.take(1);
    in_.skip_blanks();
  }

  void close() {
    if (in_.here() != closer()) {
      in_.fail(in_.found() + ", but the " + open_text() + " is still open; close it with " +
               closer() + " first");
    }
    open_.pop_back();
    in_.take(1);
  }

  // Behind a member or an element: true for another one, false at a closing bracket.
  bool take_comma() {
    in_.skip_blanks();
    if (in_.here() == ',') {
      in_.take(1);
      in_.skip_blanks();
      return true;
    }
    if (in_.closes()) return false;
    if (in_.here() == ':' && closer() == ']')
      in_.fail("found : in a list, which has no names; write {...} for an object");
    refuse_foreign();
    const bool next_line = in_.from(in_.last_end()).find('\n') != text_.npos;
    in_.fail(in_.found() + " where a comma or " + closer() + " is expected; add a comma behind " +
                 in_.line_and_column(in_.last_end() - 1),
             next_line);
  }

  json object(const Path& path) {
    json object = json::object();
    open();
    bool more = in_.here() != '}';
    while (more && in_.here() != ']') {
      const std::size_t start = in_.at();
      const std::string name = member_name();
      const std::string_view spelling = text_.substr(start, in_.last_end() - start);
      take_colon(spelling);
      in_.skip_blanks();
      const Path member = out_ != nullptr ? path.member(name) : Path();
      refuse_below_long_name(path, start);
      if (out_ != nullptr) place(member, start);
      object[name] = value(member);
      more = take_comma();
    }
    close();
    return object;
  }

  std::string member_name() {
    refuse_foreign();
    if (in_.here() == '}') in_.fail("found } behind a comma; remove the comma before it");
    if (in_.here() == ',') in_.fail("found a comma where a name is expected; remove it");
    if (in_.here() == '"') return in_.take_string().get<std::string>();
    const std::string_view token = in_.word();
    if (token.empty())
      in_.fail(in_.found() + " where a name is expected; write \"NAME\": before it");
    in_.fail(in_.found() +
                 " where a name is expected; a name needs double quotes: " + quoted_start(token),
             /*in_hjson=*/true);
  }

  void take_colon(std::string_view spelling) {
    in_.skip_blanks();
    if (in_.here() == ':') return in_.take(1);
    const std::string name = one_line(spelling, 40);
    if (in_.here() == '=')
      in_.fail("found = after the name " + name + "; write a colon between name and value");
    if (in_.here() == ',' || in_.closes())
      in_.fail("the name " + name + " has no value; write " + name + ": VALUE");
    refuse_foreign();
    in_.fail(in_.found() + " after the name " + name + "; write a colon between name and value");
  }

  json list(const Path& path) {
    json list = json::array();
    open();
    bool more = in_.here() != ']';
    while (more) {
      refuse_below_long_name(path, in_.at());
      const Path element = out_ != nullptr ? path.element(list.size()) : Path();
      // A long name times a long list would take memory without end; faults name the list then.
      if (out_ != nullptr && element.pointer.size() <= kLongestOfElement)
        out_->offsets.emplace(element.pointer, in_.at());
      list.push_back(value(element));
      more = take_comma();
    }
    close();
    return list;
  }

  static void refuse_below_long_name(const Path& path, std::size_t offset) {
    if (path.pointer.size() > kLongestPointer)
      throw TextFault{offset, "found below a name that is too long for a section's; remove it"};
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
  Tokens in_;
  Document* out_;
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
