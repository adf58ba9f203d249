// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "settings/key_table.hpp"

namespace headrace::settings {
// One step of change to a whole document: a key of the table set to some value where it belongs or
// elsewhere, or taken out.
class StructureMutator {
 public:
  explicit StructureMutator(std::uint64_t seed) : random_(seed) {}
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(random_() % count); }

  nlohmann::json mutate(nlohmann::json document) {
    for (std::size_t rounds = 1 + below(3); rounds > 0; --rounds) once(document);
    return document;
  }

 private:
  nlohmann::json value_for(const Key& key) {
    const auto choices = choices_of(key);
    switch (below(12)) {
      case 0:
        return nullptr;
      case 1:
        return "auto";
      case 2:
        return below(2) == 0;
      case 3:
        return -1;
      case 4:
        return 1e300;
      case 5:
        return nlohmann::json::array({0.5, 0.9});
      case 6:
        return nlohmann::json::object();
      case 7:
        return key.multiple * (1 + below(64));
      case 8:
        return below(100) * 0.01;
      case 9:
        return "text";
      default:
        if (!choices.empty()) return choices[below(choices.size())];
        if (!key.in_any_case.empty()) return nlohmann::json::parse(key.in_any_case);
        return below(8);
    }
  }
  void once(nlohmann::json& document) {
    const auto table = keys();
    const Key& key = table[below(table.size())];
    std::string path = "/" + std::string(key.path);
    std::replace(path.begin(), path.end(), '.', '/');
    if (below(8) == 0) path = "/" + std::string(key.name());  // perhaps out of place
    try {
      const nlohmann::json::json_pointer at(path);
      if (below(6) != 0) {
        document[at] = value_for(key);
      } else if (document.contains(at)) {
        document[at.parent_pointer()].erase(at.back());
      }
    } catch (const nlohmann::json::exception&) {  // what holds it is no object
    }
  }

  std::mt19937_64 random_;
};
}  // namespace headrace::settings
