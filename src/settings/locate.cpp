// SPDX-License-Identifier: Apache-2.0
#include "settings/locate.hpp"

#include <nlohmann/json.hpp>

namespace headrace::settings {
Path Path::member(std::string_view name) const {
  Path path{dotted.empty() ? one_line(name) : dotted + "." + one_line(name), pointer + "/"};
  for (const char c : name) {
    if (c == '~') {
      path.pointer += "~0";
    } else if (c == '/') {
      path.pointer += "~1";
    } else {
      path.pointer += c;
    }
  }
  return path;
}

Path Path::element(std::size_t index) const {
  const std::string number = std::to_string(index);
  return {dotted + "[" + number + "]", pointer + "/" + number};
}

TextPosition position_at(std::string_view text, std::size_t offset) {
  TextPosition at;
  std::size_t i = text.starts_with("\xef\xbb\xbf") ? 3 : 0;
  for (; i < offset && i < text.size(); ++i) {
    if (text[i] == '\n') {
      ++at.line;
      at.column = 1;
    } else if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) {
      ++at.column;
    }
  }
  return at;
}

// Walks a valid text; the only thing to get right is where tokens end.
class Locator::Scan {
 public:
  Scan(std::string_view text, Locator& out) : text_(text), out_(out) {}

  void value(const Path& path) {
    skip_blanks();
    if (here() == '{') {
      object(path);
    } else if (here() == '[') {
      list(path);
    } else if (here() == '"') {
      string();
    } else {
      while (!at_end() && std::string_view(",]} \t\r\n").find(here()) == std::string_view::npos)
        ++at_;
    }
  }

 private:
  bool at_end() const { return at_ >= text_.size(); }
  char here() const { return at_end() ? '\0' : text_[at_]; }
  void skip_blanks() {
    while (!at_end() && std::string_view(" \t\r\n").find(here()) != std::string_view::npos) ++at_;
  }

  // The token with its quotes.
  std::string_view string() {
    const std::size_t start = at_++;
    while (!at_end() && here() != '"') at_ += here() == '\\' ? 2 : 1;
    ++at_;
    return text_.substr(start, at_ - start);
  }

  void object(const Path& path) {
    ++at_;
    for (skip_blanks(); !at_end() && here() != '}'; skip_blanks()) {
      if (here() == ',') {
        ++at_;
        continue;
      }
      const std::size_t key_offset = at_;
      const Path member = path.member(nlohmann::json::parse(string()).get<std::string>());
      const auto [known, fresh] = out_.offsets_.emplace(member.pointer, key_offset);
      if (!fresh) {
        const std::size_t first = firsts_.emplace(member.pointer, known->second).first->second;
        out_.duplicates_.push_back({member, first, key_offset});
        known->second = key_offset;
      }
      skip_blanks();
      ++at_;  // the colon
      value(member);
    }
    ++at_;
  }

  void list(const Path& path) {
    ++at_;
    std::size_t index = 0;
    for (skip_blanks(); !at_end() && here() != ']'; skip_blanks()) {
      if (here() == ',') {
        ++at_;
        continue;
      }
      const Path element = path.element(index++);
      out_.offsets_.emplace(element.pointer, at_);
      value(element);
    }
    ++at_;
  }

  std::string_view text_;
  Locator& out_;
  std::unordered_map<std::string, std::size_t> firsts_;  // of what is given twice
  std::size_t at_ = 0;
};

Locator::Locator(std::string_view json_text) { Scan(json_text, *this).value({}); }

std::optional<std::size_t> Locator::offset_of(const std::string& pointer) const {
  const auto found = offsets_.find(pointer);
  return found == offsets_.end() ? std::nullopt : std::optional(found->second);
}
}  // namespace headrace::settings
