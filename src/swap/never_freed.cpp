// SPDX-License-Identifier: Apache-2.0
#include "swap/never_freed.hpp"

#include <atomic>
#include <utility>

namespace headrace::swap {
namespace {
struct Kept {
  std::shared_ptr<void> object;
  Kept* next = nullptr;
};
std::atomic<Kept*> first_kept{nullptr};
}  // namespace

void never_free(std::shared_ptr<void> object) {
  Kept* const kept = new Kept{std::move(object), first_kept.load()};
  while (!first_kept.compare_exchange_weak(kept->next, kept)) {
  }
}
}  // namespace headrace::swap
