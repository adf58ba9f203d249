// SPDX-License-Identifier: Apache-2.0
#include "bench/json_fields.hpp"

#include <fmt/core.h>

#include <cmath>

#include "headrace/error.hpp"

namespace headrace::tools {
namespace {
bool is_whole(const Json& value) {
  return value.is_number_unsigned() ||
         (value.is_number_integer() && value.get<std::int64_t>() >= 0);
}
}  // namespace

void JsonFields::refuse(const std::string& what) const {
  const std::string place = place_.empty() ? "the document" : place_;
  throw Error(Code::kInvalidArgument, fmt::format("{}: {} {}; {}. {}.", origin_->name, place, what,
                                                  origin_->consequence, origin_->fix));
}

bool JsonFields::has(const char* key) const { return value_->is_object() && value_->contains(key); }

JsonFields JsonFields::at(const char* key) const {
  if (!value_->is_object())
    refuse(fmt::format("is {} where an object is needed", value_->type_name()));
  const auto found = value_->find(key);
  const std::string place = place_.empty() ? key : place_ + "." + key;
  if (found == value_->end()) JsonFields(*value_, *origin_, place).refuse("is missing");
  return {*found, *origin_, place};
}

JsonFields JsonFields::element(std::size_t index, const Json& value) const {
  return {value, *origin_, fmt::format("{}[{}]", place_, index)};
}

std::vector<JsonFields> JsonFields::elements(const char* key) const {
  const JsonFields array = at(key);
  if (!array.value_->is_array())
    array.refuse(fmt::format("is {} where an array is needed", array.value_->type_name()));
  std::vector<JsonFields> elements;
  for (const Json& value : *array.value_) elements.push_back(array.element(elements.size(), value));
  return elements;
}

std::string JsonFields::text(const char* key) const {
  const JsonFields field = at(key);
  if (!field.value_->is_string())
    field.refuse(fmt::format("is {} where text is needed", field.value_->type_name()));
  return field.value_->get<std::string>();
}

double JsonFields::number(const char* key) const {
  const JsonFields field = at(key);
  if (!field.value_->is_number())
    field.refuse(fmt::format("is {} where a number is needed", field.value_->type_name()));
  const double value = field.value_->get<double>();
  if (!std::isfinite(value) || value < 0) field.refuse("is negative or not finite");
  return value;
}

std::uint64_t JsonFields::whole(const char* key) const {
  const JsonFields field = at(key);
  if (!is_whole(*field.value_))
    field.refuse("is not a whole number from 0 to 18446744073709551615");
  return field.value_->get<std::uint64_t>();
}

}  // namespace headrace::tools
