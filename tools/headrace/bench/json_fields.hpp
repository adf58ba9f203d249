// SPDX-License-Identifier: Apache-2.0
// json_fields.hpp: a JSON document that another program wrote, read field by field. An error names
// the place of a field that is not as expected.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "program/failing.hpp"

namespace headrace::tools {
// The words of an error around the place that it names.
struct JsonOrigin {
  std::string name;         // of the file, "fio's output"
  std::string consequence;  // "nothing was planned"
  std::string fix;          // a sentence without its full stop
};

// A value inside a document. Both outlive it. Every function throws Error kInvalidArgument: what is
// missing, or of another type than asked for.
class JsonFields {
 public:
  JsonFields(const Json& document, const JsonOrigin& origin)
      : value_(&document), origin_(&origin) {}

  bool has(const char* key) const;
  JsonFields at(const char* key) const;
  std::vector<JsonFields> elements(const char* key) const;  // of an array
  std::string text(const char* key) const;
  double number(const char* key) const;  // finite, not negative
  std::uint64_t whole(const char* key) const;

  const Json& json() const { return *value_; }
  [[noreturn]] void refuse(const std::string& what) const;  // "PLACE WHAT"

 private:
  JsonFields(const Json& value, const JsonOrigin& origin, std::string place)
      : value_(&value), origin_(&origin), place_(std::move(place)) {}
  JsonFields element(std::size_t index, const Json& value) const;

  const Json* value_;
  const JsonOrigin* origin_;
  std::string place_;  // "jobs[2].read"; "" is the whole document
};
}  // namespace headrace::tools
