// SPDX-License-Identifier: Apache-2.0
// collective_self.cpp: the collective of one rank. Its own piece is the whole, so every call is a
// copy of nothing; the rules of use are those of more ranks.
#include <algorithm>
#include <mutex>
#include <string>

#include "collective/call_rules.hpp"
#include "collective/collective_self.hpp"
#include "headrace/error.hpp"

namespace headrace::collective {
namespace {
class CollectiveSelf final : public Collective {
 public:
  std::uint32_t rank() const noexcept override { return 0; }
  std::uint32_t world_size() const noexcept override { return 1; }

  void all_gather(CollectiveTag, Stream, std::span<const DeviceSpan>) override { check(); }
  void all_to_all_v(CollectiveTag, Stream, std::span<const DeviceSpan>, std::span<const DeviceSpan>,
                    std::uint64_t) override {
    check();
  }
  bool has_all_to_all_v() const noexcept override { return true; }
  void all_to_all(CollectiveTag, Stream, std::span<const DeviceSpan>, void*) override { check(); }
  void exchange(CollectiveTag, std::span<const std::byte> mine, std::span<std::byte> all) override {
    check();
    std::ranges::copy(mine, all.begin());
  }

  void abort(std::string_view why) noexcept override {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    aborted_ = true;
    try {
      why_ = abort_text(0, why);
    } catch (...) {  // no memory for the text: the abort holds without it
    }
  }

 private:
  void check() {
    const std::lock_guard lock(mutex_);
    if (aborted_) throw Error(Code::kPeerLost, why_);
  }

  std::mutex mutex_;
  bool aborted_ = false;
  std::string why_;
};
}  // namespace

std::shared_ptr<Collective> make_collective_self() { return std::make_shared<CollectiveSelf>(); }
}  // namespace headrace::collective
