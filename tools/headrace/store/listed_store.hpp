// SPDX-License-Identifier: Apache-2.0
// listed_store.hpp: the state of a store in few words, and the parts of all its ranks.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "store/open_store.hpp"

namespace headrace::tools {
// The parts of all ranks that are there. Throws kNotFound if rank 0 alone is missing; a later rank
// that is missing shows by the header.
std::vector<StorePlace> places_of(const std::string& name,
                                  const std::vector<swap::PathProbe>& paths);
// Opened and locked, all ranks. Throws kNotFound if nothing is there or a rank is missing.
std::vector<std::unique_ptr<OpenStore>> open_all(const std::string& name,
                                                 const std::vector<StorePlace>& places);

struct ListedStore {
  std::string name;
  // Or "empty", "half made", "in use", "incomplete", "doubled", "unreadable", "damaged".
  std::string state = "whole", why;
  std::uint64_t ranks = 0;            // that were found
  std::uint64_t step = 0, bytes = 0;  // if it could be opened; the step that all ranks have
  bool opened() const { return state == "whole" || state == "empty"; }
  // It is there, and no run can begin with it as it is.
  bool failed() const { return state == "doubled" || state == "unreadable" || state == "damaged"; }
};
// Holds its locks meanwhile. A store that is not there is empty, of 0 ranks.
ListedStore look_at_store(const std::string& name, const std::vector<swap::PathProbe>& paths);
}  // namespace headrace::tools
