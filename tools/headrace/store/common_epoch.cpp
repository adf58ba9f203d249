// SPDX-License-Identifier: Apache-2.0
#include "store/common_epoch.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "headrace/error.hpp"

namespace headrace::tools {
namespace {
using Parts = std::span<const std::unique_ptr<OpenStore>>;

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw Error(Code::kCorrupt, "store '" + name + "': " + what +
                                  "; nothing was written. Put the files back that belong together, "
                                  "or restore the store from a copy.");
}

void refuse_other_stores(const std::string& name, Parts parts) {
  for (const auto& part : parts) {
    if (part->head().store == parts[0]->head().store) continue;
    refuse(name, fmt::format("rank {} has files of another store of that name", part->head().rank));
  }
}

// As FreezeMeeting does.
void refuse_unlike_epochs(const std::string& name, Parts parts) {
  for (const auto& part : parts) {
    if (part->steps() == parts[0]->steps() && part->shared_print() == parts[0]->shared_print())
      continue;
    refuse(name, fmt::format("rank 0 has step {} as the common epoch, and rank {} step {}, or "
                             "other step counts, hyperparameters or another run's commit: the "
                             "files are of different runs",
                             parts[0]->steps(), part->head().rank, part->steps()));
  }
}
}  // namespace

std::uint64_t go_to_common_epoch(const std::string& name, Parts parts) {
  const auto [least, most] =
      std::ranges::minmax_element(parts, {}, [](const auto& part) { return part->epoch(); });
  const std::uint64_t epoch = (*least)->epoch(), newest = (*most)->epoch();
  if (newest == 0) return 0;
  refuse_other_stores(name, parts);
  if (newest > epoch + 1) {
    refuse(name, fmt::format("rank {} has epoch {} of it, and rank {} only epoch {}: files of an "
                             "older copy",
                             (*most)->head().rank, newest, (*least)->head().rank, epoch));
  }
  if (epoch == 0) return 0;
  for (const auto& part : parts) part->go_to(epoch);
  refuse_unlike_epochs(name, parts);
  return epoch;
}
}  // namespace headrace::tools
