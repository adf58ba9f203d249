// SPDX-License-Identifier: Apache-2.0
#include "store/listed_store.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "headrace/error.hpp"
#include "store/common_epoch.hpp"
#include "swap/store_remains.hpp"

namespace headrace::tools {
namespace {
// A store without files of rank 0, but with some of another.
void refuse_without_first(const std::string& name, const std::vector<swap::PathProbe>& paths) {
  for (const swap::PathProbe& path : paths) {
    const auto other = swap::another_rank_in_store(path, name, 0);
    if (!other) continue;
    throw Error(Code::kNotFound,
                fmt::format("store '{}' has files of rank {} on these paths, and none of rank 0; "
                            "nothing was done. Name the paths of all ranks.",
                            name, *other));
  }
}

// Whether it was cut off while it was made.
bool is_half_made(const std::string& name, const std::vector<swap::PathProbe>& paths) {
  const swap::StoreRemains remains(paths, name, {}, swap::StoreUse::kRead);
  return !remains.empty() && remains.nothing_committed();
}

void call_half_made(ListedStore& store) {
  store.state = "half made";
  store.why =
      "it was cut off while it was made, and holds no step: the next run begins it anew, and "
      "`headrace store remove " +
      store.name + " PATH...` removes it";
}

// Of find_store() and of OpenStore.
const char* state_after(Code code) {
  switch (code) {
    case Code::kWrongState:
      return "in use";
    case Code::kNotFound:
      return "incomplete";
    case Code::kInvalidArgument:
      return "doubled";
    case Code::kCorrupt:
      return "damaged";
    default:
      return "unreadable";
  }
}
}  // namespace

std::vector<StorePlace> places_of(const std::string& name,
                                  const std::vector<swap::PathProbe>& paths) {
  std::vector<StorePlace> places;
  for (std::uint32_t rank = 0;; ++rank) {
    StorePlace place = find_store(name, rank, paths);
    if (place.drives.empty() && rank == 0) refuse_without_first(name, paths);
    if (place.drives.empty()) return places;
    places.push_back(std::move(place));
  }
}

std::vector<std::unique_ptr<OpenStore>> open_all(const std::string& name,
                                                 const std::vector<StorePlace>& places) {
  if (places.empty()) {
    throw Error(Code::kNotFound, "store '" + name +
                                     "' has no files on these paths; nothing was done. "
                                     "`headrace store list PATH...` shows what there is.");
  }
  std::vector<std::unique_ptr<OpenStore>> parts;
  for (const StorePlace& place : places) parts.push_back(std::make_unique<OpenStore>(place));
  if (parts.size() != parts[0]->head().world_size) {
    throw Error(
        Code::kNotFound,
        fmt::format("store '{}' is of {} ranks, and files of {} are on the paths: rank {} has "
                    "none; nothing was done. Name the paths of all ranks.",
                    name, parts[0]->head().world_size, parts.size(), parts.size()));
  }
  return parts;
}

namespace {
ListedStore opened_store(const std::string& name, const std::vector<swap::PathProbe>& paths) {
  ListedStore store;
  store.name = name;
  try {
    const std::vector<StorePlace> places = places_of(store.name, paths);
    store.ranks = places.size();
    if (places.empty()) {  // a run that ended before it had made them
      store.state = "empty";
      if (is_half_made(name, paths)) call_half_made(store);
      return store;
    }
    const auto parts = open_all(store.name, places);
    if (go_to_common_epoch(store.name, parts) == 0) {
      store.state = "empty";
    } else {
      store.step = parts[0]->steps();
    }
    for (const auto& part : parts) {
      store.bytes += part->size_bytes();
      if (!part->ring_fault().empty()) store.why = part->ring_fault();
      if (store.why.empty()) store.why = part->registration_fault();
    }
  } catch (const Error& error) {
    store.state = state_after(error.code());
    store.why = error.what();
  }
  return store;
}
}  // namespace

ListedStore look_at_store(const std::string& name, const std::vector<swap::PathProbe>& paths) {
  ListedStore store = opened_store(name, paths);
  try {
    if (store.state == "incomplete" && is_half_made(name, paths)) call_half_made(store);
  } catch (const Error& error) {
    store.state = state_after(error.code());
    store.why = error.what();
  }
  return store;
}
}  // namespace headrace::tools
