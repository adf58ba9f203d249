// SPDX-License-Identifier: Apache-2.0
// headrace/torch/read_scope.hpp: a scope in which a group's values may be read, and in which writes
// are noticed that torch does not count (data_ptr(), accessor(), memcpy).
#pragma once
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "headrace/torch/offload_core.hpp"

namespace headrace::torch::detail {
class ReadScope {
 public:
  ReadScope(std::shared_ptr<OffloadCore> core, std::shared_ptr<OffloadedGroup> group)
      : binding_(std::move(core), std::move(group)),
        before_(binding_.group().fingerprints()),
        changes_(binding_.core()->engine().weight_changes(binding_.group().id)) {}
  ReadScope(ReadScope&&) noexcept = default;
  ReadScope& operator=(ReadScope&& other) noexcept {
    if (this != &other) {
      end();
      binding_ = std::move(other.binding_);
      before_ = std::move(other.before_);
      changes_ = other.changes_;
    }
    return *this;
  }
  ~ReadScope() { end(); }

  void release() {
    if (!binding_.core()) return;
    const Call call(binding_.core());
    end();
  }
  void end() noexcept {
    if (const auto& core = binding_.core())
      core->report_if_changed(binding_.group(), before_, changes_);
    binding_.release();
  }

 private:
  Binding binding_;
  std::vector<std::uint64_t> before_;
  std::uint64_t changes_;
};
}  // namespace headrace::torch::detail
