// SPDX-License-Identifier: Apache-2.0
// report.hpp: collects all faults and warnings of one text, each with its place.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "settings/locate.hpp"

namespace headrace::settings {
// A place in the text or in an override.
struct Place {
  std::size_t order;         // places compare by it
  std::string text;          // "ds.json:3:5" or "--set aio.queue_depth"
  std::string override_key;  // "aio.queue_depth"; "" if it stands in the text
};

class Report {
 public:
  // `origin` is the file's name, and `text` its contents; both outlive the report. Without
  // `places`, messages name only keys, since nobody has seen the text.
  Report(std::string_view origin, std::string_view text, bool places = true)
      : origin_(origin), text_(text), places_(places) {}

  // From now on, `pointer` and everything below it comes from an override of `key`, and messages
  // about it say so.
  void mark_override(const std::string& pointer, const std::string& key);
  void use(const Offsets& offsets) { offsets_ = &offsets; }

  void fault(const Path& path, const std::string& text);
  void fault_at(std::size_t offset, const std::string& text);
  void fault_in_override(const std::string& key, const std::string& text);
  void warn(const Path& path, const std::string& text);
  void warn_at(const Place& place, const std::string& text);
  Place place_of(const Path& path) const;

  bool clean() const { return faults_.empty(); }
  // True once there are so many faults that further ones would not help.
  bool full() const { return faults_.size() >= kMostFaults; }
  // The place of a key in the order of the text. For an override:
  static constexpr std::size_t kAfterTheText = ~std::size_t{0};
  std::size_t order_of(const Path& path) const;
  // The first faults, one per line, in the order of the text, then those of overrides.
  std::string faults_text() const;
  std::vector<std::string> warnings() const;

 private:
  static constexpr std::size_t kMostFaults = 100;
  struct Line {
    std::size_t order;
    std::string text;
  };
  const std::string* override_of(const Path& path) const;  // null: the value is from the text
  std::size_t offset_of(const Path& path) const;
  Place place_at(std::size_t offset) const;
  std::string line(const Place& place, const Path& path, const std::string& text) const;
  static std::vector<Line> sorted(std::vector<Line> lines);

  std::string_view origin_;
  std::string_view text_;
  bool places_;
  const Offsets* offsets_ = nullptr;
  struct Override {
    std::string pointer;
    std::string key;
  };
  std::vector<Override> overrides_;
  std::vector<Line> faults_;
  std::vector<Line> warnings_;
};
}  // namespace headrace::settings
